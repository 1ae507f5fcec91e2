"""A quantile over actions, in which masked entries have no part."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .masking import count


def masked_quantile(x: jax.Array, mask: jax.Array, q: float) -> jax.Array:
    """The q-quantile of the entries with mask 1, linearly interpolated.

    Args:
        x: `[...]` float32.
        mask: `[...]` 1 on the entries that count.
        q: in [0, 1].

    Returns:
        `[]` float32; inf where nothing counts.
    """
    ordered = jnp.sort(jnp.where(mask > 0, x, jnp.inf).reshape(-1))
    place = q * jnp.maximum(count(mask) - 1.0, 0.0)
    below = jnp.floor(place).astype(jnp.int32)
    above = jnp.minimum(jnp.ceil(place).astype(jnp.int32), ordered.size - 1)
    share = place - below
    low, high = ordered[below], ordered[above]
    # no product with inf: where both are the same entry, that entry
    return jnp.where(below == above, low, low + share * (high - low))
