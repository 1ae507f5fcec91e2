"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a series with eight heights of bars, lowest value to highest.

    More values than places are averaged in equal stretches; a value that is not finite leaves a
    gap; a series without change is drawn at half height.

    Args:
        values: the series, oldest first.
        width: places, at least 1.

    Returns:
        At most `width` characters.

    >>> sparkline([0, 1, 2, 3], 4)
    '▁▃▆█'
    """
    places = [_mean(stretch) for stretch in _stretches(values, width)]
    finite = [value for value in places if value is not None]
    if not finite:
        return " " * len(places)
    low, high = min(finite), max(finite)
    return "".join(" " if value is None else _bar(value, low, high) for value in places)


def _stretches(values: Sequence[float], width: int) -> list[Sequence[float]]:
    count = min(len(values), max(1, width))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    return [values[a:b] for a, b in pairwise(edges)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None


def _bar(value: float, low: float, high: float) -> str:
    if high == low:
        return _BARS[3]
    return _BARS[round((value - low) / (high - low) * (len(_BARS) - 1))]
