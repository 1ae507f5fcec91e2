"""Progress: one screen in a terminal, one plain line a step anywhere else."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from . import panels
from .samples import Sample

_TIMED_STEPS = 20
_HISTORY = 2000
_WIDE = 118
_MARGIN = 6


class Screen:
    """Shows how a run goes while it goes; a context manager.

    Args:
        title: what is running, e.g. `"grpo on arithmetic, seed 0"`.
        total_steps: learner steps to come, for the bar and the time left.
        start_step: steps done before, for a resumed run.
        console: where to draw; None: the standard output.
        clock: returns seconds.

    >>> import sys
    >>> with Screen("demo", total_steps=2, console=Console(file=sys.stdout)) as screen:
    ...     screen.update(1, {"reward/mean": 0.5})
    demo
    step 1/2  reward 0.500
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        *,
        start_step: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._title = title
        self._total = total_steps
        self._step = start_step
        self._console = console if console is not None else Console()
        self._clock = clock
        self._start = self._last = clock()
        self._seconds: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._compiled = False
        self._history: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_HISTORY))
        self._spans: dict[str, float] = {}
        self._samples: Sequence[Sample] = ()
        self._status = ""
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        self._start = self._last = self._clock()
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=4
            )
            self._live.start()
        else:
            self._line(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        self._status = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def status(self, text: str) -> None:
        """Say what is going on between steps, e.g. `"compiling"`; empty: nothing special."""
        if text and text != self._status and self._live is None:
            self._line(text)
        self._status = text

    def passing(self, text: str) -> None:
        """Say what is going on for a moment, which only a terminal shows; empty: it is over."""
        if self._live is not None:
            self._status = text

    def message(self, text: str) -> None:
        """Leave a line above the screen that stays."""
        self._line(text)

    def update(
        self, step: int, metrics: Mapping[str, float], samples: Sequence[Sample] = ()
    ) -> None:
        """Show a finished step.

        Args:
            step: learner steps finished.
            metrics: as they are logged; `time/<name>` are the parts of the step's time.
            samples: completions to show; none keeps the last ones.
        """
        self._measure(step)
        self._step = step
        for name, value in metrics.items():
            self._history[name].append(value)
        spans = {k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/")}
        # `time/step` is the whole, of which the others are the parts.
        self._spans = {k: v for k, v in spans.items() if k != "step" and v > 0} or self._spans
        self._samples = samples or self._samples
        self._status = ""
        if self._live is None:
            self._line(panels.plain_line(step, self._total, metrics, self.remaining()))

    def remaining(self) -> float | None:
        """Seconds left at the pace of the latest steps; None while there is no pace yet."""
        if not self._seconds or self._step >= self._total:
            return None
        return statistics.median(self._seconds) * (self._total - self._step)

    def _measure(self, step: int) -> None:
        now = self._clock()
        if step > self._step:
            # The first step compiles and says nothing of the pace.
            if self._compiled:
                self._seconds.append((now - self._last) / (step - self._step))
            self._compiled = True
        self._last = now

    def _line(self, text: str) -> None:
        # `print` would take a word between two colons for the name of an emoji.
        self._console.out(text, highlight=False)

    def _render(self) -> RenderableType:
        width = max(20, self._console.width - _MARGIN)
        columns = 2 if self._console.width >= _WIDE else 1
        parts: list[tuple[str, RenderableType]] = []
        if self._status:
            parts.append(("", Spinner("dots", Text(self._status, "yellow"))))
        if any(self._history.get(shown.name) for shown in panels.SHOWN):
            history = {name: list(values) for name, values in self._history.items()}
            parts.append(("", panels.metrics_table(history, columns)))
        if self._spans:
            total = math.fsum(self._spans.values())
            parts.append((f"A step, {total:.2f} s", panels.spans_bar(self._spans, min(width, 100))))
        if self._samples:
            parts.append(("Sample completions", panels.samples_table(self._samples)))
        if not parts:
            parts.append(("", Text("waiting for the first step", "dim")))
        return panels.screen(self._title, self._subtitle(), self._step, self._total, parts)

    def _subtitle(self) -> str:
        remaining = self.remaining()
        left = "" if remaining is None else f" · {panels.duration(remaining)} left"
        elapsed = panels.duration(self._clock() - self._start)
        return f"step {self._step}/{self._total} · {elapsed}{left}"
