"""Shapings against the siblings of a completion: the group is its baseline."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import one_of
from ..masking import masked
from ..statistics import safe_divide, spread
from ..types import RewardInfo
from .entry import enter

Singleton = Literal["zero", "reward"]


def singletons(shaped: jax.Array, alone: jax.Array, valid: jax.Array, singleton: str) -> jax.Array:
    """`shaped`, with `alone` in place of it where a completion has no valid sibling, if asked.

    Args:
        shaped: `[P, G]` the value beside siblings.
        alone: `[P, G]` the value of a completion without any.
        valid: `[P, G]` bool.
        singleton: `"zero"`: a completion without valid siblings is worth 0, for nothing is
            known to compare it with; `"reward"`: it is worth `alone`.

    Returns:
        `[P, G]`, 0 where invalid.
    """
    one_of("reward_shaping", "singleton", singleton, ("zero", "reward"))
    is_alone = valid.sum(1, keepdims=True) == 1
    lonely = alone if singleton == "reward" else jnp.zeros_like(shaped)
    return masked(jnp.where(is_alone, lonely, shaped), valid)


@register(
    "reward_shaping",
    "group_mean",
    aliases=("dr_grpo",),
    paper="arXiv:2503.20783",
    needs=("groups",),
)
def group_mean(rewards: jax.Array, info: RewardInfo, *, singleton: Singleton = "zero") -> jax.Array:
    """The reward minus the mean of its group, itself included.

    A completion without valid siblings is worth 0; verl and SkyRL leave it its reward
    (`singleton="reward"`).

        A_i = R_i − μ

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used; invalid members are no part of the mean.
        singleton: what a completion without valid siblings is worth: `"zero"` or its `"reward"`.

    Returns:
        `[P, G]` float32, in reward units; sums to 0 in a group; exactly 0 where all are equal.

    Source: Liu et al. 2025, Dr. GRPO, arXiv:2503.20783; Hu et al. 2025, REINFORCE++-baseline,
    arXiv:2501.03262.
    """
    rewards, valid = enter("group_mean", rewards, info)
    return singletons(spread(rewards, valid, 1).deviation, rewards, valid, singleton)


@register(
    "reward_shaping",
    "leave_one_out",
    aliases=("rloo",),
    paper="arXiv:2402.14740",
    needs=("groups",),
)
def leave_one_out(
    rewards: jax.Array, info: RewardInfo, *, singleton: Singleton = "zero"
) -> jax.Array:
    """The reward minus the mean of the *other* members of its group.

    A completion without valid siblings is worth 0, as in SkyRL, Tunix and verl's vectorised
    form; verl's other form and AReaL leave it its reward (`singleton="reward"`).

        A_i = R_i − 1/(n−1) Σ_{j≠i} R_j = n/(n−1) (R_i − μ)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used; n counts valid members.
        singleton: what a completion without valid siblings is worth: `"zero"` or its `"reward"`.

    Returns:
        `[P, G]` float32, in reward units; sums to 0 in a group; exactly 0 where all are equal.

    Source: Ahmadian et al. 2024, RLOO, arXiv:2402.14740.
    """
    rewards, valid = enter("leave_one_out", rewards, info)
    group = spread(rewards, valid, 1)
    shaped = group.deviation * safe_divide(group.count, group.count - 1.0)
    return singletons(shaped, rewards, valid, singleton)


@register(
    "reward_shaping", "group_norm", aliases=("grpo",), paper="arXiv:2402.03300", needs=("groups",)
)
def group_norm(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    ddof: int = 1,
    eps: float = 1e-4,
    singleton: Singleton = "zero",
) -> jax.Array:
    """The reward in standard deviations from the mean of its group.

    Peers differ in `eps`: TRL 1e-4 (as here), AReaL 1e-5, verl, SkyRL and Tunix 1e-6, OpenRLHF
    1e-9. AReaL can take `ddof=0`. verl and SkyRL leave a completion without valid siblings its
    reward (`singleton="reward"`: mean 0, deviation 1).

        A_i = (R_i − μ) / (σ + eps),   σ² = Σ_j (R_j − μ)² / (n − ddof)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used; invalid members are no part of μ, σ and n.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: added to σ, in reward units.
        singleton: what a completion without valid siblings is worth: `"zero"`, or its
            `"reward"` over `1 + eps`.

    Returns:
        `[P, G]` float32, without unit; exactly 0 where all rewards of a group are equal.

    Source: Shao et al. 2024, GRPO, arXiv:2402.03300.
    """
    rewards, valid = enter("group_norm", rewards, info)
    group = spread(rewards, valid, 1, ddof=ddof)
    shaped = safe_divide(group.deviation, group.std + eps)
    return singletons(shaped, rewards / (1.0 + eps), valid, singleton)
