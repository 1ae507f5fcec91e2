"""A batch that stands in for the first one, so that its programs are compiled before it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..rollout import Completion, RolloutConfig
from .algorithm import Algorithm
from .batch import BatchConfig
from .collect import Collected, Group


def stand_in(
    algorithm: Algorithm,
    batch: BatchConfig,
    rollout: RolloutConfig,
    functions: int,
    *,
    token_rewards: bool,
) -> Collected:
    """A batch of the longest prompts and completions.

    A real one takes the same programs where there is one shape of rows, and as many micro-batches,
    one or several. Otherwise those are compiled when it is there.

    Args:
        algorithm: says what is known of a group.
        batch: P prompts of G completions.
        rollout: how long they may be.
        functions: F, how many reward functions there are.
        token_rewards: whether some of them give rewards to tokens or turns.
    """
    size, width, needs = batch.group_size, rollout.max_new_tokens, algorithm.needs
    tokens = np.zeros(width, np.int32)
    # Stopped by itself: an algorithm may leave out what was cut off.
    completion = Completion(tokens, np.zeros(width, np.float32), "stop", version=0)
    remembered = needs & {"greedy_baseline", "prompt_values", "running_reward"}
    groups = [
        Group(
            example=0,
            prompt=_numbered(index, rollout.max_prompt_tokens),
            completions=[completion] * size,
            rewards=np.zeros(size, np.float32),
            valid=np.ones(size, bool),
            components=np.zeros((functions, size), np.float32),
            baseline=0.0 if remembered else None,
            scale=1.0 if "running_reward" in needs else None,
            token_rewards=[np.zeros(width, np.float32)] * size if token_rewards else None,
        )
        for index in range(batch.full)
    ]
    return Collected(groups, batch.full, groups, refills=0, failures=Counter())


def _numbered(index: int, length: int) -> tuple[int, ...]:
    """A prompt of two tokens, another one for each index as far as its length allows."""
    return tuple(index >> place & 1 for place in range(length))
