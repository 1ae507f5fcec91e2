"""Shapes come from a few buckets, so that a run compiles a handful of programs."""

from __future__ import annotations

from collections.abc import Sequence


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
