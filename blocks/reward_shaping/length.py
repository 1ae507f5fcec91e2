"""Shapings by how long a completion is and whether it came to an end; lengths in tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import required
from ..masking import masked
from ..types import RewardInfo
from .entry import enter


@register("reward_shaping", "overlong_penalty", aliases=("overlong",), paper="arXiv:2503.14476")
def overlong_penalty(
    rewards: jax.Array,
    info: RewardInfo,
    *,
    length: int | None = None,
    buffer: int | None = None,
    factor: float = 1.0,
    cap: bool = True,
) -> jax.Array:
    """The reward minus a penalty that grows over the last `buffer` tokens before the limit.

    Lengths are actions: tokens of tools and prompts do not count, as they do in a span from the
    first action to the last. Tunix counts characters. The penalty ends at `factor`, as in the
    paper, OpenRLHF and TRL; verl, AReaL and Tunix let it grow beyond (`cap=False`).

        A_i = R_i − factor · clip((len_i − (length − buffer)) / buffer, 0, 1)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` and `lengths` (tokens) are used.
        length: the length, in tokens, at which the penalty is `factor`; None stands for the
            generation limit, which the learner fills in.
        buffer: how many tokens before it the penalty begins; a fifth of `length` by default,
            the paper's proportion (4096 of 20480).
        factor: the penalty at `length`, in reward units.
        cap: whether the penalty stops growing at `factor`.

    Returns:
        `[P, G]` float32, in reward units; 0 on invalid completions.

    Raises:
        ZootomyError: if `length` is None, or `buffer` not in 1..`length`.

    Source: Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13.
    """
    if length is None:
        raise ZootomyError(
            "overlong_penalty needs length (tokens); a learner fills in its generation limit."
        )
    buffer = max(length // 5, 1) if buffer is None else buffer
    if not 1 <= buffer <= length:
        raise ZootomyError(
            f"overlong_penalty: buffer must be between 1 and length = {length}, got {buffer}."
        )
    rewards, valid = enter("overlong_penalty", rewards, info)
    lengths = required(
        "overlong_penalty", "info.lengths", info.lengths, "give actions a completion"
    )
    excess = (masked(lengths, valid) - (length - buffer)) / buffer
    return masked(rewards - factor * jnp.clip(excess, 0.0, 1.0 if cap else None), valid)


@register("reward_shaping", "stop_properly", paper="arXiv:2505.24864")
def stop_properly(rewards: jax.Array, info: RewardInfo, *, coef: float = 0.0) -> jax.Array:
    """The reward, scaled or replaced where the completion ran into the length limit.

        A_i = R_i                   where the completion stopped by itself
        A_i = coef · R_i            where it was truncated and coef ≥ 0
        A_i = coef                  where it was truncated and coef < 0

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` and `truncated` are used.
        coef: the share of its reward that a truncated completion keeps, or, if negative, the
            reward it gets in its place.

    Returns:
        `[P, G]` float32, in reward units; 0 on invalid completions.

    Source: Liu et al. 2025, ProRL, arXiv:2505.24864; the two readings of `coef` as in OpenRLHF.
    """
    rewards, valid = enter("stop_properly", rewards, info)
    truncated = required("stop_properly", "info.truncated", info.truncated, "give [P, G] bool")
    cut = coef * rewards if coef >= 0 else jnp.full_like(rewards, coef)
    return masked(jnp.where(truncated, cut, rewards), valid)
