"""What stands in an algorithm's slots: given in any form, kept as checked specs, read as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..registry import (
    BlockSpec,
    UnknownNameError,
    ZootomyError,
    check_spec,
    describe,
    plugin_slots,
    slot,
    unknown_name,
)
from .overrides import as_spec

# Slots that may be empty.
OPTIONAL_SLOTS = ("group_filter", "correction", "value_loss")


def _spec(slot_name: str, given: Any) -> BlockSpec:
    """Any accepted form of a block as a checked spec."""
    spec = as_spec(slot_name, given)
    coefficient = spec.hyperparameters.get("coef")
    if slot_name == "regularizer" and isinstance(coefficient, BlockSpec | Mapping):
        steered = check_spec("controller", as_spec("controller", coefficient))
        spec = spec.replace(coef=steered)
    return check_spec(slot_name, spec)


def one(value: Any) -> BlockSpec:
    """The block in a slot that holds exactly one."""
    assert isinstance(value, BlockSpec)
    return value


def single(slot_name: str, given: Any) -> BlockSpec | None:
    """The block in a slot that holds one; None where it is empty."""
    if slot_name in OPTIONAL_SLOTS and (given is None or given == "none"):
        return None
    return _spec(slot_name, given)


def block_list(slot_name: str, given: Any) -> tuple[BlockSpec, ...]:
    """The blocks in a slot that holds a list of them."""
    if given is None or given == "none":
        return ()
    if isinstance(given, str | BlockSpec | Mapping) or not isinstance(given, Sequence):
        given = (given,)
    specs = tuple(_spec(slot_name, entry) for entry in given)
    twice = sorted({spec.name for spec in specs if [s.name for s in specs].count(spec.name) > 1})
    if twice and slot_name == "regularizer":
        raise ZootomyError(f"regularizer {twice[0]!r} is given twice; add up the coefficients.")
    return specs


def plugged(given: Any) -> tuple[tuple[str, Any], ...]:
    """Blocks for the slots of plug-ins as checked pairs, sorted by slot."""
    places = {place.name: place for place in plugin_slots()}
    found = {}
    for name, value in dict(given).items():
        if name not in places:
            raise UnknownNameError(
                f"{unknown_name('plug-in slot', name, places)} A slot comes with its plug-in: give "
                f"--plugin FILE, or call zootomy.load_plugin."
            )
        if value is None or value == "none":
            continue
        if places[name].choices and value not in places[name].choices:
            raise unknown_name(name, value, places[name].choices)
        found[name] = value if places[name].choices else _spec(name, value)
    return tuple(sorted(found.items()))


def asked_inputs(slot_name: str, spec: BlockSpec) -> tuple[str, ...]:
    """What a block asks for beyond the inputs of a built-in slot, or beside a slot's result."""
    place = slot(slot_name)
    beside = place.inputs[1:] if place.after else ()
    return (*describe(slot_name, spec.name).extras, *beside)


def with_length(spec: BlockSpec, length: int) -> BlockSpec:
    """The block with the generation limit where its `length` was left None."""
    if "length" in spec.hyperparameters and spec.hyperparameters["length"] is None:
        return spec.replace(length=length)
    return spec


def as_plain(spec: BlockSpec) -> dict[str, Any]:
    """A block as a mapping."""
    return {"name": spec.name, **{key: as_data(x) for key, x in spec.hyperparameters.items()}}


def as_data(value: Any) -> Any:
    """A hyperparameter, block or word as plain data."""
    if isinstance(value, BlockSpec):
        return as_plain(value)
    return list(value) if isinstance(value, tuple) else value
