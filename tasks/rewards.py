"""Completions to rewards: each function is called once, and nothing it does wrong is a 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .early import EarlyScores
from .outcomes import call_reward
from .parts import check_tokens, parts_of
from .signatures import Arguments, bind
from .types import Example, Prompt, RewardFunction, Task, TaskError


@dataclass(frozen=True, eq=False)
class Scores:
    """What the reward functions said about N completions.

    Args:
        rewards: `[N]` float32, the weighted sum over the functions that apply; 0 where invalid.
        valid: `[N]` bool; False where a function failed or none applies. Such a completion has no
            reward: keep it out of statistics and losses.
        components: `[F, N]` float32, each function's own value before its weight; NaN where it
            does not apply or failed.
        names: the F function names.
        failures: function name to the number of completions it failed on; empty when all is well.
        last_error: the latest failure in words, or None.
        token_rewards: N arrays `[T_n]` float32, the part of `rewards` that stands on single
            tokens, weighted; None where no function gives numbers for tokens or turns.
    """

    rewards: np.ndarray
    valid: np.ndarray
    components: np.ndarray
    names: tuple[str, ...]
    failures: dict[str, int]
    last_error: str | None
    token_rewards: tuple[np.ndarray, ...] | None = None


def score(
    rewards: Sequence[RewardFunction],
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    *,
    step: int | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    turns: Sequence[Sequence[int]] | None = None,
    early: EarlyScores | None = None,
) -> Scores:
    """Judge completions by several reward functions.

        total_n = Σ_f weight_f · r_f,n   over the functions f that apply to completion n

    A function is called as `f(prompts, completions, **columns)` with lists of N (one that judges
    each completion by itself: N times, with lists of 1), and gets only the columns its signature
    names (all of them if it takes `**kwargs`), plus `step`, `tokens` and `turns` if it names them.
    It returns N numbers or Nones; one marked `per="token"` or `per="turn"` returns N lists of
    numbers or Nones, and a list's sum is the completion's reward. None means "does not apply
    here"; a completion that no function applies to is invalid. NaN, infinity, an exception, a
    wrong length or a wrong type are failures: the completions concerned are invalid and counted,
    never 0. An exception *returned* in the list (not raised) is a failure of that one completion.

    Args:
        rewards: F functions with their weights.
        prompts: N prompts, each repeated for every completion of its group.
        completions: N texts.
        columns: name to N values, repeated like the prompts.
        step: the learner step, for functions that name it.
        tokens: N lists of the completions' token ids.
        turns: N lists with the turn of each token; None: one turn a completion.
        early: what the functions that judge each completion by itself have said already.

    Returns:
        The totals, which of them are valid, the parts, and the failures.

    Raises:
        TaskError: before any call, if a function's signature names a column that is not there,
            two functions share a name, the lists differ in length, or a function gives numbers
            for tokens that are not known.
    """
    count = len(completions)
    _check_lengths(count, prompts, columns)
    check_tokens(count, tokens, turns)
    if turns is None and tokens is not None:
        turns = [[0] * len(ids) for ids in tokens]
    names = tuple(reward.name for reward in rewards)
    if len(set(names)) < len(names):
        raise TaskError(f"Reward functions must have distinct names, got {', '.join(names)}.")
    if not rewards:
        raise TaskError("There is no reward function to score with; give at least one.")
    given = Arguments(prompts, completions, columns, step, tokens, turns)
    calls = [(bind(reward, given), parts_of(reward, tokens, turns)) for reward in rewards]
    if early is None:
        early = EarlyScores(rewards, prompts, columns, step=step)
    components = np.full((len(rewards), count), np.nan, np.float32)
    failed = np.zeros((len(rewards), count), bool)
    last_error, in_parts = None, []
    for row, (reward, (call, parts)) in enumerate(zip(rewards, calls, strict=True)):
        if reward.alone:
            outcome = early.outcome(reward, completions, tokens, turns)
        else:
            outcome = call_reward(reward.name, call, count, parts)
        if parts is not None:
            in_parts.append([reward.weight * one for one in outcome.parts])
        components[row], failed[row] = outcome.values, outcome.failed
        last_error = outcome.error or last_error
    total, overflow = _total(components, [reward.weight for reward in rewards])
    if overflow.any():
        last_error = "the weighted sum of the rewards is too large for float32"
    valid = np.isfinite(components).any(axis=0) & ~failed.any(axis=0) & ~overflow
    failures = Counter({n: int(f) for n, f in zip(names, failed.sum(axis=1), strict=True) if f})
    if overflow.any():
        failures["total"] += int(overflow.sum())
    return Scores(
        rewards=np.where(valid, total, 0.0).astype(np.float32),
        valid=valid,
        components=components,
        names=names,
        failures=dict(failures),
        last_error=last_error,
        token_rewards=_added(in_parts),
    )


def _added(in_parts: list[list[np.ndarray]]) -> tuple[np.ndarray, ...] | None:
    """The N arrays of several functions, added up; None without a function."""
    if not in_parts:
        return None
    return tuple(np.asarray(sum(arrays), np.float32) for arrays in zip(*in_parts, strict=True))


def accuracy(task: Task, scores: Scores) -> np.ndarray | None:
    """Which completions are right, for `eval/accuracy`.

    Args:
        task: says which reward function decides, and from what value on.
        scores: of N completions.

    Returns:
        `[N]` float32: 1 right, 0 wrong, NaN where the completion is invalid or the deciding
        function does not apply; None if no function of the task decides.
    """
    if task.solved_by is None:
        return None
    decisive = scores.components[scores.names.index(task.solved_by)]
    judged = scores.valid & np.isfinite(decisive)
    return np.where(judged, (decisive >= task.solved_at).astype(np.float32), np.nan).astype(
        np.float32
    )


def check_rewards(rewards: Sequence[RewardFunction], columns: Sequence[str]) -> None:
    """Refuse reward functions whose signatures ask for columns that the data does not have.

    Args:
        rewards: the functions to check.
        columns: the names of the data's columns.

    Raises:
        TaskError: naming the function, what it asks for, and the columns there are.
    """
    nothing: dict[str, Sequence[Any]] = {name: [] for name in columns}
    for reward in rewards:
        bind(reward, Arguments([], [], nothing, 0, [], []))


def gather_columns(examples: Sequence[Example], repeats: int = 1) -> dict[str, list[Any]]:
    """The columns of some examples, each value repeated for its whole group, in order.

    Args:
        examples: P examples with the same columns.
        repeats: G, the completions a prompt.

    Returns:
        Name to `[P*G]` values; row p*G+g is completion g of example p.

    Raises:
        TaskError: if an example lacks a column that another has.
    """
    names = sorted({name for example in examples for name in example.columns})
    for position, example in enumerate(examples):
        missing = [name for name in names if name not in example.columns]
        if missing:
            raise TaskError(
                f"Example {position} has no column {missing[0]!r}, which other examples have; "
                f"it has {', '.join(sorted(example.columns)) or 'none'}."
            )
    return {
        name: [example.columns[name] for example in examples for _ in range(repeats)]
        for name in names
    }


def _check_lengths(
    count: int, prompts: Sequence[Prompt], columns: Mapping[str, Sequence[Any]]
) -> None:
    if len(prompts) != count:
        raise TaskError(f"There are {len(prompts)} prompts for {count} completions; give one each.")
    for name, values in columns.items():
        if len(values) != count:
            raise TaskError(
                f"Column {name!r} has {len(values)} values for {count} completions; repeat each "
                "value for every completion of its group."
            )


def _total(components: np.ndarray, weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """`[N]` weighted sums over what applies, and where they do not fit float32."""
    applies = np.isfinite(components)
    weighted = np.where(applies, components, 0.0).astype(np.float64)
    total = np.asarray(weights, np.float64) @ weighted
    overflow = np.abs(total) > np.finfo(np.float32).max
    return np.where(overflow, 0.0, total), overflow
