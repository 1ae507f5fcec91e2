"""Trees of frozen dataclasses, such as a run's settings: as plain data, and changed in parts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
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


def with_settings(config: Config, changes: Mapping[str, Any]) -> Config:
    """The tree with some settings changed; what is checked is the outcome of all changes.

    Args:
        config: a frozen dataclass whose fields are dataclasses, mappings or plain values.
        changes: dotted name -> value; a name inside a mapping sets that entry.

    Raises:
        ZootomyError: as the dataclasses do.
    """
    parts: dict[str, dict[str, Any]] = {}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        first, dot, rest = name.partition(".")
        if dot:
            parts.setdefault(first, {})[rest] = value
        else:
            values[first] = value
    for first, inner in parts.items():
        before = vars(config)[first]
        entries = isinstance(before, Mapping)
        values[first] = {**before, **inner} if entries else with_settings(before, inner)
    return dataclasses.replace(config, **values)  # pyright: ignore[reportArgumentType]


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
        if key not in fields:
            raise unknown_name(f"setting of {where or 'a run'}:", key, fields)
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[key] = from_plain(hint, value, path)
        else:
            values[key] = check_value(value, hint, path)
    return kind(**values)
