"""How a reward function is called: by the names in its own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .types import OPTIONAL, Prompt, RewardFunction, TaskError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, eq=False)
class Arguments:
    """Everything a reward function may ask for."""

    prompts: Sequence[Prompt]
    completions: Sequence[str]
    columns: Mapping[str, Sequence[Any]]
    step: int | None
    tokens: Sequence[Sequence[int]] | None = None
    turns: Sequence[Sequence[int]] | None = None

    def known(self) -> dict[str, Any]:
        """All arguments by name."""
        named = {**self.columns, "prompts": self.prompts, "completions": self.completions}
        optional = {"step": self.step, "tokens": self.tokens, "turns": self.turns}
        return named | {name: values for name, values in optional.items() if values is not None}


@dataclass(frozen=True)
class Plan:
    """What a reward function is given, where these arguments are known.

    Attributes:
        reward: the function.
        first: names of what goes by position.
        named: names of what goes by name.
    """

    reward: RewardFunction
    first: tuple[str, ...]
    named: tuple[str, ...]

    def bind(self, known: Mapping[str, Any]) -> Callable[[], Any]:
        """The function with its arguments; lists, so that no function can change another's."""
        first = [list(known[name]) for name in self.first]
        chosen = {n: known[n] if n == "step" else list(known[n]) for n in self.named}
        return lambda: self.reward.function(*first, **chosen)


def bind(reward: RewardFunction, arguments: Arguments) -> Callable[[], Any]:
    """A reward function with its arguments, ready to call without any; see `plan`."""
    known = arguments.known()
    return plan(reward, known).bind(known)


def plan(reward: RewardFunction, known: Collection[str]) -> Plan:
    """Which arguments a reward function gets.

    `prompts` and `completions` go by name where the function names either of them; else they are
    its first two positional parameters. A function with `**kwargs` gets every column. A parameter
    with a default keeps it when there is no such column.

    Args:
        reward: the function.
        known: names of what it may ask for.

    Raises:
        TaskError: if a parameter without a default names nothing there is.
    """
    parameters = reward.parameters
    positional = _takes_positions(parameters, known)
    first = ("prompts", "completions") if positional else ()
    known = [name for name in known if name not in first]
    rest = parameters[2:] if positional and not _starts_with_star(parameters) else parameters
    for parameter in rest:
        _check(reward, parameter, known)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in rest):
        named = {p.name for p in rest if p.kind in _NAMED}
        chosen = [name for name in known if name not in OPTIONAL or name in named]
    else:
        chosen = [p.name for p in rest if p.kind in _NAMED and p.name in known]
    return Plan(reward, first, tuple(chosen))


def _starts_with_star(parameters: Sequence[inspect.Parameter]) -> bool:
    return bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL


def _takes_positions(parameters: Sequence[inspect.Parameter], known: Collection[str]) -> bool:
    """Whether the first two parameters are prompts and completions under other names."""
    names = [p.name for p in parameters if p.kind in _NAMED]
    if "prompts" in names or "completions" in names:
        return False
    if _starts_with_star(parameters):
        return True
    first = [p for p in parameters[:2] if p.kind in _POSITIONAL]
    return len(first) == 2 and not any(p.name in known or p.name in OPTIONAL for p in first)


def _check(reward: RewardFunction, parameter: inspect.Parameter, known: Collection[str]) -> None:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise TaskError(
            f"Reward function {reward.name!r} takes {parameter.name!r} by position only; columns "
            "are given by name."
        )
    if parameter.name in known or parameter.default is not inspect.Parameter.empty:
        return
    columns = sorted(set(known) - {"prompts", "completions", *OPTIONAL})
    if parameter.name in OPTIONAL:
        raise TaskError(
            f"Reward function {reward.name!r} asks for {parameter.name!r}, but `score` was given "
            f"no {parameter.name}."
        )
    raise TaskError(
        f"Reward function {reward.name!r} asks for the column {parameter.name!r}, which the data "
        f"does not have. Columns: {', '.join(columns) or 'none'}; besides them it may name "
        "prompts, completions, step, tokens and turns."
    )
