"""Curves of one or several runs as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .log import read_log, series
from .metrics import MonitorError


class Curve(NamedTuple):
    """A metric in the picture: its name in the log, a title, and the label of its axis."""

    name: str
    title: str
    axis: str
    percent: bool = False


CURVES = (
    Curve("reward/mean", "Training reward", "reward a completion"),
    Curve("eval/accuracy", "Held-out accuracy", "right answers (%)", True),
    Curve("kl", "Distance to the reference", "KL (nats a token)"),
    Curve("entropy", "Entropy of the policy", "entropy (nats a token)"),
    Curve("completions/mean_length", "Completion length", "length (tokens)"),
    Curve("clip_ratio", "Clipped tokens", "share of tokens (%)", True),
    Curve("grad_norm", "Gradient norm", "norm before clipping"),
    Curve("frac_reward_zero_std", "Groups without a signal", "share of groups (%)", True),
    Curve("value_loss", "Critic", "value loss"),
)
"""In this order, each where a run has logged it."""

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow is too pale on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8C6D31")
_INK = "#2B2B2B"
_GRID = "#E6E6E6"
_SMOOTH_FROM = 60
_ROUND = [1, 2, 2.5, 5, 10]
_MARKED_TO = 25


def plot_runs(
    runs: str | Path | Sequence[str | Path] | Mapping[str, Sequence[str | Path]],
    path: str | Path,
    *,
    title: str = "",
    curves: Sequence[Curve] = CURVES,
) -> Path:
    """Draw the curves of runs into a PNG.

    Args:
        runs: one run folder, several (a line each, named by folder), or label to the folders of
            its seeds (one line, the mean of the seeds, in a band of one standard deviation).
        path: where the picture goes.
        title: over the whole picture.
        curves: what to draw; those that no run has logged are left out.

    Returns:
        `path`.

    Raises:
        MonitorError: if no run is given or none has logged any of the curves.
    """
    groups = {label: [read_log(f) for f in folders] for label, folders in _groups(runs).items()}
    present = [curve for curve in curves if _is_logged(curve.name, groups)]
    if not present:
        raise MonitorError(
            f"None of the curves {', '.join(c.name for c in curves)} is in the runs "
            f"{', '.join(groups)}; did they finish a step?"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = 1 if len(present) == 1 else 2 if len(present) in (2, 4) else 3
    rows = math.ceil(len(present) / columns)
    # A Figure of its own, without pyplot: no global state, no display, any thread.
    layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.11, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(4.3 * columns, 2.9 * rows + 0.9), layout=layout, dpi=150)
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis, curve in zip(axes, present, strict=False):
        _draw(axis, curve, groups)
    for axis in axes[len(present) :]:
        axis.set_axis_off()
    longest = max(band(logs, curve.name)[0].size for curve in present for logs in groups.values())
    _dress(figure, title, groups, longest)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")
    return path


def band(
    logs: Sequence[list[dict[str, Any]]], name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean and standard deviation over the seeds of one metric.

    Only finite values count; a step that some seeds did not log has the statistics of the others.
    The deviation is that of a sample (divided by n - 1), 0 where there is one value.

    Args:
        logs: the records of every seed.
        name: the metric.

    Returns:
        `[S]` steps, `[S]` means, `[S]` deviations.
    """
    found: dict[int, list[float]] = {}
    for records in logs:
        for step, value in zip(*series(records, name), strict=True):
            if math.isfinite(value):
                found.setdefault(step, []).append(value)
    steps = sorted(found)
    means = [float(np.mean(found[s])) for s in steps]
    spread = [float(np.std(found[s], ddof=1)) if len(found[s]) > 1 else 0.0 for s in steps]
    return np.array(steps, int), np.array(means), np.array(spread)


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """A centred running mean, over what there is near the ends."""
    kernel = np.ones(width)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _groups(runs: Any) -> dict[str, list[str | Path]]:
    if isinstance(runs, str | Path):
        runs = [runs]
    if isinstance(runs, Mapping):
        groups = {str(label): list(folders) for label, folders in runs.items()}
    else:
        names = [Path(folder).resolve().name for folder in runs]
        unique = len(set(names)) == len(names)
        labels = names if unique else [str(folder) for folder in runs]
        groups = {label: [folder] for label, folder in zip(labels, runs, strict=True)}
    if not groups or not all(groups.values()):
        raise MonitorError("There is no run to draw; give at least one run folder a label.")
    return groups


