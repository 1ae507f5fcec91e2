"""Rewards of completions that have ended, while others are still sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .outcomes import Outcome, call_reward
from .parts import parts_of
from .signatures import Arguments, Plan, plan
from .types import Prompt, RewardFunction


class EarlyScores:
    """What the functions that judge each completion by itself say, one completion at a time.

    Args:
        rewards: reward functions; only those with `alone` are called.
        prompts: N prompts, each repeated for every completion of its group.
        columns: name to N values, repeated like the prompts.
        step: the learner step, for functions that name it.
    """

    def __init__(
        self,
        rewards: Sequence[RewardFunction],
        prompts: Sequence[Prompt],
        columns: Mapping[str, Sequence[Any]],
        *,
        step: int | None = None,
    ):
        self._rewards = [reward for reward in rewards if reward.alone]
        self._prompts = prompts
        self._columns = columns
        self._step = step
        self._said: dict[int, dict[str, Outcome]] = {}
        self._planned: dict[tuple[str, ...], list[Plan]] = {}

    def add(
        self,
        number: int,
        completion: str,
        tokens: Sequence[int] | None = None,
        turns: Sequence[int] | None = None,
    ) -> None:
        """Judge completion `number` of the N; twice is once.

        Args:
            number: which of the N.
            completion: its text.
            tokens: its token ids.
            turns: the turn of each token.
        """
        if number in self._said or not self._rewards:
            return
        arguments = Arguments(
            prompts=[self._prompts[number]],
            completions=[completion],
            columns={name: [values[number]] for name, values in self._columns.items()},
            step=self._step,
            tokens=None if tokens is None else [tokens],
            turns=None if turns is None else [turns],
        )
        known = arguments.known()
        self._said[number] = {
            one.reward.name: call_reward(
                one.reward.name,
                one.bind(known),
                1,
                parts_of(one.reward, arguments.tokens, arguments.turns, first=number),
                first=number,
            )
            for one in self._plans(tuple(known))
        }

    def _plans(self, known: tuple[str, ...]) -> list[Plan]:
        """How each function is called: made once, since it takes as long as a small reward."""
        if known not in self._planned:
            self._planned[known] = [plan(reward, known) for reward in self._rewards]
        return self._planned[known]

    def outcome(
        self,
        reward: RewardFunction,
        completions: Sequence[str],
        tokens: Sequence[Sequence[int]] | None,
        turns: Sequence[Sequence[int]] | None,
    ) -> Outcome:
        """What one function said of all N; those not judged before are judged now."""
        for number, completion in enumerate(completions):
            self.add(
                number,
                completion,
                None if tokens is None else tokens[number],
                None if turns is None else turns[number],
            )
        said = [self._said[number][reward.name] for number in range(len(completions))]
        errors = [outcome.error for outcome in said if outcome.error]
        return Outcome(
            np.concatenate([np.zeros(0, np.float32), *(outcome.values for outcome in said)]),
            np.concatenate([np.zeros(0, bool), *(outcome.failed for outcome in said)]),
            errors[-1] if errors else None,
            [part for outcome in said for part in outcome.parts],
        )
