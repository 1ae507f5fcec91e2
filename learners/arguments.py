"""From the words of a command line to names and values, where no parser knows the names."""

from __future__ import annotations

import re
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union

import yaml

from ..registry import ZootomyError, check_value, closest

_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")
_SWITCHED = ("true", "false", "none", "null")


def take_dotted(words: list[str], prefixes: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """Split off `--PREFIX[.NAME] VALUE`.

    Values are read as YAML; for a bare prefix, `a,b` is a list of names.

    Args:
        words: the command line.
        prefixes: e.g. the names of the slots.

    Returns:
        The words that are left, and dotted name -> value.

    Raises:
        ZootomyError: for a name without a value or given twice, or a value that is not YAML.
    """
    rest: list[str] = []
    taken: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        key, sign, value = word.partition("=")
        name = _name(key)
        if not key.startswith("--") or not _matches(name, prefixes):
            rest.append(word)
            continue
        if name in taken:
            raise ZootomyError(f"{key} is given twice.")
        taken[name] = _parse(key, value if sign else _next(key, left))
    return rest, taken


def take_named(words: list[str], name: str) -> tuple[list[str], list[str]]:
    """Split off every `--NAME VALUE`.

    Args:
        words: the command line.
        name: without its dashes.

    Returns:
        The words that are left, and the values in order.

    Raises:
        ZootomyError: if a value is missing.
    """
    rest: list[str] = []
    values: list[str] = []
    left = deque(words)
    while left:
        word = left.popleft()
        key, sign, value = word.partition("=")
        if key == f"--{name}":
            values.append(value if sign else _next(key, left))
        else:
            rest.append(word)
    return rest, values


def take_settings(
    words: Sequence[str], kinds: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Split off `--NAME VALUE` of settings whose types are known.

    A switch stands alone, and is turned off as `--model.no-remat`; a tuple takes several words, or
    one with commas; `none` is nothing where that is allowed; an entry of a mapping is written
    `--task.options.terms 3`, and its value is YAML.

    Args:
        words: the command line.
        kinds: dotted name, with underscores -> its type.

    Returns:
        The words that are left, and dotted name -> value.

    Raises:
        ZootomyError: for a name without a value or given twice, or a value that does not fit.
    """
    mappings = [name for name, kind in kinds.items() if typing.get_origin(kind) is Mapping]
    rest: list[str] = []
    taken: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        key, sign, text = word.partition("=")
        name = _name(key)
        given = [text] if sign else []
        if not key.startswith("--"):
            rest.append(word)
            continue
        if _matches(name, tuple(mappings)):
            value = _parse(key, given[0] if sign else _next(key, left))
            if name in mappings:
                raise ZootomyError(
                    f"{key} is set entry by entry, as in {key}.NAME VALUE; got {value!r}."
                )
        elif name in kinds:
            kind = kinds[name]
            value = _read(key, kind, given or _following(key, kind, left))
        elif bool in _members(kinds.get(_positive(name))) and not sign:
            name, value = _positive(name), False
        else:
            rest.append(word)
            continue
        if name in taken:
            raise ZootomyError(f"{key} is given twice.")
        taken[name] = value
    return rest, taken


def refuse_rest(words: Sequence[str], known: Iterable[str]) -> None:
    """Refuse what is left of a command line when all that is known is taken.

    Args:
        words: what is left.
        known: every right name, dotted, with underscores and without dashes in front.

    Raises:
        ZootomyError: naming the first word, and the closest option that exists.
    """
    known = set(known)
    for word in words:
        key = word.partition("=")[0]
        if not key.startswith("--"):
            raise ZootomyError(f"{word!r} belongs to no option; options are written --NAME VALUE.")
        raise ZootomyError(
            f"Unknown option {key}.{_guess(_name(key), known)} `zootomy train --help` lists the "
            f"settings, `zootomy list` the slots."
        )


def refuse_twice(words: list[str]) -> None:
    """Refuse an option that is given twice, of which the first would have no effect.

    Raises:
        ZootomyError: naming it.
    """
    given: set[str] = set()
    for key in (word.partition("=")[0] for word in words if word.startswith("--")):
        if _positive(_name(key)) in given:
            raise ZootomyError(f"{key} is given twice.")
        given.add(_positive(_name(key)))


def _name(key: str) -> str:
    """An option as settings are named: with underscores, and no dashes in front."""
    return key.removeprefix("--").replace("-", "_")


def _positive(name: str) -> str:
    """The name of a switch that may be turned off as `--model.no-remat`."""
    parent, dot, last = name.rpartition(".")
    return f"{parent}{dot}{last.removeprefix('no_')}"


def _guess(name: str, known: set[str]) -> str:
    """A question that names the closest options; the part before the dot may be what is wrong."""
    head, dot, rest = name.partition(".")
    heads = {one.split(".")[0] for one in known}
    if dot and head not in heads:
        close = [f"{first}.{rest}" for first in closest(head, heads)]
    else:
        close = closest(name, known)
    return f" Did you mean {' or '.join(f'--{one}' for one in close)}?" if close else ""


def _members(kind: Any) -> tuple[Any, ...]:
    """The types that a union allows; a type alone is the one."""
    return (
        typing.get_args(kind)
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is Union
        else (kind,)
    )


def _following(key: str, kind: Any, left: deque[str]) -> list[str]:
    """The words that are an option's value, taken from those that are left."""
    if any(typing.get_origin(member) is tuple for member in _members(kind)):
        found = [_next(key, left)]
        while left and not left[0].startswith("--"):
            found.append(left.popleft())
        return found
    if bool in _members(kind):
        return [left.popleft()] if left and left[0].lower() in _SWITCHED else ["true"]
    return [_next(key, left)]


def _read(key: str, kind: Any, texts: list[str]) -> Any:
    """An option's value, of the type that its setting has."""
    members = _members(kind)
    for member in members:
        if typing.get_origin(member) is tuple:
            element = typing.get_args(member)[0]
            parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
            return tuple(_read(key, element, [part]) for part in parts)
    (text,) = texts
    if type(None) in members and text.lower() in ("none", "null"):
        return None
    words = str in members or any(typing.get_origin(member) is Literal for member in members)
    return check_value(text if words else _parse(key, text), kind, _name(key))


def _next(key: str, left: deque[str]) -> str:
    value = left.popleft() if left else "--"
    if value.startswith("--"):
        raise ZootomyError(f"{key} needs a value, as in {key} VALUE.")
    return value


def _matches(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _parse(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ZootomyError(f"{key} {text!r} is not YAML: {error}") from error
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        # YAML of 2005 takes 1e-4, without a point, for text.
        return float(value)
    if isinstance(value, str) and "," in value and "." not in key:
        return [part.strip() for part in value.split(",")]
    return value
