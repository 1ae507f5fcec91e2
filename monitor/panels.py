"""What the progress screen shows, as rich renderables made from plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .samples import Sample
from .sparkline import sparkline


class Shown(NamedTuple):
    """A metric on the screen: its name in the log, in words, and how its number is written."""

    name: str
    label: str
    format: str
    style: str


SHOWN = (
    Shown("reward/mean", "reward", ".3f", "bold green"),
    Shown("completions/invalid", "without a reward", ".1%", "bold red"),
    Shown("eval/accuracy", "held-out accuracy", ".1%", "bold cyan"),
    Shown("kl", "kl to reference", ".4f", "magenta"),
    Shown("entropy", "entropy (nats)", ".3f", "yellow"),
    Shown("clip_ratio", "clipped tokens", ".2%", "red"),
    Shown("grad_norm", "gradient norm", ".3f", "blue"),
    Shown("completions/mean_length", "length (tokens)", ".1f", "white"),
    Shown("completions/clipped_ratio", "cut at the limit", ".1%", "white"),
    Shown("frac_reward_zero_std", "groups without signal", ".1%", "white"),
    Shown("policy_loss", "policy loss", ".4f", "blue"),
    Shown("value_loss", "value loss", ".4f", "blue"),
    Shown("warmup/loss", "warm-up loss", ".4f", "blue"),
    Shown("lr", "learning rate", ".2e", "white"),
    Shown("tokens_per_second", "tokens a second", ",.0f", "white"),
)
"""In this order, each where it has been logged."""

# No news while they are 0.
_TROUBLE = ("completions/invalid",)

_SPAN_STYLES = ("cyan", "green", "yellow", "magenta", "blue", "red", "white")
_SPARK_WIDTH = 24
_TEXT_LIMIT = 400


def number(value: float, spec: str) -> str:
    """A number in its format, or what it is instead of a number; what rounds to 0 has no sign."""
    return format(value, f"z{spec}") if math.isfinite(value) else str(value)


def duration(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plain_line(step: int, total: int, metrics: Mapping[str, float], remaining: float | None) -> str:
    """One step in one line, for logs and pipes."""
    parts = [f"step {step}/{total}"]
    parts += [
        f"{s.label} {number(metrics[s.name], s.format)}"
        for s in SHOWN
        if s.name in metrics and (metrics[s.name] or s.name not in _TROUBLE)
    ]
    if remaining is not None:
        parts.append(f"left {duration(remaining)}")
    return "  ".join(parts)


def metrics_table(history: Mapping[str, Sequence[float]], columns: int) -> Table:
    """Label, latest value and curve of every shown metric, several a row."""
    table = Table.grid(padding=(0, 1), expand=False)
    present = [
        shown
        for shown in SHOWN
        if history.get(shown.name) and (any(history[shown.name]) or shown.name not in _TROUBLE)
    ]
    rows = math.ceil(len(present) / columns)
    for _ in range(columns):
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True, min_width=9)
        table.add_column(no_wrap=True, width=_SPARK_WIDTH + 2)
    for row in range(rows):
        cells: list[RenderableType] = []
        for shown in present[row::rows]:
            values = history[shown.name]
            cells += [
                Text(shown.label, "dim"),
                Text(number(values[-1], shown.format), shown.style),
                Text(sparkline(values, _SPARK_WIDTH), shown.style),
            ]
        table.add_row(*cells)
    return table


def spans_bar(spans: Mapping[str, float], width: int) -> Text:
    """The parts of a step's time as one bar, with their names and seconds under it."""
    total = sum(spans.values())
    bar, legend = Text(), Text()
    for position, (name, seconds) in enumerate(sorted(spans.items(), key=lambda item: -item[1])):
        style = _SPAN_STYLES[position % len(_SPAN_STYLES)]
        share = seconds / total if total > 0 else 0.0
        bar.append("█" * round(share * width), style)
        legend.append("■ ", style).append(f"{name} {seconds:.2f} s   ", "dim")
    return Text.assemble(bar, "\n", legend)


def samples_table(samples: Sequence[Sample]) -> Table:
    """Prompts, completions and rewards; control characters shown as what they are."""
    table = Table(box=None, padding=(0, 1), expand=True, header_style="dim")
    table.add_column("prompt", ratio=3, overflow="ellipsis", no_wrap=True)
    table.add_column("completion", ratio=4, overflow="ellipsis", no_wrap=True)
    table.add_column("answer", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    for sample in samples:
        reward = "invalid" if sample.reward is None else f"{sample.reward:.2f}"
        good = sample.reward is not None and sample.reward > 0
        table.add_row(
            Text(_visible(sample.prompt)),
            Text(_visible(sample.completion), "green" if good else "default"),
            Text(_visible(sample.answer or ""), "dim"),
            Text(reward, "green" if good else "red"),
        )
    return table


def screen(
    title: str,
    subtitle: str,
    done: int,
    total: int,
    parts: Sequence[tuple[str, RenderableType]],
) -> Panel:
    """The whole screen: a progress bar and the parts under their headings."""
    # The bar does not end its line: the first empty text does.
    bar = ProgressBar(total=max(1, total), completed=done)
    rows: list[RenderableType] = [bar, Text(), Text()]
    for heading, part in parts:
        if heading:
            rows.append(Text(heading, "bold"))
        rows += [part, Text()]
    return Panel(
        Group(*rows[:-1]),
        title=Text(title, "bold"),
        title_align="left",
        subtitle=Text(subtitle),
        subtitle_align="right",
        border_style="cyan",
        padding=(1, 2),
    )


def _visible(text: str) -> str:
    """One line without terminal control codes: a model's output must not drive the terminal."""
    cut = text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in cut)
