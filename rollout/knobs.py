"""Checks that the configs of the real engines share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import ZootomyError


def whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no integer of at least `least`; None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ZootomyError(f"{name} is {value!r}; expected an integer >= {least}")


def share(name: str, value: Any) -> None:
    """Refuse what is no number in (0, 1]; None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ZootomyError(f"{name} is {value!r}; expected a number in (0, 1]")


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ZootomyError(f"{name} is {value!r}; expected {' or '.join(map(repr, choices))}")


def mapping(name: str, value: Any) -> None:
    """Refuse what is no mapping with names as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ZootomyError(f"{name} is {value!r}; expected a mapping from names to values")


def refuse_taken(where: str, given: Mapping[str, Any], taken: Mapping[str, str]) -> None:
    """Refuse engine arguments that a knob of ours sets.

    Args:
        where: the mapping's dotted name.
        given: arguments passed through.
        taken: engine's argument -> our knob.

    Raises:
        ZootomyError: naming the knob to use instead.
    """
    for name in given:
        if name in taken:
            raise ZootomyError(
                f"{where} sets {name!r}, which {taken[name]} decides; set that one instead"
            )
