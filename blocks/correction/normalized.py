"""Weights that average to one over the mini-batch."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import at_least, in_order
from ..masking import count, masked_mean
from .inputs import drift, inside, log_drift, result, row_sum


@register("correction", "normalized", needs=("rollout_logp", "whole_batch"))
def normalized(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    level: Literal["token", "sequence"] = "token",
    outside: Literal["clip", "zero"] = "clip",
    low: float = 0.0,
    high: float = 2.0,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """Truncated or windowed weights over their mean: the drift changes shares, not the scale.

        w = clip(ρ, low, high) ("clip"), or ρ inside [low, high] and 0 outside ("zero")
        w ← w / mean w,   the mean over actions ("token") or over sequences ("sequence")

    ρ is the token's ratio, or the product of the sequence's. Couples all rows of the
    mini-batch. Sequences without an action have no part in the mean; verl counts them, with
    the weight 0.

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        level: whose ratio, and over what the mean is taken.
        outside: what happens outside the bounds.
        low: lower bound.
        high: upper bound.
        clamp: bound on log ρ, or on its sum, before exp.

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool:
        every action, or those inside the window.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are negative or out of order.

    Source: self-normalised importance sampling; verl's `rollout_is_batch_normalize`.
    """
    at_least("normalized", "low", low, 0.0)
    in_order("normalized", ("low", "high"), low, high)
    log_rho = log_drift("normalized", old_logp, rollout_logp, mask)
    if level == "sequence":
        log_rho = jnp.broadcast_to(row_sum(log_rho, mask), mask.shape)
    rho = drift("normalized", log_rho, clamp)
    kept = (mask > 0) & (inside(rho, low, high) if outside == "zero" else True)
    weights = jnp.clip(rho, low, high) if outside == "clip" else rho
    weights = jnp.where(kept, weights, 0.0)
    if level == "sequence":
        present = count(mask, axis=1) > 0
        # a row's weights are equal on its actions, 0 elsewhere: the largest is the row's
        mean = masked_mean(weights.max(axis=1), present)
    else:
        mean = masked_mean(weights, mask)
    return result(weights / jnp.where(mean > 0, mean, 1.0), kept, mask)
