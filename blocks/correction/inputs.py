"""The drift ρ = π_old / π_rollout, which every correction starts from."""

from __future__ import annotations

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
