"""What is remembered of rewards from step to step, for the shapings that ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..blocks.reward_shaping import BetaTracker, RunningMoments
from ..registry import ZootomyError
from .algorithm import Algorithm
from .collect import Collected, Group
from .score_scale import Scaling, scale_scores, see_scores

# Where nothing is known yet: the batch's mean, which follows, takes a constant away.
FIRST_VALUE = 0.5


class PromptValues(NamedTuple):
    """A value of each training prompt, and how far the policy has moved since it was seen.

    Attributes:
        tracker: the values.
        travelled: `[]` the KL between policies of neighbouring steps, added up, in nats a token.
        seen_at: `[prompts]` what `travelled` was when each prompt was last sampled.
    """

    tracker: BetaTracker
    travelled: jax.Array
    seen_at: jax.Array


class Memory(NamedTuple):
    """The learner's memory of rewards; a tree of arrays, replaced and never changed.

    Attributes:
        moments: of all rewards, where a shaping needs `running_reward`.
        values: of each prompt, where a shaping needs `prompt_values`.
        scores: moments of the raw scores of each reward model that has a scale of its own.
    """

    moments: RunningMoments | None
    values: PromptValues | None
    scores: tuple[RunningMoments, ...] = ()

    @classmethod
    def start(cls, algorithm: Algorithm, prompts: int, scalings: Sequence[Scaling] = ()) -> Memory:
        """Nothing seen yet.

        Args:
            algorithm: its shapings say what is to be remembered.
            prompts: how many training prompts there are.
            scalings: one a reward model that has a scale of its own.
        """
        needs = algorithm.needs
        return cls(
            RunningMoments.start() if "running_reward" in needs else None,
            _first_values(prompts) if "prompt_values" in needs else None,
            tuple(RunningMoments.start() for _ in scalings),
        )

    def see(self, collected: Collected, scalings: Sequence[Scaling] = ()) -> Memory:
        """The memory with a batch's rewards in the moments: they are part of their own scale."""
        seen = self._replace(scores=see_scores(collected, scalings, self.scores))
        if self.moments is None:
            return seen
        collected = scale_scores(collected, scalings, seen.scores)
        rewards, valid = _rewards(collected.sampled)
        return seen._replace(moments=self.moments.observe(rewards, valid))

    def recall(self, collected: Collected, scalings: Sequence[Scaling] = ()) -> Collected:
        """The batch with its scores scaled, and with what is remembered in its groups.

        Raises:
            ZootomyError: if a reward is outside 0..1 where prompts have values.
        """
        collected = scale_scores(collected, scalings, self.scores)
        groups = collected.groups
        if self.moments is not None:
            mean, scale = float(self.moments.mean), float(self.moments.std)
            groups = [replace(group, baseline=mean, scale=scale) for group in groups]
        if self.values is not None:
            _check_range(collected.sampled)
            values = np.asarray(self.values.tracker.value)
            groups = [replace(group, baseline=float(values[group.example])) for group in groups]
        return replace(collected, groups=groups)

    def learn(self, collected: Collected, moved: float) -> Memory:
        """The memory after a step: the values with the batch's rewards in them.

        Args:
            collected: the batch.
            moved: KL between the policy before the step and after it, in nats a token.
        """
        if self.values is None:
            return self
        tracker, travelled, seen_at = self.values
        for groups in _rounds(collected.sampled):
            prompts = jnp.asarray([group.example for group in groups])
            drift = travelled - seen_at[prompts]
            tracker = tracker.observe(prompts, *_rewards(groups), drift)
            seen_at = seen_at.at[prompts].set(travelled)
        return self._replace(values=PromptValues(tracker, travelled + moved, seen_at))


def _first_values(prompts: int) -> PromptValues:
    """A first estimate of every prompt's value, none seen yet."""
    return PromptValues(
        BetaTracker.start(jnp.full(prompts, FIRST_VALUE)),
        jnp.zeros((), jnp.float32),
        jnp.zeros(prompts, jnp.float32),
    )


def _rewards(groups: Sequence[Group]) -> tuple[jax.Array, jax.Array]:
    """`(rewards [P, G], valid [P, G])`."""
    rewards = jnp.asarray(np.stack([group.rewards for group in groups]))
    return rewards, jnp.asarray(np.stack([group.valid for group in groups]))


def _rounds(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """The groups in rounds in which each prompt stands once at most, in the order sampled."""
    rest = list(groups)
    while rest:
        first = {group.example: group for group in reversed(rest)}
        yield list(first.values())
        rest = [group for group in rest if group is not first[group.example]]


def _check_range(groups: Sequence[Group]) -> None:
    for group in groups:
        outside = group.rewards[group.valid & ((group.rewards < 0) | (group.rewards > 1))]
        if len(outside):
            raise ZootomyError(
                f"reward_shaping 'spo' counts successes and failures, so rewards must lie in "
                f"0..1; prompt {group.example} got {outside[0]:g}. Give reward functions whose "
                f"weighted sum lies there, or use another shaping."
            )
