"""The drift ρ = π_old / π_rollout, which every correction starts from."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ..checks import above, same_shape
from ..masking import count, masked, masked_sum


def log_drift(
    block: str, old_logp: jax.Array, rollout_logp: jax.Array, mask: jax.Array
) -> jax.Array:
    """log ρ per token in float32, without a gradient, 0 where the mask is 0.

    Args:
        block: the block's name, for the message.
        old_logp: `[N, T]` log-probabilities in the trainer, before the update.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.

    Raises:
        ZootomyError: if the shapes differ.
    """
    same_shape(block, old_logp=old_logp, rollout_logp=rollout_logp, mask=mask)
    return jax.lax.stop_gradient(masked(old_logp, mask) - masked(rollout_logp, mask))


def drift(block: str, log_rho: jax.Array, clamp: float) -> jax.Array:
    """ρ = exp(clip(log ρ, ±clamp))."""
    above(block, "clamp", clamp)
    return jnp.exp(jnp.clip(log_rho, -clamp, clamp))


def row_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over a sequence's actions, `[N, 1]`; 0 for a sequence without any."""
    return masked_sum(x, mask, axis=1)[:, None] / jnp.maximum(count(mask, axis=1), 1.0)[:, None]


def row_sum(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum over a sequence's actions, `[N, 1]`."""
    return masked_sum(x, mask, axis=1)[:, None]


Weight = Literal["one", "token", "sequence"]
Reduce = Literal["mean", "sum"]


def row_statistic(
    x: jax.Array, mask: jax.Array, reduce: Literal["mean", "sum", "max"]
) -> jax.Array:
    """One number a sequence, `[N, 1]`: mean, sum or maximum over its actions; 0 without any."""
    if reduce == "mean":
        return row_mean(x, mask)
    if reduce == "sum":
        return row_sum(x, mask)
    largest = jnp.where(mask > 0, x, -jnp.inf).max(axis=1, keepdims=True, initial=-jnp.inf)
    return jnp.where(jnp.isfinite(largest), largest, 0.0)


def weights_of(
    block: str, weight: Weight, log_rho: jax.Array, mask: jax.Array, reduce: Reduce, clamp: float
) -> jax.Array:
    """What a kept token weighs: 1, its own ρ, or exp of the mean or sum of its sequence."""
    if weight == "one":
        return jnp.ones(mask.shape, jnp.float32)
    if weight == "token":
        return drift(block, log_rho, clamp)
    statistic = row_statistic(log_rho, mask, reduce)
    return jnp.broadcast_to(drift(block, statistic, clamp), mask.shape)


def inside(x: jax.Array, low: float | None, high: float | None) -> jax.Array:
    """Where low ≤ x ≤ high; a bound of None is open."""
    keep = jnp.ones(x.shape, bool)
    if low is not None:
        keep &= x >= low
    if high is not None:
        keep &= x <= high
    return keep


def result(weights: jax.Array, kept: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights that are 0 where nothing is kept, and what is kept: never more than the mask."""
    kept = jnp.broadcast_to(kept, mask.shape) & (mask > 0)
    return jnp.where(kept, weights, 0.0), kept


def combine(
    *corrections: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Several corrections as one: weights multiply, and a token is kept if all keep it.

    Args:
        *corrections: (weights `[N, T]`, kept `[N, T]`) of each, all of one mask.

    Returns:
        weights `[N, T]` float32; kept `[N, T]` bool.
    """
    weights, kept = corrections[0]
    for other_weights, other_kept in corrections[1:]:
        weights, kept = weights * other_weights, kept & other_kept
    return jnp.where(kept, weights, 0.0), kept
