"""From the words of a command line to names and values, where no parser knows the names."""

from __future__ import annotations

import re
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import yaml

from ..registry import ZootomyError, check_value, closest
from .settings import entry_kind

# Numbers that YAML of 2005 reads otherwise: 1e-4, without a point, as text, and 010 as 8.
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")
_ZEROS = re.compile(r"[+-]?0[0-9]+")
_SWITCHED = {"true": True, "false": False}
_NOTHING = ("none", "null")


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
            values.append(value if value else _next(key, deque() if sign else left))
        else:
            rest.append(word)
    return rest, values


def take_settings(
    words: Sequence[str], kinds: Mapping[str, Any], *, switches_alone: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Split off `--NAME VALUE` of settings whose types are known.

    A switch stands alone, and is turned off as `--model.no-remat`; a tuple takes several words, or
    one with commas; `none` is nothing where that is allowed; an entry of a mapping is written
    `--task.options.terms 3`, and its value is YAML.

    Args:
        words: the command line.
        kinds: dotted name, with underscores -> its type.
        switches_alone: where words without a name follow, which are not the value of a switch.

    Returns:
        The words that are left, and dotted name -> value.

    Raises:
        ZootomyError: for a name without a value or given twice, or a value that does not fit.
    """
    each = {name: entry_kind(kind) for name, kind in kinds.items() if _is_mapping(kind)}
    opened = tuple(name for name, kind in each.items() if kind is None)
    parted = tuple(name for name, kind in each.items() if kind is not None)
    rest: list[str] = []
    taken: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        key, sign, text = word.partition("=")
        name = _name(key, parted)
        given = [text] if sign else []
        if not key.startswith("--"):
            rest.append(word)
            continue
        if _matches(name, opened):
            value = _parse(key, given[0] if sign else _next(key, left))
            if name in opened:
                raise ZootomyError(
                    f"{key} is set entry by entry, as in {key}.NAME VALUE; got {value!r}."
                )
        elif (kind := _kind_of(name, kinds, each)) is not None:
            if not sign:
                alone = switches_alone and bool in _members(kind)
                given = ["true"] if alone else _following(key, kind, left)
            value = _read(key, kind, given)
        elif bool in _members(_kind_of(_positive(name), kinds, each)) and not sign:
            name, value = _positive(name), False
        elif _matches(name, parted):
            mapping = name.partition(".")[0]
            fields = ", ".join(typing.get_type_hints(each[mapping]))
            raise ZootomyError(f"--{mapping} is set as --{mapping}.NAME.SETTING, of {fields}.")
        else:
            rest.append(word)
            continue
        if name in taken:
            raise ZootomyError(f"{key} is given twice.")
        taken[name] = value
    return rest, taken


def _is_mapping(kind: Any) -> bool:
    return typing.get_origin(kind) is Mapping


def _kind_of(name: str, kinds: Mapping[str, Any], each: Mapping[str, Any]) -> Any:
    """The type of a setting, also of one such as `reward_models.NAME.clip`; None: there is none."""
    mapping, _, rest = name.partition(".")
    entry, _, field = rest.partition(".")
    if entry and field and each.get(mapping) is not None:
        return typing.get_type_hints(each[mapping]).get(field)
    return None if name in each else kinds.get(name)


def refuse_rest(words: Sequence[str], known: Iterable[str], where: str) -> None:
    """Refuse what is left of a command line when all that is known is taken.

    Args:
        words: what is left.
        known: every right name, dotted, with underscores and without dashes in front.
        where: a sentence on where they are listed.

    Raises:
        ZootomyError: naming the first word, and the closest option that exists.
    """
    known = set(known)
    for word in words:
        key = word.partition("=")[0]
        if not key.startswith("--"):
            raise ZootomyError(f"{word!r} belongs to no option; options are written --NAME VALUE.")
        raise ZootomyError(f"Unknown option {key}.{_guess(_name(key), known)} {where}")


def _name(key: str, parted: tuple[str, ...] = ()) -> str:
    """An option as settings are named: with underscores, and no dashes in front.

    The names of entries in the mappings `parted` stay as they are.
    """
    word = key.removeprefix("--")
    name = word.replace("-", "_")
    if not _matches(name, parted):
        return name
    return ".".join([name.split(".")[0], *word.split(".")[1:2], *name.split(".")[2:]])


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
    union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is Union
    return typing.get_args(kind) if union else (kind,)


def _following(key: str, kind: Any, left: deque[str]) -> list[str]:
    """The words that are an option's value, taken from those that are left."""
    if any(typing.get_origin(member) is tuple for member in _members(kind)):
        found = [_next(key, left)]
        while left and not left[0].startswith("--"):
            found.append(left.popleft())
        return found
    if bool in _members(kind):
        return [left.popleft()] if left and not left[0].startswith("--") else ["true"]
    return [_next(key, left)]


def _read(key: str, kind: Any, texts: list[str]) -> Any:
    """An option's value, of the type that its setting has."""
    members = _members(kind)
    for member in members:
        if typing.get_origin(member) is tuple:
            element = typing.get_args(member)[0]
            parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
            if len(parts) == 1 and parts[0].lower() in _NOTHING:
                return ()
            return tuple(_read(key, element, [part]) for part in parts)
    (text,) = texts
    word = text.strip().lower()
    if word in _NOTHING and type(None) in members:
        return None
    if not word and str not in members:
        raise ZootomyError(f"{key} needs a value, as in {key} VALUE.")
    if bool in members and word in _SWITCHED:
        return _SWITCHED[word]
    # Numbers are read by `check_value`, in base 10.
    return check_value(text, kind, _name(key))


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
        return float(value)
    if _ZEROS.fullmatch(text):
        return int(text)
    if isinstance(value, str) and "," in value and "." not in key:
        return [part.strip() for part in value.split(",")]
    return value
