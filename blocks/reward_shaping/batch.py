"""Shapings against the whole batch, and with mean and deviation taken over different scopes."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import one_of
from ..masking import masked
from ..statistics import Spread, safe_divide, safe_sqrt, spread
from ..types import RewardInfo
from .entry import enter

MeanScope = Literal["none", "group", "leave_one_out", "batch"]
StdScope = Literal["none", "group", "batch"]
StdOf = Literal["rewards", "deviations"]


@register("reward_shaping", "batch_mean", aliases=("flash_reinforce",))
def batch_mean(rewards: jax.Array, info: RewardInfo) -> jax.Array:
    """The reward minus the mean of all valid completions of the batch.

        A_i = R_i − mean(R)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used.

    Returns:
        `[P, G]` float32, in reward units; sums to 0 over the batch.

    Source: OpenRLHF's flash_reinforce; Williams 1992, the average reward as baseline.
    """
    rewards, valid = enter("batch_mean", rewards, info)
    return spread(rewards, valid).deviation


@register("reward_shaping", "batch_norm", aliases=("prpo",))
def batch_norm(
    rewards: jax.Array, info: RewardInfo, *, ddof: int = 1, eps: float = 1e-4
) -> jax.Array:
    """The reward in standard deviations from the mean of the batch.

    TRL's `scale_rewards="batch"` subtracts the group's mean and divides by the batch's
    deviation: `normalize`. After `group_mean` this block is AReaL's form of it, with the
    deviation taken around the groups' means. AReaL: `eps=1e-5`, `ddof` 0 or 1.

        A_i = (R_i − mean(R)) / (std(R) + eps)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: added to the deviation, in reward units.

    Returns:
        `[P, G]` float32, without unit; exactly 0 where all rewards of the batch are equal.

    Source: Andrychowicz et al. 2020, arXiv:2006.05990, advantage normalisation, on rewards.
    """
    rewards, valid = enter("batch_norm", rewards, info)
    whole = spread(rewards, valid, ddof=ddof)
    return safe_divide(whole.deviation, whole.std + eps)


@register("reward_shaping", "normalize", needs=("groups",))
def normalize(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    mean: MeanScope = "group",
    std: StdScope = "batch",
    std_of: StdOf = "rewards",
    ddof: int = 1,
    eps: float = 1e-4,
) -> jax.Array:
    """The reward against a mean over one scope, in deviations over another.

    The defaults are TRL's `scale_rewards="batch"`: its deviation is that of the raw rewards
    around their own mean (`std_of="rewards"`). AReaL takes it around the baselines that were
    subtracted (`std_of="deviations"`, `eps=1e-5`), with `mean="leave_one_out"` too.

        A_i = (R_i − b_i) / (s + eps)
        s² = Σ (R_j − μ)² / (n − ddof)      with std_of = rewards, μ the scope's own mean
        s² = Σ (R_j − b_j)² / (n − ddof)    with std_of = deviations

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used. A completion without valid siblings has itself as group mean and
            is worth 0.
        mean: what b is the mean of: nothing (b = 0), the group, the other members of the group,
            or the batch.
        std: over what s is taken: nothing (no division), the group, or the batch.
        std_of: whether s is the deviation of the rewards or of what is left of them.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: added to s, in reward units.

    Returns:
        `[P, G]` float32; in reward units without a division, else without unit.

    Source: von Werra et al., TRL, `scale_rewards`; Fu et al. 2025, AReaL, arXiv:2505.24298.
    """
    one_of("normalize", "mean", mean, ("none", "group", "leave_one_out", "batch"))
    one_of("normalize", "std", std, ("none", "group", "batch"))
    one_of("normalize", "std_of", std_of, ("rewards", "deviations"))
    rewards, valid = enter("normalize", rewards, info)
    left = _deviation(rewards, valid, mean)
    if std == "none":
        return left
    axis = 1 if std == "group" else None
    own: Spread = spread(rewards, valid, axis, ddof=ddof)
    scale = own.std
    if std_of == "deviations":
        squares = (left**2).sum(axis, keepdims=True)
        scale = safe_sqrt(squares / jnp.maximum(own.count - ddof, 1.0))
    return masked(safe_divide(left, scale + eps), valid)


def _deviation(rewards: jax.Array, valid: jax.Array, mean: str) -> jax.Array:
    """`[P, G]` the rewards less the mean of the scope."""
    if mean == "none":
        return rewards
    around = spread(rewards, valid, None if mean == "batch" else 1)
    if mean == "leave_one_out":
        return around.deviation * safe_divide(around.count, around.count - 1.0)
    return around.deviation
