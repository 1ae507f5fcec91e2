"""The registry: names for blocks, and what is known of each from its signature."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import ContractError, DuplicateNameError, ZootomyError, unknown_name
from .hyperparameters import Hyperparameter, hyperparameters, type_text
from .slots import Slot
from .slots import slot as find_slot
from .spec import BlockSpec

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class BlockInfo:
    """What the registry knows of a block.

    Attributes:
        slot: the slot it fits.
        name: its name.
        aliases: other names for it.
        function: the bare function.
        summary: the first line of its docstring.
        paper: where it comes from, e.g. `"arXiv:1707.06347"`; empty if it has no paper.
        needs: what a run must provide (`critic`, `groups`, `reference`, `rollout_logp`,
            `whole_batch`, ...).
        extras: the inputs it takes beyond the slot's own.
        hyperparameters: name -> `Hyperparameter`.
    """

    slot: str
    name: str
    aliases: tuple[str, ...]
    function: Callable[..., Any]
    summary: str
    paper: str
    needs: frozenset[str]
    extras: tuple[str, ...]
    hyperparameters: dict[str, Hyperparameter]

    @property
    def where(self) -> str:
        """`file:line` of the function."""
        code = inspect.unwrap(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __str__(self) -> str:
        lines = [f"{self.slot} {self.name}: {self.summary}"]
        if self.aliases:
            lines.append(f"  also called: {', '.join(self.aliases)}")
        if self.paper:
            lines.append(f"  paper: {self.paper}")
        if self.needs:
            lines.append(f"  needs: {', '.join(sorted(self.needs))}")
        lines.extend(
            f"  {entry.name}: {type_text(entry.annotation)} = {entry.default!r}"
            for entry in self.hyperparameters.values()
        )
        lines.append(f"  defined in {self.where}")
        return "\n".join(lines)


_blocks: dict[tuple[str, str], BlockInfo] = {}
_aliases: dict[tuple[str, str], str] = {}


def register(
    slot: str,
    name: str,
    *,
    aliases: Iterable[str] = (),
    paper: str = "",
    needs: Iterable[str] = (),
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
        replace: put it in the place of a block of that name.

    Returns:
        The decorator.

    Raises:
        UnknownNameError: if there is no such slot.
        ContractError: if the signature does not fit the slot.
        DuplicateNameError: if the name is taken and `replace` is false.
    """
    place = find_slot(slot)
    if place.choices:
        raise ContractError(
            f"Slot {slot!r} takes a word ({', '.join(place.choices)}) and no function."
        )

    def decorate(function: Function) -> Function:
        info = _inspect(place, name, tuple(aliases), paper, frozenset(needs), function)
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
    known = {*info.hyperparameters, *place.parameters}
    defaults = {key: value for key, value in place.parameters.items() if value is not ...}
    values = {**defaults, **{key: entry.default for key, entry in info.hyperparameters.items()}}
    for key, value in spec.hyperparameters.items():
        if key not in known:
            raise unknown_name(f"hyperparameter of {slot} {info.name!r}:", key, known)
        entry = info.hyperparameters.get(key)
        values[key] = entry.check(value, f"{slot}.{key}") if entry else value
    for key in place.parameters:
        if key not in values:
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
    return spec.hyperparameters.get(name, find_slot(slot).parameters[name])


def snapshot() -> tuple[dict[tuple[str, str], BlockInfo], dict[tuple[str, str], str]]:
    """All registrations, to be put back by `restore`; for tests and notebooks."""
    return dict(_blocks), dict(_aliases)


def restore(
    saved: tuple[dict[tuple[str, str], BlockInfo], dict[tuple[str, str], str]],
) -> None:
    """Put the registrations back as `snapshot` found them."""
    _blocks.clear()
    _blocks.update(saved[0])
    _aliases.clear()
    _aliases.update(saved[1])


def _inspect(
    place: Slot,
    name: str,
    aliases: tuple[str, ...],
    paper: str,
    needs: frozenset[str],
    function: Callable[..., Any],
) -> BlockInfo:
    """Check the signature against the slot and collect what it says."""
    label = f"{place.name} {name!r} ({function.__module__}.{function.__qualname__})"
    positional, extras = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ContractError(
                f"{label} takes *{parameter.name}, which would swallow typos; "
                f"name every hyperparameter."
            )
        if parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.name)
        elif parameter.default is parameter.empty:
            extras.append(parameter.name)
    if tuple(positional) != place.inputs:
        raise ContractError(
            f"{label} must take ({', '.join((*place.inputs, '*', 'hyperparameters'))}), "
            f"but takes ({', '.join((*positional, '*', '...'))})."
        )
    unknown = [extra for extra in extras if extra not in place.extras]
    if unknown:
        raise ContractError(
            f"{label}: {', '.join(map(repr, unknown))} has no default and is no input that "
            f"{place.name} can have ({', '.join(place.extras) or 'none'}). "
            f"Give it a default to make it a hyperparameter."
        )
    found = hyperparameters(function, label)
    clash = sorted(set(found) & set(place.parameters))
    if clash:
        raise ContractError(
            f"{label}: {clash[0]!r} is a setting of the slot {place.name}; use another name."
        )
    documentation = inspect.getdoc(function) or ""
    summary = documentation.split("\n", 1)[0]
    return BlockInfo(
        place.name, name, aliases, function, summary, paper, needs, tuple(extras), found
    )


def _refuse_duplicates(info: BlockInfo, replace: bool) -> None:
    for name in (info.name, *info.aliases):
        key = (info.slot, _aliases.get((info.slot, name), name))
        if key in _blocks and not (replace and key[1] == info.name):
            raise DuplicateNameError(
                f"{info.slot} {name!r} is registered twice: {_blocks[key].where} and "
                f"{info.where}. Choose another name, or pass replace=True."
            )


def _remove(slot: str, name: str) -> None:
    old = _blocks.pop((slot, name), None)
    for alias in old.aliases if old else ():
        _aliases.pop((slot, alias), None)
