"""Changing an algorithm by dotted names, as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..registry import (
    BlockSpec,
    ZootomyError,
    describe,
    names,
    plugin_slots,
    slot,
    unknown_name,
)

if TYPE_CHECKING:
    from .algorithm import Algorithm


def apply_overrides(algorithm: Algorithm, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an algorithm after some changes, whole slots before single values.

    A slot that gets another block starts from that block's defaults; a slot that is named with
    the block it already holds keeps the values it had.

    Args:
        algorithm: what to start from.
        changes: `slot` -> block(s), or dotted name -> value.

    Returns:
        Field name -> value, to build the new algorithm with.

    Raises:
        ZootomyError: for a name that does not exist or is ambiguous.
    """
    values = {entry.name: algorithm.__dict__[entry.name] for entry in fields(algorithm)}
    plugins = dict(changes.get("plugins", values.pop("plugins")))
    changes = {key: value for key, value in changes.items() if key != "plugins"}
    added = [place.name for place in plugin_slots()]
    values |= {name: plugins.get(name) for name in added}
    for key in changes:
        if key.split(".", 1)[0] not in values:
            raise unknown_name("slot", key.split(".", 1)[0], values)
    for key, value in changes.items():
        if "." not in key and not _same_block(key, values[key], value):
            values[key] = value
    for key, value in changes.items():
        if "." in key:
            name, path = key.split(".", 1)
            values[name] = _change(name, values[name], path, value)
    plugins |= {name: values.pop(name) for name in added}
    return {**values, "plugins": plugins}


def _same_block(slot_name: str, current: Any, given: Any) -> bool:
    """Whether a bare name is that of the block that is there, by its own name or an alias."""
    if not isinstance(current, BlockSpec) or not isinstance(given, str) or given == "none":
        return False
    return describe(slot_name, given).name == current.name


def _change(slot_name: str, current: Any, path: str, value: Any) -> Any:
    """A slot's content with one hyperparameter changed."""
    if current is None or current in ((), "none"):
        raise ZootomyError(
            f"{slot_name}.{path} is set, but {slot_name} holds no block; "
            f"choose one first, e.g. {slot_name}={names(slot_name)[0]!r}."
        )
    if isinstance(current, list | tuple):
        specs = [as_spec(slot_name, entry) for entry in current]
        return _change_one_of(slot_name, specs, path, value)
    if isinstance(current, str | BlockSpec | Mapping) and not slot(slot_name).choices:
        return as_spec(slot_name, current).replace(**{path: value})
    raise ZootomyError(f"{slot_name} has no hyperparameters; {slot_name}.{path} cannot be set.")


def _change_one_of(slot_name: str, specs: list[BlockSpec], path: str, value: Any) -> list[Any]:
    """A list of blocks with one hyperparameter of one of its blocks changed."""
    named, _, rest = path.partition(".")
    if rest:
        name = describe(slot_name, named).name
        wanted = [spec for spec in specs if describe(slot_name, spec.name).name == name]
        if not wanted:
            raise unknown_name(f"block in this {slot_name}:", named, [spec.name for spec in specs])
    else:
        rest = path
        wanted = [spec for spec in specs if rest in _known(slot_name, spec)]
        if not wanted:
            known = {key for spec in specs for key in _known(slot_name, spec)}
            raise unknown_name(f"hyperparameter of {slot_name}:", rest, known)
    if len(wanted) > 1:
        options = " or ".join(f"{slot_name}.{spec.name}.{rest}" for spec in wanted)
        raise ZootomyError(f"{slot_name}.{path} is ambiguous: write {options}.")
    return [_set(slot_name, spec, rest, value) if spec is wanted[0] else spec for spec in specs]


def _set(slot_name: str, spec: BlockSpec, path: str, value: Any) -> BlockSpec:
    """A block with one value changed, or one of the controller that steers its coefficient."""
    name, _, rest = path.partition(".")
    if not rest:
        return spec.replace(**{name: value})
    inner = spec.hyperparameters.get(name)
    if not isinstance(inner, BlockSpec):
        raise ZootomyError(
            f"{slot_name}.{spec.name}.{name} is {inner!r} and no block, so {rest!r} cannot be set."
        )
    return spec.replace(**{name: inner.replace(**{rest: value})})


def _known(slot_name: str, spec: BlockSpec) -> set[str]:
    return {*describe(slot_name, spec.name).hyperparameters, *slot(slot_name).parameters}


def as_spec(slot_name: str, given: Any) -> BlockSpec:
    """Any accepted form of a block as a spec that is not checked yet.

    Raises:
        ZootomyError: for what is no block.
    """
    if isinstance(given, str):
        return BlockSpec(given)
    if isinstance(given, Mapping):
        rest = dict(given)
        name = rest.pop("name", None)
        if not isinstance(name, str):
            raise ZootomyError(
                f"{slot_name}: a block given as a mapping needs a 'name', got {dict(given)!r}."
            )
        return BlockSpec(name, rest)
    if not isinstance(given, BlockSpec):
        raise ZootomyError(
            f"{slot_name} must be a block: a name, block(name, ...) or a mapping with 'name'; "
            f"got {given!r}."
        )
    return given
