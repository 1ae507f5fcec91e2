"""Reward functions out of a Python file that the user names.

Loading such a file runs it. That is what the user asks for by naming it; nothing else here runs
code it did not bring along.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, overload

from ..registry.errors import unknown_name
from .types import Per, RewardFunction, TaskError


@overload
def reward_function(function: Callable[..., Any], /) -> RewardFunction: ...
@overload
def reward_function(
    *, weight: float = ..., name: str | None = ..., per: Per = ..., alone: bool = ...
) -> Callable[[Callable[..., Any]], RewardFunction]: ...
def reward_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    weight: float = 1.0,
    name: str | None = None,
    per: Per = "completion",
    alone: bool = False,
) -> RewardFunction | Callable[[Callable[..., Any]], RewardFunction]:
    """Mark a function as a reward, `@reward_function` or `@reward_function(weight=0.5)`.

    Args:
        function: `f(prompts, completions, **columns) -> list[float | None]`.
        weight: its factor in the total reward.
        name: what metrics call it; None: the function's own name.
        per: what it gives a number for: a `completion`, each `token` of it, or each `turn`.
        alone: whether it judges each completion by itself; see `RewardFunction`.

    Returns:
        The `RewardFunction`, which can still be called like the function.
    """

    def mark(function: Callable[..., Any]) -> RewardFunction:
        own = function.__name__ if name is None else name
        return RewardFunction(own, function, weight, per, alone)

    return mark if function is None else mark(function)


def load_reward_functions(spec: str) -> list[RewardFunction]:
    """Load reward functions from a user's Python file.

    Args:
        spec: `path.py:function` for one function, marked or not; `path.py` for every function
            marked with `reward_function`, in the order of the file.

    Returns:
        The functions; an unmarked one has weight 1 and its own name.

    Raises:
        TaskError: if the file is missing, is no Python file, raises when run, or has no such
            function.
    """
    path_text, name = _parts(spec)
    module = _load(Path(path_text))
    if name is None:
        marked = _marked(module)
        if not marked:
            raise TaskError(
                f"{path_text} marks no reward functions. Decorate them with "
                "`@zootomy.tasks.reward_function`, or name one as "
                f"{path_text}:FUNCTION. Functions there: {_listing(module)}."
            )
        return marked
    members = vars(module)
    if name not in members:
        raise unknown_name(f"reward function of {path_text}", name, _functions(module))
    found = members[name]
    if isinstance(found, RewardFunction):
        return [found]
    if not callable(found):
        raise TaskError(
            f"{path_text}:{name} is a {type(found).__name__}, not a function. Functions there: "
            f"{_listing(module)}."
        )
    return [RewardFunction(name, found)]


def _parts(spec: str) -> tuple[str, str | None]:
    """Path and function name; a drive letter's colon is none of ours."""
    if spec.endswith(".py"):
        return spec, None
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        raise TaskError(f"A reward function is named as path.py or path.py:function, got {spec!r}.")
    return path, name


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"There is no reward file {str(path)!r}.")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"_zootomy_rewards_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{str(path)!r} cannot be loaded as a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a function's module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(
            f"The reward file {path} fails when loaded: {type(error).__name__}: {error}"
            f"{_line(error, path)}."
        ) from error
    return module


def _line(error: Exception, path: Path) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f" (line {lines[-1]})" if lines else ""


def _marked(module: ModuleType) -> list[RewardFunction]:
    """Marked functions of the file itself, not those it imports from elsewhere."""
    return [
        member
        for member in vars(module).values()
        if isinstance(member, RewardFunction) and member.function.__module__ == module.__name__
    ]


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, member in vars(module).items()
        if not name.startswith("_")
        and (isinstance(member, RewardFunction) or inspect.isfunction(member))
    ]


def _listing(module: ModuleType) -> str:
    return ", ".join(_functions(module)) or "none"
