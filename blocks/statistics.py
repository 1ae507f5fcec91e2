"""Means and spreads over the entries that count, exact where all of them are equal.

Jitted here, so that a call outside of any jit is one program and not a dozen.
"""

from __future__ import annotations

from functools import partial
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


@partial(jax.jit, static_argnames=("axis", "ddof"))
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


@partial(jax.jit, static_argnames="axis")
def weighted_mean(x: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
    """Mean of `x` under weights `>= 0`, exact where all values with a weight are equal.

    Args:
        x: `[...]` float32, finite.
        weights: `[...]` float32; 0 on entries that do not count.
        axis: the axis to reduce (kept with size 1).

    Returns:
        `[...]` float32; 0 where all weights are 0.
    """
    lowest = jnp.where(weights > 0, x, jnp.inf).min(axis, keepdims=True, initial=jnp.inf)
    pivot = jax.lax.stop_gradient(jnp.where(jnp.isfinite(lowest), lowest, 0.0))
    above = jnp.where(weights > 0, x - pivot, 0.0)
    total = weights.sum(axis, keepdims=True)
    return pivot + safe_divide((weights * above).sum(axis, keepdims=True), total)


@jax.jit
def dense_ids(*keys: jax.Array) -> jax.Array:
    """One id for each distinct combination of the keys: 0, 1, 2, ... in their order.

    Args:
        *keys: arrays `[N]` of integers, the first the most significant.

    Returns:
        `[N]` int32, equal where all keys are equal.
    """
    order = jnp.lexsort(keys[::-1])
    first = keys[0]
    steps = jnp.zeros(max(first.shape[0] - 1, 0), bool)
    for key in keys:
        ordered = key[order]
        steps = steps | (ordered[1:] != ordered[:-1])
    ranks = jnp.concatenate([jnp.zeros(min(first.shape[0], 1), jnp.int32), jnp.cumsum(steps)])
    return jnp.zeros(first.shape, jnp.int32).at[order].set(ranks.astype(jnp.int32))


def group_sum(x: jax.Array, ids: jax.Array) -> jax.Array:
    """Sum of `x [N, ...]` over the rows with the same id, one entry an id, zero-padded to `N`.

    Args:
        x: `[N, ...]` values.
        ids: `[N]` dense ids, as `dense_ids` returns them.

    Returns:
        `[N, ...]`; entry i is the sum of group i. Index it with `ids` to spread it to the rows.
    """
    return jax.ops.segment_sum(x, ids, num_segments=ids.shape[0])


@partial(jax.jit, static_argnames="ddof")
def group_spread(x: jax.Array, mask: jax.Array, ids: jax.Array, *, ddof: int = 1) -> Spread:
    """As `spread`, among the entries with the same id.

    Args:
        x: `[N]` or `[N, T]` float; NaN and inf where the mask is 0 have no effect.
        mask: of the same shape; 1 (or true) on the entries that count.
        ids: `[N]` dense ids of the rows, as `dense_ids` returns them.
        ddof: 1 for the unbiased variance, 0 for that of the population.

    Returns:
        `Spread`, every entry of the shape of `x`: each holds its own group's statistics.
    """
    counts = mask > 0
    x = masked(x, mask)
    axes = tuple(range(1, x.ndim))

    def over_group(values: jax.Array) -> jax.Array:
        totals = group_sum(values.sum(axes), ids)[ids]
        return jnp.broadcast_to(totals.reshape(-1, *(1 for _ in axes)), x.shape)

    rows = jnp.where(counts, x, jnp.inf).min(axes, initial=jnp.inf)
    lowest = jax.ops.segment_min(rows, ids, num_segments=ids.shape[0])[ids]
    pivot = jax.lax.stop_gradient(jnp.where(jnp.isfinite(lowest), lowest, 0.0))
    pivot = jnp.broadcast_to(pivot.reshape(-1, *(1 for _ in axes)), x.shape)
    count = over_group(counts.astype(jnp.float32))
    above = jnp.where(counts, x - pivot, 0.0)
    mean_above = over_group(above) / jnp.maximum(count, 1.0)
    deviation = jnp.where(counts, above - mean_above, 0.0)
    variance = over_group(deviation**2) / jnp.maximum(count - ddof, 1.0)
    return Spread(pivot + mean_above, safe_sqrt(variance), deviation, count)
