"""A decoder with fewer, wider matrix products: for decoding, where each is short."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from .attention import Attention
from .decoder import Decoder
from .layers import MLP, flat


class FusedAttention(Attention):
    """`Attention` that projects queries, keys and values by one product.

    Args:
        attention: gives the weights; its other parts are shared.
    """

    def __init__(self, attention: Attention):
        self.kernel = attention.kernel
        self.head_dim = attention.head_dim
        self.o_proj = attention.o_proj
        self.qk_norm = attention.qk_norm
        if attention.qk_norm:
            self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        self.q_size, self.kv_size = (part.out_features for part in parts[:2])
        self.qkv_proj = _joined(*parts)

    def _linear(self, tokens):
        return jnp.split(self.qkv_proj(tokens), (self.q_size, self.q_size + self.kv_size), axis=-1)


class FusedMLP(MLP):
    """`MLP` that has gate and up in one product.

    Args:
        mlp: gives the weights; `down_proj` is shared.
    """

    def __init__(self, mlp: MLP):
        self.gate_up_proj = _joined(mlp.gate_proj, mlp.up_proj)
        self.down_proj = mlp.down_proj

    def __call__(self, x):
        """`[..., D]` to `[..., D]`."""
        gate, up = jnp.split(self.gate_up_proj(flat(x)), 2, axis=-1)
        return self.down_proj(nnx.silu(gate) * up).reshape(x.shape)


def fuse(model: Decoder) -> Decoder:
    """The same function with joined weights, which are copies; all other weights are shared.

    Only for what it knows: a projection with an adapter, say, keeps its block as it is.

    Args:
        model: changed in place (merge a state for it).
    """
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        if type(attention) is Attention and _plain(
            attention.q_proj, attention.k_proj, attention.v_proj
        ):
            layer.self_attn = FusedAttention(attention)
        if type(mlp) is MLP and _plain(mlp.gate_proj, mlp.up_proj):
            layer.mlp = FusedMLP(mlp)
    return model


def _plain(*parts: nnx.Module) -> bool:
    return all(type(part) is nnx.Linear for part in parts)


def _joined(*parts: nnx.Linear) -> nnx.Linear:
    """One projection for several that read the same input."""
    first = parts[0]
    joined = nnx.Linear(
        first.in_features,
        sum(part.out_features for part in parts),
        use_bias=first.use_bias,
        kernel_init=nnx.initializers.zeros,
        dtype=first.dtype,
        param_dtype=first.param_dtype,
        rngs=nnx.Rngs(0),
    )
    joined.kernel[...] = jnp.concatenate([part.kernel[...] for part in parts], axis=1)
    biases = [part.bias[...] for part in parts if part.bias is not None]
    if joined.bias is not None:
        joined.bias[...] = jnp.concatenate(biases)
    return joined
