"""Shapes come from a few buckets, so that a run compiles a handful of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_PREFILL = 256  # tokens; products of fewer take nearly as long


def ladder(first: int, last: int) -> tuple[int, ...]:
    """Doubling steps from `first`, ended by `last` itself.

    A step above two thirds of `last` is left out: it saves less than its program costs.

    >>> ladder(16, 100)
    (16, 32, 64, 100)
    >>> ladder(64, 80)
    (80,)
    """
    steps = []
    while 3 * first <= 2 * last:
        steps.append(first)
        first *= 2
    return (*steps, last)


def slot_ladder(last: int) -> tuple[int, ...]:
    """1, 2, 4, 6, 8, 12, 16, 24, ... up to `last` itself: at most a third of the slots is idle.

    >>> slot_ladder(20)
    (1, 2, 4, 6, 8, 12, 16, 20)
    """
    steps = {1, 2, last}
    power = 4
    while power < last:
        steps |= {power, power * 3 // 2}
        power *= 2
    return tuple(sorted(step for step in steps if step <= last))


def fit(size: int, steps: Sequence[int]) -> int:
    """The smallest step that holds `size`; the last one if none does."""
    return next((step for step in steps if step >= size), steps[-1])


def power_of_two(size: int) -> int:
    """The largest power of two up to `size`, 0 for 0.

    >>> [power_of_two(n) for n in (0, 1, 7, 8)]
    [0, 1, 4, 8]
    """
    return 1 << (size.bit_length() - 1) if size else 0


class Prefill(NamedTuple):
    """How much of prompts is read in one pass.

    Attributes:
        tokens: at most, padding included.
        pairs: of a query and a key, of which a pass should score no more; None: any number.
    """

    tokens: int
    pairs: int | None = None

    def budget(self, width: int) -> int:
        """Tokens of prompts of a width, padding included.

        >>> Prefill(8192, pairs=1_000_000).budget(500)
        2000
        """
        if self.pairs is None:
            return self.tokens
        return min(self.tokens, max(LEAST_PREFILL, self.pairs // width))
