"""Exponentials that stay finite, and values that carry another formula's gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp


def bounded_exp(x: jax.Array, clamp: float) -> jax.Array:
    """`exp(clip(x, -clamp, clamp))`; the gradient is 0 beyond the clamp.

    For importance ratios: a token so far from its old probability teaches nothing reliable.

    Args:
        x: `[...]` float32, a log-ratio.
        clamp: the bound, in nats; `inf` for none.

    Returns:
        `[...]` float32 in `[exp(-clamp), exp(clamp)]`.
    """
    return jnp.exp(jnp.clip(x, -clamp, clamp))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def saturating_exp(x: jax.Array, clamp: float) -> jax.Array:
    """`exp(min(x, clamp))`, whose derivative beyond the clamp stays `exp(clamp)`.

    For penalties: a token far from the reference must still be pulled back, with a bounded
    force, and not be let go (a derivative of 0) because it is too far.

    Args:
        x: `[...]` float32, in nats.
        clamp: the bound, in nats; `inf` for none.

    Returns:
        `[...]` float32.
    """
    return jnp.exp(jnp.minimum(x, clamp))


@saturating_exp.defjvp
def _saturating_exp_jvp(clamp, primals, tangents):
    value = saturating_exp(primals[0], clamp)
    return value, value * tangents[0]


def with_gradient_of(value: jax.Array, surrogate: jax.Array) -> jax.Array:
    """The value of the one, the gradient of the other.

    Args:
        value: `[...]` float32, finite.
        surrogate: `[...]` float32, finite; only its gradient is used.

    Returns:
        `[...]` float32, equal to `value` exactly.
    """
    frozen = jax.lax.stop_gradient(value)
    return frozen + (surrogate - jax.lax.stop_gradient(surrogate))
