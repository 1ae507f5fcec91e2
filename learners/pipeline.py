"""Which batch a step learns from: the one sampled now, or one sampled while the last step learned.

    max_staleness 0:  sample n | learn n | sample n+1 | learn n+1
    max_staleness 1:  sample n | learn n        | learn n+1        |
                               | sample n+1     | sample n+2       |

With 1, batch n+1 is sampled with the weights that step n began with, whichever thread is faster:
the engine is given new weights between two steps only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..monitor import Spans
from ..registry import ZootomyError
from .collect import Collected
from .in_flight import pack_batch, unpack_batch

Collect = Callable[[int, int, Spans], Collected]


def check_staleness(max_staleness: int) -> None:
    """Refuse another staleness than a pipeline has.

    Raises:
        ZootomyError: for what is not 0 or 1.
    """
    if isinstance(max_staleness, bool) or max_staleness not in (0, 1):
        raise ZootomyError(
            f"max_staleness must be 0 (each batch is sampled with the newest weights) or 1 "
            f"(while the step before learns), got {max_staleness!r}."
        )


class Pipeline:
    """Hands out the batch of each step.

    Args:
        collect: `(cursor, step, spans) -> batch`, as of `Collector.collect`.
        max_staleness: updates that a batch may be behind the weights that learn from it, 0 or 1.
        overlaps: whether sampling may run while a step learns; otherwise it is done before, with
            the same weights and the same outcome.

    Raises:
        ZootomyError: for another staleness.
    """

    def __init__(self, collect: Collect, *, max_staleness: int = 0, overlaps: bool = False):
        check_staleness(max_staleness)
        self._collect = collect
        self.max_staleness = max_staleness
        self._overlaps = overlaps
        self._ready: Collected | None = None
        self._error: BaseException | None = None

    def take(self, cursor: int, step: int, spans: Spans) -> Collected:
        """The batch of a step.

        Args:
            cursor: prompts consumed by the steps before.
            step: the step, counted from 0.
            spans: timers, by name.

        Raises:
            ZootomyError: what went wrong in sampling it.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        return self._collect(cursor, step, spans)

    @contextmanager
    def ahead(self, current: Collected, cursor: int, step: int, spans: Spans) -> Iterator[None]:
        """While the body learns from a batch, sample the next one, if the staleness allows it.

        If the body fails, the current batch is that of the next step again.

        Args:
            current: the batch that is learned from.
            cursor: prompts consumed when it is.
            step: of the next batch, counted from 0.
            spans: timers; `wait` is for what of the sampling was not hidden.
        """
        thread = None
        if self.max_staleness:
            thread = threading.Thread(target=self._sample, args=(cursor, step, spans), daemon=True)
            thread.start()
            if not self._overlaps:
                with spans("wait"):
                    thread.join()
        try:
            yield
        except BaseException:
            if thread is not None:
                thread.join()
                self._ready, self._error = current, None
            raise
        if thread is not None:
            with spans("wait"):
                thread.join()

    def state(self) -> dict[str, Any] | None:
        """The batch in waiting as plain data; None if there is none."""
        return None if self._ready is None else pack_batch(self._ready)

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` returned."""
        self._error = None
        self._ready = None if state is None else unpack_batch(state)

    def _sample(self, cursor: int, step: int, spans: Spans) -> None:
        try:
            self._ready = self._collect(cursor, step, spans)
        except BaseException as error:  # it belongs to the step that takes the batch
            self._error = error
