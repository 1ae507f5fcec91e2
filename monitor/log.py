"""The run log: one JSON line a step and TensorBoard, both over the same learner step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .board import Board
from .jsonl import StepLines, read_lines
from .metrics import MonitorError, nonfinite

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_OWN_KEYS = ("step", "time", "nonfinite")


class RunLog:
    """Writes a run's metrics to `metrics.jsonl` and to TensorBoard event files.

    Every metric has the same x axis, the learner step. JSON knows no NaN: a value that is not
    finite is written as null and named in the line's list `nonfinite`.

    Args:
        folder: the run folder.
        resume_step: None for a new run; else the step the run goes on from: what the log holds of
            later steps is removed, so that it reads as if there had been no interruption.
        tensorboard: write event files as well.
        writes: False checks what is logged and writes nothing: another process does.

    Raises:
        MonitorError: if the folder holds a log and `resume_step` is None.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        resume_step: int | None = None,
        tensorboard: bool = True,
        writes: bool = True,
    ):
        self.folder = Path(folder)
        self._lines = StepLines(self.folder / METRICS_FILE, resume_step) if writes else None
        self._step = -1 if resume_step is None else resume_step
        # What is already there of the step resumed from, so that it is not written twice.
        self._written = _names_of(self.folder / METRICS_FILE, self._step) if writes else set()
        self._board: Board | None = None
        if tensorboard and writes:
            purge = None if resume_step is None else resume_step + 1
            self._board = Board(self.folder / TENSORBOARD_FOLDER, purge)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step; a step may be written in parts, e.g. its evaluation later.

        Args:
            step: learner steps finished, never less than before.
            metrics: name to value.

        Raises:
            MonitorError: if `step` goes back, or a metric was written for this step before.
        """
        values = {name: float(value) for name, value in metrics.items()}
        self._check(step, values)
        bad = nonfinite(values)
        record: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
        record |= {n: v if math.isfinite(v) else None for n, v in values.items()}
        if bad:
            record["nonfinite"] = bad
        if self._lines is not None:
            self._lines.append(record)
        if self._board is not None:
            self._board.add(step, values)

    def close(self) -> None:
        """Close the files."""
        try:
            if self._lines is not None:
                self._lines.close()
        finally:
            if self._board is not None:
                self._board.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, step: int, values: Mapping[str, float]) -> None:
        if step < self._step:
            raise MonitorError(
                f"Step {step} comes after step {self._step} was logged; steps only go up."
            )
        if step > self._step:
            self._step, self._written = step, set()
        for name in values:
            if name in _OWN_KEYS:
                raise MonitorError(f"A metric cannot be named {name!r}; the log uses that name.")
            if name in self._written:
                raise MonitorError(f"Metric {name!r} was logged for step {step} already.")
        self._written.update(values)


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    """A run's metrics, one mapping a step in order, the parts of a step put together.

    Args:
        folder: a run folder.

    Returns:
        `{"step": int, name: value, ...}` a step; values that were not finite are NaN.

    Raises:
        MonitorError: if the folder holds no log.
    """
    path = Path(folder) / METRICS_FILE
    if not path.is_file():
        raise MonitorError(f"{str(folder)!r} is no run folder: it holds no {METRICS_FILE}.")
    steps: dict[int, dict[str, Any]] = {}
    for record in read_lines(path):
        bad = record.pop("nonfinite", [])
        record |= dict.fromkeys(bad, math.nan)
        steps.setdefault(record["step"], {}).update(record)
    return [steps[step] for step in sorted(steps)]


def series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged."""
    pairs = [(r["step"], r[name]) for r in records if name in r]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _names_of(path: Path, step: int) -> set[str]:
    if not path.exists():
        return set()
    names: set[str] = set()
    for record in read_lines(path):
        if record["step"] == step:
            names.update(record)
    return names - set(_OWN_KEYS)
