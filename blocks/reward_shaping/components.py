"""Shapings of each reward function by itself, before their sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, describe, register
from ..checks import required
from ..statistics import safe_divide, spread
from ..types import RewardInfo
from .entry import enter
from .group import group_norm


def split(
    block: str, rewards: jax.Array, info: RewardInfo
) -> tuple[jax.Array, list[tuple[jax.Array, RewardInfo]]]:
    """The functions' weights, and each function's rewards with where it applies.

    Args:
        block: the block's name, for errors.
        rewards: `[P, G]` the sum, for its shape.
        info: `components`, `weights` and `valid` are used.

    Returns:
        `(weights [F], [(rewards [P, G], info), ...])`, where `info.valid` is true on the valid
        completions to which the function applies.
    """
    _, valid = enter(block, rewards, info)
    components = required(
        block, "info.components", info.components, "give the rewards by function [F, P, G]"
    )
    if components.ndim != 3 or components.shape[1:] != rewards.shape:
        raise ZootomyError(
            f"{block}: info.components must be [F, P, G] = [F, {rewards.shape[0]}, "
            f"{rewards.shape[1]}], got shape {list(components.shape)}."
        )
    functions = components.shape[0]
    weights = jnp.ones(functions) if info.weights is None else info.weights
    if weights.shape != (functions,):
        raise ZootomyError(
            f"{block}: info.weights must be [F] = [{functions}], got shape {list(weights.shape)}."
        )
    parts = [(part, info._replace(valid=valid & ~jnp.isnan(part))) for part in components]
    return weights.astype(jnp.float32), parts


@register("reward_shaping", "per_function", needs=("components",))
def per_function(rewards: jax.Array, info: RewardInfo, *, shape: str = "group_mean") -> jax.Array:
    """Each reward function shaped by itself, then their weighted sum.

    It starts from `info.components`, not from the rewards handed in: put it first in the list.

        A_i = Σ_f w_f · shape(R_f)_i

    Args:
        rewards: `[P, G]` not used but for its shape.
        info: `valid`, `components` (NaN where a function does not apply, which then adds
            nothing and is no part of that function's statistics) and `weights` are used, and
            what the inner shaping uses.
        shape: the name of a reward shaping, taken with its defaults.

    Returns:
        `[P, G]` float32; 0 on invalid completions.

    Raises:
        UnknownNameError: if there is no such shaping.
        ZootomyError: without components, or for shapes that do not fit.

    Source: Liu et al. 2026, GDPO, arXiv:2601.05242, section 3, without its second stage.
    """
    inner = describe("reward_shaping", shape)
    if inner.name in ("per_function", "gdpo"):
        raise ZootomyError(f"per_function: shape must be a shaping of one reward, got {shape!r}.")
    weights, parts = split("per_function", rewards, info)
    shaped = [inner.function(part, own) for part, own in parts]
    return sum(
        (weight * part for weight, part in zip(weights, shaped, strict=True)),
        start=jnp.zeros(rewards.shape, jnp.float32),
    )


@register("reward_shaping", "gdpo", paper="arXiv:2601.05242", needs=("groups", "components"))
def gdpo(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    ddof: int = 1,
    eps: float = 1e-4,
    whiten: bool = True,
    whiten_eps: float = 1e-4,
) -> jax.Array:
    """Each reward function normalised in its group, summed, then normalised over the batch.

    The second stage counts each completion once, as in TRL, whose values the defaults are. verl
    counts each token, so that long completions weigh more: `whiten=False, eps=1e-6`, then
    whitening `batch`. It starts from `info.components`, not from the rewards handed in: put it
    first in the list.

        s_i = Σ_f w_f (R_f,i − μ_f) / (σ_f + eps),   μ_f and σ_f over the group
        A_i = (s_i − mean(s)) / (std(s) + whiten_eps),   over the valid completions of the batch

    Args:
        rewards: `[P, G]` not used but for its shape.
        info: `valid`, `components` (NaN where a function does not apply, which then adds
            nothing and is no part of that function's statistics) and `weights` are used.
        ddof: 1 for the unbiased variances, 0 for those of the population.
        eps: added to each σ_f, in reward units.
        whiten: whether the second stage is done.
        whiten_eps: added to std(s).

    Returns:
        `[P, G]` float32, without unit; 0 on invalid completions.

    Raises:
        ZootomyError: without components, or for shapes that do not fit.

    Source: Liu et al. 2026, GDPO, arXiv:2601.05242.
    """
    weights, parts = split("gdpo", rewards, info)
    total = jnp.zeros(rewards.shape, jnp.float32)
    for weight, (part, own) in zip(weights, parts, strict=True):
        total = total + weight * group_norm(part, own, ddof=ddof, eps=eps)
    if not whiten:
        return total
    whole = spread(total, info.valid, ddof=ddof)
    return safe_divide(whole.deviation, whole.std + whiten_eps)
