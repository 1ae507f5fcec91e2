"""The answer of one reward function: numbers, and what it did wrong."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from .parts import Parts

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One function's `[N]` values (NaN where none), `[N]` failures, and the latest in words.

    `parts` holds N arrays `[T_n]` where the function gives numbers for tokens or turns.
    """

    values: np.ndarray
    failed: np.ndarray
    error: str | None
    parts: list[np.ndarray]


def call_reward(
    name: str,
    call: Callable[[], Any],
    count: int,
    parts: Parts | None = None,
    *,
    first: int = 0,
) -> Outcome:
    """What a reward function says, with everything it does wrong as a failure.

    Args:
        name: of the function.
        call: the function with its arguments.
        count: how many completions it was asked about.
        parts: where its numbers stand, if it gives them for tokens or turns.
        first: number of the first completion, for errors.
    """
    nothing = np.full(count, np.nan, np.float32)
    everything = np.ones(count, bool)
    zeros = [np.zeros(length, np.float32) for length in parts.lengths] if parts else []
    try:
        returned = call()
    except Exception as error:
        return Outcome(nothing, everything, f"reward function {name!r} {_raised(error)}", zeros)
    problem = _shape_problem(returned, count, "numbers" if parts is None else "lists of numbers")
    if problem:
        return Outcome(nothing, everything, f"reward function {name!r} returned {problem}", zeros)
    values, failed, error = nothing, np.zeros(count, bool), None
    for position, item in enumerate(returned):
        if item is None:
            continue
        problem = None
        if parts is not None and not isinstance(item, Exception):
            found = parts.read(item, position, _as_float32)
            if isinstance(found, str):
                value, problem = None, found
            else:
                zeros[position], value = found, _as_float32(found.sum(dtype=np.float64))
        else:
            value = _as_float32(item)
        if value is None or not math.isfinite(value):
            failed[position] = True
            problem = problem or f"{_bad_item(item)} for completion {first + position}"
            error = f"reward function {name!r} {problem}"
        else:
            values[position] = value
    return Outcome(values, failed, error, zeros)


def _shape_problem(returned: Any, count: int, kind: str) -> str | None:
    """What is wrong with the whole answer of a reward function, or None."""
    expected = f"expected a list of {count} {kind} or Nones, one a completion"
    if not isinstance(returned, list) and _as_float32(returned) is not None:
        return f"the bare number {returned!r}; {expected}"
    unordered = isinstance(returned, str | bytes | Mapping | Set)
    if unordered or not (isinstance(returned, Sized) and isinstance(returned, Iterable)):
        return f"a {type(returned).__name__}; {expected}"
    if len(returned) != count:
        return f"{len(returned)} values for {count} completions; {expected}"
    return None


def _raised(error: Exception) -> str:
    """An exception in words, with the place it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"raised {type(error).__name__}: {error}{place}"


def _bad_item(item: Any) -> str:
    if isinstance(item, Exception):
        return _raised(item).replace("raised", "reported", 1)
    return f"returned {item!r}"


def _as_float32(item: Any) -> float | None:
    """A Python, NumPy or JAX scalar as a float32 value; None if it is no real number."""
    if isinstance(item, float) and abs(item) <= _LARGEST:
        return float(np.float32(item))  # What most functions give, without the detours below.
    if isinstance(item, str | bytes | Exception):
        return None
    try:
        array = np.asarray(item)
        # V: bfloat16, which NumPy knows only by its size.
        if array.ndim != 0 or array.dtype.kind not in "biufV":
            return None
        with np.errstate(over="ignore"):
            return float(np.float32(float(item)))
    except (TypeError, ValueError, OverflowError):
        return None