def _is_logged(name: str, groups: Mapping[str, Sequence[list[dict[str, Any]]]]) -> bool:
    return any(band(logs, name)[0].size for logs in groups.values())


def _draw(axis: Any, curve: Curve, groups: Mapping[str, Sequence[list[dict[str, Any]]]]) -> None:
    scale = 100.0 if curve.percent else 1.0
    for position, (label, logs) in enumerate(groups.items()):
        steps, mean, deviation = band(logs, curve.name)
        if not steps.size:
            continue
        color = COLORS[position % len(COLORS)]
        mean, deviation = mean * scale, deviation * scale
        line = mean
        if steps.size >= _SMOOTH_FROM:
            width = 1 + 2 * (steps.size // 40)
            line, deviation = smooth(mean, width), smooth(deviation, width)
            if len(logs) == 1:
                axis.plot(steps, mean, color=color, alpha=0.25, lw=0.9)
        if len(logs) > 1:
            low, high = line - deviation, line + deviation
            axis.fill_between(steps, low, high, color=color, alpha=0.16, lw=0)
        marker = "o" if steps.size <= _MARKED_TO else None
        axis.plot(steps, line, color=color, lw=1.9, marker=marker, ms=3.6, label=label)
        if len(groups) == 1 and curve.percent and marker:
            _name_ends(axis, steps, line, color)
    _dress_axis(axis, curve)


def _name_ends(axis: Any, steps: np.ndarray, values: np.ndarray, color: str) -> None:
    """Write the first and the last value beside their points, inside the frame."""
    for place, align in ((0, "left"), (-1, "right")):
        neighbour = values[1 if place == 0 else -2] if values.size > 1 else values[0]
        below = values[place] < neighbour
        axis.annotate(
            f"{values[place]:.1f}",
            (steps[place], values[place]),
            xytext=(0, -7 if below else 6),
            textcoords="offset points",
            ha=align,
            va="top" if below else "bottom",
            fontsize=8.5,
            fontweight="bold",
            color=color,
        )
    axis.margins(y=0.16)


def _dress_axis(axis: Any, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(curve.title, loc="left", fontsize=10.5, fontweight="bold", color=_INK, pad=8)
    axis.set_ylabel(curve.axis, fontsize=8.5, color=_INK)
    axis.set_xlabel("learner step", fontsize=8.5, color=_INK)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=_ROUND, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=_ROUND))
    axis.grid(True, color=_GRID, lw=0.8)
    axis.set_axisbelow(True)
    axis.margins(x=0.025)
    axis.tick_params(labelsize=8, colors=_INK, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#B0B0B0")


def _dress(figure: Any, title: str, groups: Mapping[str, Sequence[Any]], longest: int) -> None:
    """The title over the picture, and under it what its lines and bands are."""
    from matplotlib.lines import Line2D

    if title:
        figure.suptitle(title, x=0.008, ha="left", fontsize=13.5, fontweight="bold", color=_INK)
    several = max(len(logs) for logs in groups.values()) > 1
    notes = []
    if several:
        notes.append("bands: ± one standard deviation over seeds")
    if longest >= _SMOOTH_FROM:
        notes.append("lines: running means" + ("" if several else ", pale: every step"))
    handles = []
    if several or len(groups) > 1:
        for position, (label, logs) in enumerate(groups.items()):
            seeds = f" ({len(logs)} seeds)" if len(logs) > 1 else ""
            color = COLORS[position % len(COLORS)]
            handles.append(Line2D([], [], color=color, lw=2.4, label=label + seeds))
    if not handles and not notes:
        return
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(len(handles), 5)),
        frameon=False,
        fontsize=9.5,
        title="; ".join(notes) or None,
        title_fontsize=8,
    )
    legend.get_title().set_color("#7A7A7A")
