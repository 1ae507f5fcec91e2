"""How a reward function is called: by the names in its own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
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
        """All arguments by name; lists, so that no function can change another's."""
        named: dict[str, Any] = {name: list(values) for name, values in self.columns.items()}
        named["prompts"] = list(self.prompts)
        named["completions"] = list(self.completions)
        if self.step is not None:
            named["step"] = self.step
        for name, values in (("tokens", self.tokens), ("turns", self.turns)):
            if values is not None:
                named[name] = list(values)
        return named


def bind(reward: RewardFunction, arguments: Arguments) -> Callable[[], Any]:
    """A reward function with its arguments, ready to call.

    `prompts` and `completions` go by name where the function names either of them; else they are
    its first two positional parameters. A function with `**kwargs` gets every column. A parameter
    with a default keeps it when there is no such column.

    Args:
        reward: the function.
        arguments: what it may ask for.

    Returns:
        A call without arguments.

    Raises:
        TaskError: if a parameter without a default names nothing there is.
    """
    parameters = reward.parameters
    known = arguments.known()
    positional = _takes_positions(parameters, known)
    first = [known.pop("prompts"), known.pop("completions")] if positional else []
    rest = parameters[2:] if positional and not _starts_with_star(parameters) else parameters
    for parameter in rest:
        _check(reward, parameter, known)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in rest):
        named = {p.name for p in rest if p.kind in _NAMED}
        chosen = {k: v for k, v in known.items() if k not in OPTIONAL or k in named}
    else:
        chosen = {p.name: known[p.name] for p in rest if p.kind in _NAMED and p.name in known}
    return lambda: reward.function(*first, **chosen)


def _starts_with_star(parameters: Sequence[inspect.Parameter]) -> bool:
    return bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL


def _takes_positions(parameters: Sequence[inspect.Parameter], known: Mapping[str, Any]) -> bool:
    """Whether the first two parameters are prompts and completions under other names."""
    names = [p.name for p in parameters if p.kind in _NAMED]
    if "prompts" in names or "completions" in names:
        return False
    if _starts_with_star(parameters):
        return True
    first = [p for p in parameters[:2] if p.kind in _POSITIONAL]
    return len(first) == 2 and not any(p.name in known or p.name in OPTIONAL for p in first)


def _check(reward: RewardFunction, parameter: inspect.Parameter, known: Mapping[str, Any]) -> None:
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
