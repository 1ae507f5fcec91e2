"""Means and spreads over the entries that count, exact where all of them are equal."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .masking import masked


class Spread(NamedTuple):
    """Where values lie, along the axes reduced (kept with size 1) unless said otherwise.

    Attributes:
        mean: mean of the entries that count; 0 where there is none.
        std: standard deviation in two passes; 0 where it is not defined.
        deviation: of the shape of the values: value minus mean, 0 on entries that do not count.
        count: number of entries that count, float32.
    """

    mean: jax.Array
    std: jax.Array
    deviation: jax.Array
    count: jax.Array


def spread(
    x: jax.Array,
    mask: jax.Array,
    axis: int | tuple[int, ...] | None = None,
    *,
    ddof: int = 1,
) -> Spread:
    """Mean, deviations and standard deviation of the entries with mask 1, in float32.

        μ = Σ m·x / n,   σ = sqrt(Σ m·(x − μ)² / max(n − ddof, 1))

    The smallest value is subtracted first, so that equal values have deviations of exactly 0
    (the mean of three times 0.1 is not 0.1 in float32), and a common offset costs no digits.

    Args:
        x: `[...]` float; NaN and inf where the mask is 0 have no effect.
        mask: `[...]` 1 (or true) on the entries that count.
        axis: the axes to reduce; all of them by default.
        ddof: 1 for the unbiased variance, 0 for that of the population.

    Returns:
        `Spread`.
    """
    counts = mask > 0
    x = masked(x, mask)
    lowest = jnp.where(counts, x, jnp.inf).min(axis, keepdims=True, initial=jnp.inf)
    pivot = jax.lax.stop_gradient(jnp.where(jnp.isfinite(lowest), lowest, 0.0))
    count = counts.astype(jnp.float32).sum(axis, keepdims=True)
    above = jnp.where(counts, x - pivot, 0.0)
    mean_above = above.sum(axis, keepdims=True) / jnp.maximum(count, 1.0)
    deviation = jnp.where(counts, above - mean_above, 0.0)
    variance = (deviation**2).sum(axis, keepdims=True) / jnp.maximum(count - ddof, 1.0)
    return Spread(pivot + mean_above, safe_sqrt(variance), deviation, count)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """Square root of `x >= 0`, with gradient 0 in place of inf at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_divide(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """`numerator / denominator`, and 0 (value and gradient) where the denominator is 0."""
    defined = denominator != 0
    return jnp.where(defined, numerator / jnp.where(defined, denominator, 1.0), 0.0)


def dense_ids(ids: jax.Array) -> jax.Array:
    """The same partition of `[N]` with ids 0, 1, 2, ... in ascending order of the given ones."""
    order = jnp.argsort(ids)
    ordered = ids[order]
    is_new = jnp.concatenate(
        [jnp.zeros(1, jnp.int32), (ordered[1:] != ordered[:-1]).astype(jnp.int32)]
    )
    return jnp.zeros(ids.shape, jnp.int32).at[order].set(jnp.cumsum(is_new))


def group_sum(x: jax.Array, ids: jax.Array) -> jax.Array:
    """Sum of `x [N, ...]` over the rows with the same id, one entry an id, zero-padded to `N`.

    Args:
        x: `[N, ...]` values.
        ids: `[N]` dense ids, as `dense_ids` returns them.

    Returns:
        `[N, ...]`; entry i is the sum of group i. Index it with `ids` to spread it to the rows.
    """
    return jax.ops.segment_sum(x, ids, num_segments=ids.shape[0])
