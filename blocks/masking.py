"""Sums and means over actions, in which masked entries have no part, NaN and inf included."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked(x: jax.Array, mask: jax.Array, fill: float = 0.0) -> jax.Array:
    """`x` in float32 where the mask is 1, `fill` elsewhere.

    A `where` on the input and no multiplication at the end: 0 * NaN is NaN, in the value and in
    the gradient.

    Args:
        x: `[...]` float of any precision.
        mask: `[...]` 1 on the entries that count.
        fill: what the others become.

    Returns:
        `[...]` float32.
    """
    return jnp.where(mask > 0, x.astype(jnp.float32), fill)


def masked_sum(x: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
    """Sum over the entries with mask 1, in float32; 0 where there is none."""
    return masked(x, mask).sum(axis)


def count(mask: jax.Array, axis: int | None = None) -> jax.Array:
    """Number of entries with mask 1, as float32."""
    return (mask > 0).astype(jnp.float32).sum(axis)


def masked_mean(x: jax.Array, mask: jax.Array, axis: int | None = None) -> jax.Array:
    """Mean over the entries with mask 1, in float32; 0 where there is none."""
    return masked_sum(x, mask, axis) / jnp.maximum(count(mask, axis), 1.0)
