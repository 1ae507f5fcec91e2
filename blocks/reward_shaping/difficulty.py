"""Shapings that look at how hard a prompt was for the group, or at its best member alone."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, one_of
from ..masking import masked
from ..statistics import safe_divide, spread
from ..types import RewardInfo
from .entry import enter
from .group import Singleton, singletons


@register("reward_shaping", "maxrl", paper="arXiv:2602.02710", needs=("groups",))
def maxrl(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    eps: float = 1e-6,
    nonpositive: Literal["zero", "divide"] = "zero",
    singleton: Singleton = "zero",
) -> jax.Array:
    """The reward minus the group's mean, in units of that mean: rare successes weigh more.

    A group whose mean is not positive is worth 0; SkyRL divides by a negative mean too
    (`nonpositive="divide"`), which turns the sign around, and leaves a completion without valid
    siblings its reward (`singleton="reward"`).

        A_i = (R_i − μ) / (μ + eps),   0 where μ ≤ 0

    Args:
        rewards: `[P, G]` one reward a completion, meant to be 0 or 1.
        info: `valid` is used; invalid members are no part of μ.
        eps: added to μ, in reward units.
        nonpositive: what a group with μ ≤ 0 is worth: `"zero"`, or what the formula says.
        singleton: what a completion without valid siblings is worth: `"zero"` or its `"reward"`.

    Returns:
        `[P, G]` float32, without unit; sums to 0 in a group.

    Source: Tajwar et al. 2026, Maximum likelihood reinforcement learning, arXiv:2602.02710.
    """
    one_of("maxrl", "nonpositive", nonpositive, ("zero", "divide"))
    rewards, valid = enter("maxrl", rewards, info)
    group = spread(rewards, valid, 1)
    shaped = safe_divide(group.deviation, group.mean + eps)
    if nonpositive == "zero":
        shaped = jnp.where(group.mean > 0, shaped, 0.0)
    return singletons(shaped, rewards, valid, singleton)


@register("reward_shaping", "pass_at_k", paper="arXiv:2503.19595", needs=("groups",))
def pass_at_k(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    norm: bool = False,
    ddof: int = 1,
    eps: float = 1e-6,
) -> jax.Array:
    """Only the best completion of a group counts, by how far it is ahead of the second.

    verl divides by the group's deviation by default (`norm=True`).

        A_best = R_max − R_second,   [norm: / (σ + eps)],   0 for all others and on a tie

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used. A group with fewer than two valid members is worth 0.
        norm: whether to divide by σ.
        ddof: of σ: 1 for the unbiased variance, 0 for that of the population.
        eps: added to σ, in reward units.

    Returns:
        `[P, G]` float32, in reward units (without unit if `norm`).

    Source: Tang et al. 2025, Optimizing language models for inference time objectives,
    arXiv:2503.19595.
    """
    rewards, valid = enter("pass_at_k", rewards, info)
    ranked = jnp.where(valid, rewards, -jnp.inf)
    best = jax.nn.one_hot(ranked.argmax(1), rewards.shape[1], dtype=bool) & valid
    second = jnp.where(best, -jnp.inf, ranked).max(1, keepdims=True)
    ahead = jnp.where(best & jnp.isfinite(second), rewards - second, 0.0)
    if not norm:
        return ahead
    return safe_divide(ahead, spread(rewards, valid, 1, ddof=ddof).std + eps)


@register("reward_shaping", "gpg", paper="arXiv:2504.02546", needs=("groups",))
def gpg(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    norm: float = 1.0,
    count: Literal["rewards", "advantages"] = "rewards",
    singleton: Singleton = "zero",
) -> jax.Array:
    """The reward minus the group's mean, scaled up for the completions that teach nothing.

    verl counts rewards that are not 0, as here by default. The paper leaves out the groups whose
    rewards are all equal: `count="advantages"`. verl leaves a completion without valid siblings
    its reward (`singleton="reward"`).

        A_i = α (R_i − μ) / norm,   α = N / max(number that is not 0, 1)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used; N counts valid completions of the whole batch.
        norm: a divisor (F_norm in the paper).
        count: what must not be 0 to be counted: the `"rewards"`, or the `"advantages"` R − μ.
        singleton: what a completion without valid siblings is worth before the scaling: `"zero"`
            or its `"reward"`.

    Returns:
        `[P, G]` float32, in reward units over `norm`.

    Raises:
        ZootomyError: if `norm` is not positive.

    Source: Chu et al. 2025, GPG, arXiv:2504.02546, section 3.3.
    """
    above("gpg", "norm", norm)
    one_of("gpg", "count", count, ("rewards", "advantages"))
    rewards, valid = enter("gpg", rewards, info)
    deviation = singletons(spread(rewards, valid, 1).deviation, rewards, valid, singleton)
    counted = rewards if count == "rewards" else deviation
    number = masked(counted != 0, valid).sum()
    alpha = valid.sum() / jnp.maximum(number, 1.0)
    return alpha * deviation / norm
