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


@register("value_loss", "huber", paper="doi:10.1214/aoms/1177703732", needs=("critic",))
def huber(
    values: jax.Array,
    old_values: jax.Array,
    returns: jax.Array,
    mask: jax.Array,
    *,
    delta: float = 10.0,
    clip: float | None = None,
) -> jax.Array:
    """Half the squared error near the target, its size times δ far away.

        f(e) = ½ e² where |e| < δ, else δ (|e| − ½ δ)
        f(V − G), or with `clip`: max(f(V − G), f(clip(V, V_old ± c) − G))

    AReaL's has δ = 10 and is always clipped.

    Args:
        values: `[N, T]` predictions under the critic's present weights.
        old_values: `[N, T]` predictions before the update, used with `clip`.
        returns: `[N, T]` targets.
        mask: `[N, T]` 1 on actions.
        delta: δ, in units of the return.
        clip: c, in units of the return; None for no clip.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ, or `delta` or `clip` is not positive.

    Source: Huber 1964, doi:10.1214/aoms/1177703732.
    """
    above("huber", "delta", delta)
    above("huber", "clip", clip)
    same_shape("huber", values=values, old_values=old_values, returns=returns, mask=mask)
    values, returns = masked(values, mask), masked(returns, mask)

    def f(error: jax.Array) -> jax.Array:
        size = jnp.abs(error)
        return jnp.where(size < delta, 0.5 * jnp.square(error), delta * (size - 0.5 * delta))

    loss = f(values - returns)
    if clip is None:
        return loss
    near = clip_values(values, masked(old_values, mask), clip)
    return jnp.maximum(loss, f(near - returns))


def clip_values(values: jax.Array, old_values: jax.Array, clip: float) -> jax.Array:
    """The values, no farther than `clip` from the old ones; no gradient beyond."""
    return jnp.clip(values, old_values - clip, old_values + clip)
