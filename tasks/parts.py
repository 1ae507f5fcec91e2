"""Rewards in parts: a number for each token of a completion, or for each of its turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from .types import Per, RewardFunction, TaskError


@dataclass(frozen=True, eq=False)
class Parts:
    """What some completions consist of.

    Attributes:
        per: `token` or `turn`.
        places: N arrays, the tokens on which a completion's numbers stand.
        lengths: N numbers of tokens.
        first: number of the first of them, for errors.
    """

    per: Per
    places: Sequence[np.ndarray]
    lengths: Sequence[int]
    first: int = 0

    def read(
        self, item: Any, position: int, number: Callable[[Any], float | None]
    ) -> np.ndarray | str:
        """`[T]` float32 rewards of one completion's tokens, or what is wrong with them.

        Args:
            item: what the function returned for it.
            position: which completion it is.
            number: a finite float of a scalar; None for what is none.
        """
        places, which = self.places[position], self.first + position
        expected = f"expected a list of {len(places)} numbers, one a {self.per}"
        if isinstance(item, str | bytes) or not (
            isinstance(item, Sized) and isinstance(item, Iterable)
        ):
            return f"returned {item!r} for completion {which}; {expected}"
        if len(item) != len(places):
            return f"returned {len(item)} numbers for completion {which}; {expected}"
        rewards = np.zeros(self.lengths[position], np.float32)
        for place, one in zip(places, item, strict=True):
            value = number(one)
            if value is None or not np.isfinite(value):
                return f"returned {one!r} among the numbers for completion {which}"
            rewards[place] = value
        return rewards


def parts_of(
    reward: RewardFunction,
    tokens: Sequence[Sequence[int]] | None,
    turns: Sequence[Sequence[int]] | None,
    *,
    first: int = 0,
) -> Parts | None:
    """The places of a function's numbers; None where it gives one a completion.

    Args:
        reward: the function.
        tokens: ids of each completion.
        turns: turn of each token; None: one turn a completion.
        first: number of the first completion, for errors.

    Raises:
        TaskError: if it gives more, and the tokens are not known.
    """
    if reward.per == "completion":
        return None
    if tokens is None:
        raise TaskError(
            f"Reward function {reward.name!r} gives a number a {reward.per}, but `score` was "
            f"given no tokens."
        )
    lengths = [len(one) for one in tokens]
    if reward.per == "token":
        return Parts("token", [np.arange(length) for length in lengths], lengths, first)
    ids = [[0] * length for length in lengths] if turns is None else turns
    return Parts("turn", [last_of_turns(one) for one in ids], lengths, first)


def last_of_turns(turns: Sequence[int]) -> np.ndarray:
    """The last token of each turn; a turn ends where the next token has another id.

    >>> last_of_turns([0, 0, 1, 1, 1, 0]).tolist()
    [1, 4, 5]
    """
    ids = np.asarray(turns)
    return np.flatnonzero(np.append(ids[1:] != ids[:-1], True)) if len(ids) else np.arange(0)


def check_tokens(
    count: int, tokens: Sequence[Sequence[int]] | None, turns: Sequence[Sequence[int]] | None
) -> None:
    """Refuse tokens or turns that do not fit the completions.

    Raises:
        TaskError: naming the numbers.
    """
    for name, lists in (("tokens", tokens), ("turns", turns)):
        if lists is not None and len(lists) != count:
            raise TaskError(
                f"There are {len(lists)} lists of {name} for {count} completions; give one each."
            )
    if tokens is not None and turns is not None:
        for position, (ids, of_turns) in enumerate(zip(tokens, turns, strict=True)):
            if len(ids) != len(of_turns):
                raise TaskError(
                    f"Completion {position} has {len(ids)} tokens and the turns of "
                    f"{len(of_turns)}; give the turn of each token."
                )
