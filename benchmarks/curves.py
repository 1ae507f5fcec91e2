"""How cost grows with group size, prompts, completion length, vocabulary and depth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cases
import counts
import numpy as np
from cases import COMPLETION, GROUP, PROMPT, PROMPTS
from children import Child, PeerError
from context import Bench
from rows import OURS

MEASURES = ("generation", "log-prob pass", "training step")


@dataclass(frozen=True)
class Point:
    """Sizes at which cost is measured."""

    prompts: int = PROMPTS
    group: int = GROUP
    completion: int = COMPLETION
    vocab: int = cases.SMALL_VOCAB
    layers: int = cases.SHARED.layers

    def flops(self) -> dict[str, int]:
        """Model FLOPs of each measure."""
        size = cases.shape(self.vocab, self.layers)
        rows = self.prompts * self.group
        groups = [(PROMPT, [self.completion] * self.group)] * self.prompts
        work = counts.generation(size, groups)
        lengths = [(PROMPT, self.completion)] * rows
        values = (
            work.prefill_flops + work.decode_flops,
            counts.logp_flops(size, lengths),
            counts.train_flops(size, lengths),
        )
        return dict(zip(MEASURES, values, strict=True))


AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "group size": ("group", (2, 4, 8, 16)),
    "prompts": ("prompts", (4, 8, 16, 32)),
    "completion length": ("completion", (32, 64, 128, 256)),
    "vocabulary": ("vocab", (512, 2048, 8192, 32_768)),
    "layers": ("layers", (2, 4, 8, 16)),
}


def measure(bench: Bench, *, points: int, rounds: int) -> dict[str, Any]:
    """Seconds of each measure along each axis.

    Args:
        bench: the run.
        points: how many of an axis, the smallest first.
        rounds: how often; the median counts.

    Returns:
        axis -> `{"sizes": [...], measure: {"seconds": [...], "flops": [...], "slope": ...}}`.
    """
    known: dict[Point, dict[str, float]] = {}
    found: dict[str, Any] = {}
    for axis, (field, sizes) in AXES.items():
        sizes = sizes[:points]
        line = [replace(Point(), **{field: size}) for size in sizes]
        for point in line:
            if point not in known:
                bench.say(f"    {axis} {vars(point)[field]}")
                known[point] = _seconds(bench, point, rounds)
        found[axis] = {"sizes": list(sizes)}
        for name in MEASURES:
            seconds = [known[point][name] for point in line]
            flops = [point.flops()[name] for point in line]
            found[axis][name] = {
                "seconds": seconds,
                "flops": flops,
                "exponent": exponent(sizes, seconds),
                "counted": exponent(sizes, flops),
            }
    return found


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size at the upper end: of the last two doublings.

    Constant parts die out only there, so that it shows how cost will go on growing.

    >>> exponent([1, 2, 4], [3, 6, 12])
    1.0
    """
    x, y = np.log(np.asarray(sizes[-3:], float)), np.log(np.asarray(costs[-3:], float))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def table(found: dict[str, Any]) -> str:
    """The exponents as Markdown, what was measured beside what the counts say."""
    lines = [
        "| cost against | " + " | ".join(MEASURES) + " |",
        "|---|" + "---|" * len(MEASURES),
    ]
    for axis, line in found.items():
        entries = [
            f"{line[name]['exponent']:.2f} ({line[name]['counted']:.2f})" for name in MEASURES
        ]
        lines.append(f"| {axis} | " + " | ".join(entries) + " |")
    return "\n".join(lines) + "\n"


def plot(found: dict[str, Any], path: Path) -> None:
    """The curves, a panel an axis; dashed: the counted FLOPs, through the first point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(3.1 * len(found), 3.3), sharey=True)
    for panel, (axis, line) in zip(np.atleast_1d(panels), found.items(), strict=True):
        for name in MEASURES:
            seconds, flops = line[name]["seconds"], np.asarray(line[name]["flops"], float)
            (curve,) = panel.loglog(line["sizes"], seconds, marker="o", markersize=4, label=name)
            panel.loglog(
                line["sizes"],
                seconds[0] * flops / flops[0],
                "--",
                color=curve.get_color(),
                alpha=0.5,
            )
        panel.set_xlabel(axis)
        panel.set_xticks(line["sizes"], [f"{size:,}" for size in line["sizes"]], fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    np.atleast_1d(panels)[0].set_ylabel("seconds")
    np.atleast_1d(panels)[0].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _seconds(bench: Bench, point: Point, rounds: int) -> dict[str, float]:
    """The median of each measure at one point, in a process of its own; NaN where it fails."""
    cache = str(bench.work.parent / "programs")
    with bench.children.group() as children:
        child = children.start(OURS)
        try:
            model = bench.model(cases.shape(point.vocab, point.layers))
            child.ask("setup", model=model, cache=cache)
            batch = bench.batch(point.vocab, point.prompts, point.group, point.completion)
            generate = {
                "do": "generate",
                "prompts": bench.prompts(point.vocab, point.prompts),
                "group": point.group,
                "new_tokens": point.completion,
            }
            asked = (
                generate,
                {"do": "logps", "batch": str(batch.path)},
                {"do": "train_step", "batch": str(batch.path)},
            )
            return {
                name: _median(child, request, rounds)
                for name, request in zip(MEASURES, asked, strict=True)
            }
        except PeerError as error:
            bench.say(f"    failed: {error}")
            return dict.fromkeys(MEASURES, float("nan"))


def _median(child: Child, request: dict[str, Any], rounds: int) -> float:
    child.ask(**request)
    return statistics.median(child.ask(**request)["seconds"] for _ in range(rounds))
