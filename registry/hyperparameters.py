"""Hyperparameters: read from a signature, and values checked against their annotations."""

from __future__ import annotations

import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .documentation import read_documentation
from .errors import ContractError, ZootomyError
from .spec import BlockSpec


@dataclass(frozen=True)
class Hyperparameter:
    """One keyword-only argument with a default.

    Attributes:
        name: the argument's name.
        annotation: its type, e.g. `float`, `float | None`, `Literal["value", "k2"]`.
        default: its default, the only place where it is written; `...` for a setting of a slot
            that must be given.
        meaning: what the docstring says of it, on one line.
    """

    name: str
    annotation: Any
    default: Any
    meaning: str = field(default="", compare=False)

    def check(self, value: Any, where: str) -> Any:
        """`value` in the annotated type, see `check_value`."""
        return check_value(value, self.annotation, where)


def check_value(value: Any, annotation: Any, where: str) -> Any:
    """A value in the annotated type, or an error that says what was expected.

    An integer becomes a float where a float is asked for, a number written as text (`"3e-4"`,
    which YAML reads as a string) becomes that number, a NumPy number becomes one of Python, a
    list becomes a tuple. Nothing else is converted.

    Args:
        value: what was given.
        annotation: the type it should have.
        where: how to name it in the error.

    Returns:
        The value, converted if need be.

    Raises:
        ZootomyError: if it does not fit.
    """
    fitted, ok = _fit(value, annotation)
    if not ok:
        nan = isinstance(value, float) and math.isnan(value)
        kind = "not a number" if nan else type(value).__name__
        raise ZootomyError(f"{where} must be {type_text(annotation)}, got {value!r} ({kind}).")
    return fitted


def hyperparameters(function: Callable[..., Any], label: str) -> dict[str, Hyperparameter]:
    """The hyperparameters of a block: its keyword-only arguments with defaults.

    Args:
        function: the block.
        label: how to name the block in errors.

    Raises:
        ContractError: for a hyperparameter without a type, with one that plain data cannot hold,
            or whose default does not fit it.
    """
    hints = _type_hints(function, label)
    meanings = read_documentation(function).arguments
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            continue
        if parameter.name not in hints:
            raise ContractError(
                f"{label}: hyperparameter {parameter.name!r} has no type; "
                f"write `{parameter.name}: float = ...`."
            )
        entry = Hyperparameter(
            parameter.name,
            hints[parameter.name],
            parameter.default,
            meanings.get(parameter.name, ""),
        )
        if not _is_plain(entry.annotation):
            raise ContractError(
                f"{label}: hyperparameter {parameter.name!r} is of type "
                f"{type_text(entry.annotation)}, which a spec cannot hold; use float, int, bool, "
                f"str, None, Literal[...], tuple[...] or a union of these."
            )
        if not _fit(parameter.default, entry.annotation)[1]:
            raise ContractError(
                f"{label}: the default of {parameter.name!r} is {parameter.default!r}, "
                f"which is not {type_text(entry.annotation)}."
            )
        found[parameter.name] = entry
    return found


def type_text(annotation: Any) -> str:
    """An annotation as a person says it: `float or None`, `'value' or 'k2'`."""
    if annotation is None or annotation is type(None):
        return "None"
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(part) for part in typing.get_args(annotation))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(annotation))
    if annotation is BlockSpec:
        return "a block"
    if origin is Mapping:
        return "a mapping"
    if isinstance(annotation, type) and origin is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _type_hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:
        raise ContractError(
            f"{label}: its types cannot be read ({type(error).__name__}: {error}). Import what "
            f"the signature names, outside of `if TYPE_CHECKING:`."
        ) from error


def _is_plain(annotation: Any) -> bool:
    """Whether values of this type are data that a file can hold and a spec can hash."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return all(_is_plain(part) for part in parts)
    if origin is tuple:
        return all(part is Ellipsis or _is_plain(part) for part in parts)
    return origin is Literal or annotation in (float, int, bool, str, None, type(None))


def _fit(value: Any, annotation: Any) -> tuple[Any, bool]:
    """The value in the annotated type, and whether it fits."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        # A value that is of a type exactly wins over one that has to be converted.
        parts = typing.get_args(annotation)
        for part in sorted(parts, key=lambda part: not _is_exactly(value, part)):
            fitted, ok = _fit(value, part)
            if ok:
                return fitted, True
        return value, False
    if origin is Literal:
        return value, any(
            value == choice and type(value) is type(choice)
            for choice in typing.get_args(annotation)
        )
    if origin is tuple:
        return _fit_tuple(value, typing.get_args(annotation))
    if annotation is Any:
        return value, True
    if origin is Mapping:
        return value, isinstance(value, Mapping)
    if annotation is None or annotation is type(None):
        return value, value is None
    if annotation is float:
        return _fit_float(value)
    if annotation is int:
        return _fit_int(value)
    if isinstance(annotation, type):
        return value, isinstance(value, annotation)
    return value, True


def _is_exactly(value: Any, annotation: Any) -> bool:
    return value is None if annotation is type(None) else type(value) is annotation


def _fit_tuple(value: Any, parts: tuple[Any, ...]) -> tuple[Any, bool]:
    if not isinstance(value, list | tuple):
        return value, False
    if len(parts) == 2 and parts[1] is Ellipsis:
        parts = (parts[0],) * len(value)
    if len(parts) != len(value):
        return value, False
    fitted = [_fit(entry, part) for entry, part in zip(value, parts, strict=True)]
    return tuple(entry for entry, _ in fitted), all(ok for _, ok in fitted)


def _fit_float(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bool):
        return value, False
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value, False
    if isinstance(value, numbers.Real):
        return float(value), not math.isnan(value)
    return value, False


def _fit_int(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bool):
        return value, False
    if isinstance(value, str):
        try:
            return int(value), True
        except ValueError:
            return value, False
    if isinstance(value, numbers.Integral):
        return int(value), True
    return value, False
