"""The registry: names for blocks, and what is known of each from its signature."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .contract import BlockInfo, check_words, inspect_block
from .errors import ContractError, DuplicateNameError, ZootomyError, unknown_name
from .slots import _SLOTS
from .slots import slot as find_slot
from .spec import BlockSpec

Function = TypeVar("Function", bound=Callable[..., Any])


_blocks: dict[tuple[str, str], BlockInfo] = {}
_aliases: dict[tuple[str, str], str] = {}


def register(
    slot: str,
    name: str,
    *,
    aliases: Iterable[str] = (),
    paper: str = "",
    needs: Iterable[str] = (),
    metrics: bool = False,
    needs_when: Mapping[str, Mapping[str, tuple[Any, ...]]] | None = None,
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Give a function a name in a slot; the function itself is returned unchanged.

    The signature is checked at once: the slot's inputs by name and in order, then
    keyword-only arguments. Those with a default are hyperparameters, those without are extra
    inputs that the assembly provides.

    Args:
        slot: the slot's name.
        name: the block's name, unique in its slot.
        aliases: other names, e.g. those that peers use.
        paper: the source, e.g. `"arXiv:1707.06347"`.
        needs: what a run must provide for it, e.g. `("critic",)`.
        metrics: whether the function returns `(value, {name: array})`: beside the slot's result
            metrics of the slot's shape, which are averaged and logged under their names.
        needs_when: needs that hold for some values of a hyperparameter alone, e.g.
            `{"logits": {"estimator": ("full",)}}`.
        replace: put it in the place of a block of that name.

    Returns:
        The decorator.

    Raises:
        UnknownNameError: if there is no such slot.
        ContractError: if the signature does not fit the slot, or a name is no name.
        DuplicateNameError: if the name is taken and `replace` is false.
    """
    place = find_slot(slot)
    if place.choices:
        raise ContractError(
            f"Slot {slot!r} takes a word ({', '.join(place.choices)}) and no function."
        )
    check_words(slot, name, aliases=aliases, needs=needs)
    if metrics and not place.logs:
        raise ContractError(
            f"{slot} {name!r}: a block of this slot returns no metrics beside its value"
            + ("; it logs what it puts into TokenLoss.stats." if slot == "policy_loss" else ".")
        )

    def decorate(function: Function) -> Function:
        info = inspect_block(
            place,
            name,
            tuple(aliases),
            paper,
            frozenset(needs),
            needs_when or {},
            function,
            metrics,
        )
        _refuse_duplicates(info, replace)
        if replace:
            _remove(slot, name)
        _blocks[slot, name] = info
        _aliases.update({(slot, alias): name for alias in info.aliases})
        return function

    return decorate


def get(slot: str, name: str) -> Callable[..., Any]:
    """The bare function of that name; call it with arrays.

    Raises:
        UnknownNameError: with the closest names and all names.
    """
    return describe(slot, name).function


def names(slot: str, pattern: str = "*") -> list[str]:
    """The names of a slot's blocks, sorted; `pattern` may hold `*` and `?`."""
    place = find_slot(slot)
    known = place.choices or [name for of, name in _blocks if of == slot]
    return sorted(fnmatch.filter(known, pattern))


def describe(slot: str, name: str) -> BlockInfo:
    """What is known of a block; printing it shows a short page.

    Raises:
        UnknownNameError: with the closest names and all names.
    """
    find_slot(slot)
    key = (slot, _aliases.get((slot, name), name))
    if key not in _blocks:
        raise unknown_name(f"{slot} block", name, names(slot))
    return _blocks[key]


def find(slot: str, name: str) -> str:
    """`file:line` where a block is defined."""
    return describe(slot, name).where


def check_spec(slot: str, spec: BlockSpec) -> BlockSpec:
    """The spec under the block's own name, complete: every value checked and in its type.

    Args:
        slot: the slot the spec is to be put into.
        spec: the block's name or alias, and hyperparameters of the block or of the slot.

    Raises:
        UnknownNameError: for an unknown block or hyperparameter.
        ZootomyError: for a value of another type, or a setting of the slot that is missing.
    """
    place = find_slot(slot)
    info = describe(slot, spec.name)
    known = {**place.parameters, **info.hyperparameters}
    values = {key: entry.default for key, entry in known.items()}
    for key, value in spec.hyperparameters.items():
        if key not in known:
            raise unknown_name(f"hyperparameter of {slot} {info.name!r}:", key, known)
        values[key] = known[key].check(value, f"{slot}.{key}")
    for key, value in values.items():
        if value is ...:
            raise ZootomyError(
                f"{slot} {info.name!r} needs {key!r}: write block({info.name!r}, {key}=...)."
            )
    return BlockSpec(info.name, values)


def bind(slot: str, spec: BlockSpec) -> dict[str, Any]:
    """Every hyperparameter of a block: the spec's values over the defaults, slot settings left out.

    Args:
        slot: the slot's name.
        spec: a checked spec.

    Returns:
        name -> value, to be passed to the function by keyword.
    """
    info = describe(slot, spec.name)
    return {
        name: spec.hyperparameters.get(name, entry.default)
        for name, entry in info.hyperparameters.items()
    }


def setting(slot: str, spec: BlockSpec, name: str) -> Any:
    """A setting of the slot (`coef`, `strategy`, ...) as the spec gives it, or its default."""
    return spec.hyperparameters.get(name, find_slot(slot).parameters[name].default)


def snapshot() -> tuple[dict[Any, Any], ...]:
    """All blocks, aliases and slots, to be put back by `restore`; for tests and plug-ins."""
    return dict(_blocks), dict(_aliases), dict(_SLOTS)


def restore(saved: tuple[dict[Any, Any], ...]) -> None:
    """Put the registrations back as `snapshot` found them."""
    for table, before in zip((_blocks, _aliases, _SLOTS), saved, strict=True):
        table.clear()
        table.update(before)


def _refuse_duplicates(info: BlockInfo, replace: bool) -> None:
    for name in (info.name, *info.aliases):
        key = (info.slot, _aliases.get((info.slot, name), name))
        if key in _blocks and not (replace and key[1] == info.name):
            remedy = "Choose another name"
            if name == info.name == key[1]:
                remedy += ", or pass replace=True"
            raise DuplicateNameError(
                f"{info.slot} {name!r} is registered twice: {_blocks[key].where} and "
                f"{info.where}. {remedy}."
            )


def _remove(slot: str, name: str) -> None:
    old = _blocks.pop((slot, name), None)
    for alias in old.aliases if old else ():
        _aliases.pop((slot, alias), None)
