"""The contract of a block: its signature, checked against the slot and read for what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .documentation import Documentation, read_documentation
from .errors import ContractError, unknown_name
from .hyperparameters import Hyperparameter, hyperparameters, type_text
from .slots import Slot


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
        needs_when: further needs, each with the values of a hyperparameter that bring it along.
        extras: the inputs it takes beyond the slot's own.
        hyperparameters: name -> `Hyperparameter`.
        logs: whether it returns metrics beside its value.
    """

    slot: str
    name: str
    aliases: tuple[str, ...]
    function: Callable[..., Any]
    summary: str
    paper: str
    needs: frozenset[str]
    needs_when: Mapping[str, Mapping[str, tuple[Any, ...]]]
    extras: tuple[str, ...]
    hyperparameters: dict[str, Hyperparameter]
    logs: bool = False

    @property
    def documentation(self) -> Documentation:
        """The parts of its docstring: formula, remarks, arguments, source."""
        return read_documentation(self.function)

    @property
    def where(self) -> str:
        """`file:line` of the function."""
        code = inspect.unwrap(self.function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def needs_with(self, values: Mapping[str, Any]) -> frozenset[str]:
        """What a run must provide where the hyperparameters have these values, or defaults."""
        found = set(self.needs)
        for need, conditions in self.needs_when.items():
            for name, at in conditions.items():
                if values.get(name, self.hyperparameters[name].default) in at:
                    found.add(need)
        return frozenset(found)

    @property
    def needs_lines(self) -> list[str]:
        """The needs as text, those that depend on a hyperparameter with its values."""
        lines = sorted(self.needs)
        for need, conditions in self.needs_when.items():
            for name, at in conditions.items():
                values = " or ".join(map(repr, at))
                lines.append(f"{need} where {name} is {values}")
        return lines

    def __str__(self) -> str:
        lines = [f"{self.slot} {self.name}: {self.summary}"]
        if self.aliases:
            lines.append(f"  also called: {', '.join(self.aliases)}")
        if self.paper:
            lines.append(f"  paper: {self.paper}")
        if self.needs_lines:
            lines.append(f"  needs: {', '.join(self.needs_lines)}")
        lines.extend(f"      {line}" for line in self.documentation.formula.split("\n") if line)
        for entry in self.hyperparameters.values():
            line = f"  {entry.name}: {type_text(entry.annotation)} = {entry.default!r}"
            lines.append(f"{line}   {entry.meaning}".rstrip())
        lines.append(f"  defined in {self.where}")
        return "\n".join(lines)


def check_words(
    slot: str, name: str, *, aliases: Iterable[str] = (), needs: Iterable[str] = ()
) -> None:
    """Refuse what is no name: dots part a name from its hyperparameters, a `+` from a correction.

    A bare string in place of a tuple would count as one name a letter.
    """
    for what, words in (("aliases", aliases), ("needs", needs)):
        if isinstance(words, str):
            raise ContractError(
                f"{slot} {name!r}: {what} must be a tuple, got {words!r}; write ({words!r},)."
            )
    for word in (name, *aliases):
        if not isinstance(word, str) or not word or set(word) & set(".+ ="):
            raise ContractError(
                f"{slot}: {word!r} is no name for a block; use a word without '.', '+', '=' and "
                f"spaces."
            )


def inspect_block(
    place: Slot,
    name: str,
    aliases: tuple[str, ...],
    paper: str,
    needs: frozenset[str],
    needs_when: Mapping[str, Mapping[str, tuple[Any, ...]]],
    function: Callable[..., Any],
    logs: bool = False,
) -> BlockInfo:
    """Check the signature against the slot and collect what it says."""
    if not inspect.isfunction(inspect.unwrap(function)):
        raise ContractError(f"{place.name} {name!r} must be a function, got {function!r}.")
    label = f"{place.name} {name!r} ({function.__module__}.{function.__qualname__})"
    positional, extras = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise ContractError(
                f"{label} takes {stars}{parameter.name}, which would swallow typos; "
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
    if "name" in found:
        raise ContractError(
            f"{label}: a hyperparameter cannot be called 'name', which names the block in a spec."
        )
    for need, conditions in needs_when.items():
        for key, values in conditions.items():
            if key not in found:
                raise unknown_name(f"hyperparameter of {label} in needs_when:", key, found)
            for value in values:
                found[key].check(value, f"{label}: needs_when {need!r}, {key}")
    summary = read_documentation(function).summary
    return BlockInfo(
        place.name,
        name,
        aliases,
        function,
        summary,
        paper,
        needs,
        needs_when,
        tuple(extras),
        found,
        logs,
    )
