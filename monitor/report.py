"""Runs side by side, as a table of text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .log import read_log, series
from .metrics import MonitorError

_ACCURACY = "eval/accuracy"
_REWARD = "reward/mean"
_LAST_REWARDS = 10


@dataclass(frozen=True)
class Summary:
    """What a group of runs with different seeds came to; a list has one value a seed.

    Args:
        label: its name.
        first: held-out accuracy when it was measured first.
        final: held-out accuracy when it was measured last.
        best: the highest held-out accuracy.
        reward: mean training reward of the last 10 logged steps.
        steps: learner steps of the longest seed.
        seconds: wall-clock seconds between first and last log line, of the longest seed.
    """

    label: str
    first: list[float]
    final: list[float]
    best: list[float]
    reward: list[float]
    steps: int
    seconds: float


def summarize(label: str, folders: Sequence[str | Path]) -> Summary:
    """Read the runs of one group.

    Args:
        label: its name.
        folders: a run folder a seed.

    Returns:
        Their summary; a seed that logged no accuracy (or reward) has no value in its list.

    Raises:
        MonitorError: if there is no folder, or one holds no log.
    """
    if not folders:
        raise MonitorError(f"{label!r} has no runs; give at least one run folder.")
    logs = [read_log(folder) for folder in folders]
    if empty := [str(f) for f, records in zip(folders, logs, strict=True) if not records]:
        raise MonitorError(f"The run {empty[0]!r} has logged nothing yet.")
    accuracies = [values for records in logs if (values := _finite(records, _ACCURACY))]
    rewards = [values[-_LAST_REWARDS:] for records in logs if (values := _finite(records, _REWARD))]
    return Summary(
        label=label,
        first=[values[0] for values in accuracies],
        final=[values[-1] for values in accuracies],
        best=[max(values) for values in accuracies],
        reward=[statistics.fmean(values) for values in rewards],
        steps=max(records[-1]["step"] for records in logs),
        seconds=max(records[-1]["time"] - records[0]["time"] for records in logs),
    )


def compare_runs(runs: Mapping[str, Sequence[str | Path]], *, markdown: bool = False) -> str:
    """A table of groups of runs, best final accuracy first.

    Accuracies are percentages; several seeds are written as mean ± sample standard deviation.

    Args:
        runs: label to its run folders, one a seed.
        markdown: draw the table in Markdown.

    Returns:
        The table.

    Raises:
        MonitorError: if there is nothing to compare.
    """
    if not runs:
        raise MonitorError("There are no runs to compare; give at least one.")
    summaries = [summarize(label, folders) for label, folders in runs.items()]
    summaries.sort(key=lambda s: -statistics.fmean(s.final) if s.final else math.inf)
    header = ["run", "seeds", "accuracy before", "final", "best", "reward", "steps", "time"]
    rows = [_row(summary, len(runs[summary.label])) for summary in summaries]
    return _table([header, *rows], markdown)


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """`mean ± deviation` of several values, the value alone of one, `-` of none."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values) * scale:.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) * scale:.{digits}f}"


def _finite(records: list[dict[str, Any]], name: str) -> list[float]:
    return [value for value in series(records, name)[1] if math.isfinite(value)]


def _row(summary: Summary, seeds: int) -> list[str]:
    minutes, seconds = divmod(round(summary.seconds), 60)
    return [
        summary.label,
        str(seeds),
        spread(summary.first, 100),
        spread(summary.final, 100),
        spread(summary.best, 100),
        spread(summary.reward, digits=3),
        str(summary.steps),
        f"{minutes}:{seconds:02d}",
    ]


def _table(rows: list[list[str]], markdown: bool) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    edge = "| " if markdown else ""
    joint, end = (" | ", " |") if markdown else ("  ", "")

    def line(cells: Sequence[str]) -> str:
        # The names stand left, the numbers right.
        aligned = [cells[0].ljust(widths[0])]
        aligned += [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
        return (edge + joint.join(aligned) + end).rstrip()

    dashes = ["-" * width for width in widths]
    if markdown:
        dashes = [dashes[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(rows[0]), line(dashes), *map(line, rows[1:])])
