"""Trees of frozen dataclasses, such as a run's settings: as plain data, and changed in parts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from jax.sharding import Mesh

from ..clusters import mesh_text
from ..registry import ZootomyError, check_value, unknown_name

Config = TypeVar("Config")


def setting_kinds(kind: type[Any], where: str = "") -> dict[str, Any]:
    """The type of every setting of a tree, by its dotted name."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found |= setting_kinds(hint, f"{where}{name}.")
        else:
            found[f"{where}{name}"] = hint
    return found


@contextlib.contextmanager
def named(where: str, kind: type[Any]) -> Iterator[None]:
    """What a part of a tree says of its settings, it says with their dotted names.

    Args:
        where: the dotted name of the part; empty for the whole tree.
        kind: its dataclass.
    """
    try:
        yield
    except ZootomyError as error:
        said = str(error)
        if not where or re.search(rf"\b{re.escape(where)}\.\w", said):
            raise
        first = re.match(r"\w+", said)
        is_setting = first is not None and first[0] in typing.get_type_hints(kind)
        raise type(error)(f"{where}{'.' if is_setting else ': '}{said}") from error


def with_settings(config: Config, changes: Mapping[str, Any], where: str = "") -> Config:
    """The tree with some settings changed; what is checked is the outcome of all changes.

    Args:
        config: a frozen dataclass whose fields are dataclasses, mappings or plain values.
        changes: dotted name -> value; a name inside a mapping sets that entry.
        where: the dotted name of the place, for errors.

    Raises:
        ZootomyError: as the dataclasses do, with the dotted name of the setting.
    """
    hints = typing.get_type_hints(type(config))
    parts: dict[str, dict[str, Any]] = {}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        first, dot, rest = name.partition(".")
        if dot:
            parts.setdefault(first, {})[rest] = value
        else:
            values[first] = value
    for first, inner in parts.items():
        before, each = vars(config)[first], entry_kind(hints[first])
        path = f"{where}.{first}" if where else first
        if each is not None:
            values[first] = _with_entries(each, before, inner, path)
        elif isinstance(before, Mapping):
            values[first] = {**before, **inner}
        else:
            values[first] = with_settings(before, inner, path)
    with named(where, type(config)):
        return dataclasses.replace(config, **values)  # pyright: ignore[reportArgumentType]


def entry_kind(hint: Any) -> type[Any] | None:
    """The dataclass that the entries of a mapping are, by the mapping's type; None for others."""
    if typing.get_origin(hint) is not Mapping:
        return None
    each = typing.get_args(hint)[1]
    return each if dataclasses.is_dataclass(each) and isinstance(each, type) else None


def _with_entries(
    kind: type[Any], before: Mapping[str, Any], changes: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """A mapping of dataclasses with settings of some entries changed, and entries added."""
    plain = {name: to_plain(entry) for name, entry in before.items()}
    for name, value in changes.items():
        entry, dot, setting = name.partition(".")
        plain[entry] = {**plain.get(entry, {}), setting: value} if dot else value
    changed = {name.partition(".")[0] for name in changes}
    return {
        name: from_plain(kind, entry, f"{where}.{name}") if name in changed else before[name]
        for name, entry in plain.items()
    }


def to_plain(config: Any) -> Any:
    """A config as plain data: mappings, lists, numbers, words."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {
            entry.name: to_plain(getattr(config, entry.name))
            for entry in dataclasses.fields(config)
        }
    if isinstance(config, Mesh):
        return mesh_text(config)
    if isinstance(config, Mapping):
        return {str(key): to_plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_plain(value) for value in config]
    return config


def from_plain(kind: type[Config], data: Any, where: str = "") -> Config:
    """The config of a kind that plain data describes; what is left out has its default.

    Args:
        kind: a dataclass whose fields are dataclasses or plain values.
        data: nested mappings.
        where: the dotted name of the place, for errors.

    Raises:
        UnknownNameError: for a field that does not exist.
        ZootomyError: for a value that does not fit.
    """
    if not isinstance(data, Mapping):
        raise ZootomyError(f"{where or 'The config'} must be a mapping, got {data!r}.")
    hints = typing.get_type_hints(kind)
    fields = {entry.name for entry in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    values = {}
    for key, value in data.items():
        path = f"{where}.{key}" if where else str(key)
        if str(key).partition(".")[0] in fields and "." in str(key):
            first, _, rest = str(key).partition(".")
            raise ZootomyError(f"Settings are nested in a file: {first}: {{{rest}: {value}}}.")
        if key not in fields:
            raise unknown_name(f"setting of {where or 'a run'}:", key, fields)
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[key] = from_plain(hint, value, path)
        elif (each := entry_kind(hint)) is not None:
            if not isinstance(value, Mapping):
                raise ZootomyError(f"{path} must be a mapping of names, got {value!r}.")
            values[key] = {
                str(name): from_plain(each, entry, f"{path}.{name}")
                for name, entry in value.items()
            }
        else:
            values[key] = check_value(value, hint, path)
    with named(where, kind):
        return kind(**values)
