"""How long the parts of a step take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .metrics import MonitorError


class Spans:
    """Wall-clock seconds by name, totalled over a step.

    A span within a span counts for both, so the total of the outer one includes the inner one.
    Threads may open spans at the same time; each counts its own seconds. JAX returns before its
    arrays are computed: block on the results inside the span, or the wait falls on a later one.

    Args:
        clock: returns seconds.
        record: also told of every span that ends: name, start by the clock, seconds.

    >>> spans = Spans()
    >>> with spans("rollout"):
    ...     pass
    >>> list(spans.take())
    ['time/rollout']
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        record: Callable[[str, float, float], None] | None = None,
    ):
        self._clock = clock
        self._record = record
        self._totals: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the seconds of a `with` block, also when it raises."""
        if not name or "/" in name:
            raise MonitorError(f"A span's name is one word without '/', got {name!r}.")
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            with self._lock:
                self._totals[name] += seconds
            if self._record is not None:
                self._record(name, start, seconds)

    def take(self) -> dict[str, float]:
        """`time/<name>` to seconds since the last call, which this one resets."""
        with self._lock:
            totals = {f"time/{name}": seconds for name, seconds in self._totals.items()}
            self._totals.clear()
        return totals
