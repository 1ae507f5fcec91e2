"""Shapings against a baseline from elsewhere: by length, a greedy rollout, or the past."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import required
from ..masking import masked
from ..statistics import safe_divide, weighted_mean
from ..types import RewardInfo
from .entry import enter
from .group import Singleton, singletons


@register("reward_shaping", "opo", paper="arXiv:2505.23585", needs=("groups",))
def opo(rewards: jax.Array, info: RewardInfo, *, singleton: Singleton = "zero") -> jax.Array:
    """The reward minus the group's mean in which long completions weigh more.

    verl leaves a completion without valid siblings its reward (`singleton="reward"`).

        A_i = R_i − Σ_j len_j R_j / Σ_j len_j

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` and `lengths` (tokens) are used. Where no completion of a group has an
            action, the mean is a plain one.
        singleton: what a completion without valid siblings is worth: `"zero"` or its `"reward"`.

    Returns:
        `[P, G]` float32, in reward units; exactly 0 where all rewards of a group are equal.

    Source: Hao et al. 2025, On-policy RL with optimal reward baseline, arXiv:2505.23585.
    """
    rewards, valid = enter("opo", rewards, info)
    lengths = required("opo", "info.lengths", info.lengths, "give actions a completion")
    weights = masked(lengths, valid)
    empty = weights.sum(1, keepdims=True) == 0
    weights = jnp.where(empty, masked(jnp.ones_like(weights), valid), weights)
    shaped = rewards - weighted_mean(rewards, weights, 1)
    return singletons(shaped, rewards, valid, singleton)


@register("reward_shaping", "remax", paper="arXiv:2310.10505", needs=("greedy_baseline",))
def remax(rewards: jax.Array, info: RewardInfo) -> jax.Array:
    """The reward minus that of the prompt's greedy completion.

        A_i = R_i − R(greedy completion)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` and `baseline` (the greedy completion's reward) are used. Where the baseline
            is not finite (the greedy rollout failed) there is nothing to compare with: 0.

    Returns:
        `[P, G]` float32, in reward units.

    Raises:
        ZootomyError: without a baseline.

    Source: Li et al. 2023, ReMax, arXiv:2310.10505, algorithm 1.
    """
    return _less_baseline("remax", rewards, info, "roll out a greedy completion a prompt")


@register("reward_shaping", "spo", paper="arXiv:2509.13232", needs=("prompt_values",))
def spo(rewards: jax.Array, info: RewardInfo) -> jax.Array:
    """The reward minus the value that a tracker carries for the prompt from step to step.

    The baseline is from before this step's rewards, so that it is independent of them: hand in
    `BetaTracker.value`, shape, and only then let the tracker observe. The paper normalises over
    the batch afterwards: follow this block with `batch_norm`.

        A_i = R_i − v,   v = α / (α + β) of the prompt

    Args:
        rewards: `[P, G]` one reward a completion, between 0 and 1; G may be 1.
        info: `valid` and `baseline` (v) are used. Where v is not finite (a prompt never seen)
            there is nothing to compare with: 0.

    Returns:
        `[P, G]` float32, in reward units.

    Raises:
        ZootomyError: without a baseline.

    Source: Xu and Ding 2025, Single-stream policy optimization, arXiv:2509.13232.
    """
    return _less_baseline("spo", rewards, info, "carry a BetaTracker over the prompts")


@register("reward_shaping", "running_norm", needs=("running_reward",))
def running_norm(
    rewards: jax.Array, info: RewardInfo, *, shift_mean: bool = True, eps: float = 1e-8
) -> jax.Array:
    """The reward in deviations from the mean of all rewards seen so far.

    The statistics are a state that the caller carries: hand in `RunningMoments.mean` and `.std`
    for every prompt, shape, and let them observe the rewards before or after, as preferred.

        A_i = (R_i − mean_run) / (std_run + eps)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid`, `baseline` (mean_run) and `scale` (std_run) are used.
        shift_mean: whether to subtract mean_run.
        eps: added to std_run, in reward units.

    Returns:
        `[P, G]` float32, without unit.

    Raises:
        ZootomyError: without a baseline or a scale.

    Source: Zheng et al. 2023, Secrets of RLHF, arXiv:2307.04964, reward normalisation.
    """
    rewards, valid = enter("running_norm", rewards, info)
    scale = _per_prompt("running_norm", "scale", info.scale, rewards, "carry RunningMoments")
    if shift_mean:
        mean = _per_prompt(
            "running_norm", "baseline", info.baseline, rewards, "carry RunningMoments"
        )
        rewards = rewards - mean
    return masked(safe_divide(rewards, scale + eps), valid)


def _less_baseline(block: str, rewards: jax.Array, info: RewardInfo, remedy: str) -> jax.Array:
    """The rewards less `info.baseline`, 0 where either is missing."""
    rewards, valid = enter(block, rewards, info)
    baseline = _per_prompt(block, "baseline", info.baseline, rewards, remedy)
    known = valid & jnp.isfinite(baseline)
    return masked(rewards - masked(baseline, jnp.isfinite(baseline)), known)


def _per_prompt(
    block: str, name: str, value: jax.Array | None, rewards: jax.Array, remedy: str
) -> jax.Array:
    """A `[P]` entry of `info` as `[P, 1]`."""
    value = required(block, f"info.{name}", value, remedy)
    if value.shape != rewards.shape[:1]:
        raise ZootomyError(
            f"{block}: info.{name} must be [P] = [{rewards.shape[0]}], "
            f"got shape {list(value.shape)}."
        )
    return value.astype(jnp.float32)[:, None]
