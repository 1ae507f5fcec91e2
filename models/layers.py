"""The small parts of a decoder: a normalisation and a gated MLP."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from .axes import parts_on
from .config import ModelConfig


class RMSNorm(nnx.Module):
    """Divide by the root mean square, then scale.

        y = scale * x / sqrt(mean(x^2) + eps)

    The statistics are float32; the quotient is cast back to the input's dtype before the scale.

    Args:
        size: width of the last axis.
        eps: added to the mean square.
        param_dtype: dtype of the scale.
    """

    def __init__(self, size: int, *, eps: float, param_dtype=jnp.float32):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((size,), param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise over the last axis; shape and dtype are kept."""
        tokens = without_ones(x)
        y = self.scale[...].astype(x.dtype) * normalise(tokens, self.eps)
        return y.reshape(x.shape)


def normalise(x: jax.Array, eps: float, axis: int = -1) -> jax.Array:
    """`x / sqrt(mean(x^2) + eps)` along an axis, in float32 and cast back."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=axis, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + eps)).astype(x.dtype)


def without_ones(x: jax.Array) -> jax.Array:
    """`x` without the axes of one before its last, as rows have where they go through one by one.

    With them compilers for CPUs take several times as long to sum products.
    """
    *lead, last = x.shape
    return x.reshape(*(size for size in lead if size != 1), last)


def flat(x: jax.Array) -> jax.Array:
    """`[..., D]` to `[tokens, D]`: how a projection should see its input.

    The gradient of a kernel then sums over one axis; over two, compilers for CPUs transpose what
    the product reads, which costs half as much again as the product. Where a mesh spreads the
    length, `x` as it is: no axis of all tokens could be spread as rows and length are.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return x if parts_on(mesh, "length") > 1 else x.reshape(-1, x.shape[-1])


def linear(
    inputs: int,
    outputs: int,
    config: ModelConfig,
    *,
    bias: bool,
    rngs: nnx.Rngs,
    dtype,
    param_dtype,
) -> nnx.Linear:
    """A projection with a kernel `[inputs, outputs]`, drawn with the config's spread."""
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        kernel_init=nnx.initializers.normal(config.initializer_range),
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
    )


class MLP(nnx.Module):
    """The gated MLP.

        y = down(silu(gate(x)) * up(x))

    Args:
        config: sizes and biases.
        rngs: source of fresh weights.
        dtype: dtype of the arithmetic.
        param_dtype: dtype of the stored weights.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype, param_dtype):
        options = {"rngs": rngs, "dtype": dtype, "param_dtype": param_dtype}
        options["bias"] = config.mlp_bias
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = linear(hidden, inner, config, **options)
        self.up_proj = linear(hidden, inner, config, **options)
        self.down_proj = linear(inner, hidden, config, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., D]` to `[..., D]`."""
        tokens = flat(x)
        y = self.down_proj(nnx.silu(self.gate_proj(tokens)) * self.up_proj(tokens))
        return y.reshape(x.shape)
