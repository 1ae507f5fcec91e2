"""How the critic is taught: a regression on the returns, per token."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..registry import register
from .checks import above, same_shape
from .masking import masked


@register("value_loss", "mse", needs=("critic",))
def mse(values: jax.Array, old_values: jax.Array, returns: jax.Array, mask: jax.Array) -> jax.Array:
    """Half the squared error.

        ½ (V − G)²

    Args:
        values: `[N, T]` predictions under the critic's present weights.
        old_values: `[N, T]` predictions before the update, not used.
        returns: `[N, T]` targets.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ.

    Source: standard; OpenRLHF and SkyRL with value clipping off.
    """
    same_shape("mse", values=values, old_values=old_values, returns=returns, mask=mask)
    return masked(0.5 * jnp.square(masked(values, mask) - masked(returns, mask)), mask)


@register("value_loss", "clipped_mse", paper="arXiv:2005.12729", needs=("critic",))
def clipped_mse(
    values: jax.Array,
    old_values: jax.Array,
    returns: jax.Array,
    mask: jax.Array,
    *,
    clip: float = 0.2,
) -> jax.Array:
    """Half the squared error, pessimistic: a step beyond the clip earns nothing.

        ½ max((V − G)², (clip(V, V_old − c, V_old + c) − G)²)

    Args:
        values: `[N, T]` predictions under the critic's present weights.
        old_values: `[N, T]` predictions before the update.
        returns: `[N, T]` targets.
        mask: `[N, T]` 1 on actions.
        clip: c, in units of the return.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ or `clip` is not positive.

    Source: PPO's reference implementation, described in arXiv:2005.12729, section 3.
    """
    above("clipped_mse", "clip", clip)
    same_shape("clipped_mse", values=values, old_values=old_values, returns=returns, mask=mask)
    values, returns = masked(values, mask), masked(returns, mask)
    near = clip_values(values, masked(old_values, mask), clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(near - returns))


def clip_values(values: jax.Array, old_values: jax.Array, clip: float) -> jax.Array:
    """The values, no farther than `clip` from the old ones; no gradient beyond."""
    return jnp.clip(values, old_values - clip, old_values + clip)
