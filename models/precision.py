"""Products that are summed in float32 whatever the operands' dtype."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


def einsum_float32(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """`einsum` with a float32 result and float32 sums.

    Args:
        equation: of two operands.
        a: any float dtype.
        b: any float dtype.

    Returns:
        The product, float32.
    """
    if a.dtype == b.dtype == jnp.float32:
        return jnp.einsum(equation, a, b)
    narrow = functools.partial(jnp.einsum, equation, preferred_element_type=jnp.float32)

    def wide(a, b):
        return jnp.einsum(equation, a.astype(jnp.float32), b.astype(jnp.float32))

    # CPUs have no kernel for some products of two 16-bit operands; widening first is exact.
    return jax.lax.platform_dependent(a, b, cpu=wide, default=narrow)
