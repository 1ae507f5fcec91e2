"""A decoder laid out for decoding on a CPU: few, wide matrix products over columns."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from .attention import Attention
from .cache import write_slots
from .decoder import Decoder, DecoderLayer
from .layers import MLP, RMSNorm, flat, normalise
from .precision import einsum_float32
from .rope import rotate
from .slot_attention import attend_slots


class ColumnLinear(nnx.Module):
    """One product for several projections of the same input, `[D, tokens]` to `[outputs, tokens]`.

    With few tokens a CPU is a quarter faster at this than at rows of tokens by `[D, outputs]`.

    Args:
        parts: give the weights, which are copied.
    """

    def __init__(self, *parts: nnx.Linear):
        dtype = parts[0].dtype
        self.kernel = nnx.Param(
            jnp.concatenate([part.kernel[...].T.astype(dtype) for part in parts])
        )
        biases = [part.bias[...].astype(dtype) for part in parts if part.bias is not None]
        self.bias = nnx.Param(jnp.concatenate(biases)[:, None]) if biases else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[D, tokens]` to `[outputs, tokens]`."""
        y = self.kernel[...] @ x
        return y if self.bias is None else y + self.bias[...]


class ColumnAttention(nnx.Module):
    """`Attention` over a cache: one product for queries, keys and values, one norm, one rotation.

    Args:
        attention: gives the weights.
    """

    def __init__(self, attention: Attention):
        self.head_dim = attention.head_dim
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        self.heads, self.kv_heads = (part.out_features // self.head_dim for part in parts[:2])
        self.qkv_proj = ColumnLinear(*parts)
        self.o_proj = ColumnLinear(attention.o_proj)
        self.qk_norm = attention.qk_norm
        if attention.qk_norm:
            self.eps = attention.q_norm.eps
            counted = (attention.q_norm, self.heads), (attention.k_norm, self.kv_heads)
            scales = [jnp.tile(norm.scale[...], (count, 1)) for norm, count in counted]
            self.scale = nnx.Param(jnp.concatenate(scales)[:, :, None])

    def cached(self, x, shape, cos, sin, mask, k_store, v_store, slots, prompts=None):
        """`[D, B S]` to `[D, B S]` for tokens of the shape `[B, S]`; see `Attention.cached`."""
        heads = self.qkv_proj(x).reshape(-1, self.head_dim, x.shape[1])
        turned = self.heads + self.kv_heads
        qk, v = heads[:turned], heads[turned:]
        if self.qk_norm:
            # The values' heads too, for nothing: a sum over all needs no copy of a part.
            normal = normalise(heads, self.eps, axis=1)[:turned]
            qk = self.scale[...].astype(qk.dtype) * normal
        cos, sin = (table.reshape(x.shape[1], -1).T for table in (cos, sin))
        qk = rotate(qk, cos, sin, axis=1)
        q, k, v = (
            part.transpose(2, 0, 1).reshape(*shape, -1, self.head_dim)
            for part in (qk[: self.heads], qk[self.heads :], v)
        )
        k_store, v_store = write_slots(k_store, v_store, k, v, slots)
        out = attend_slots(q, k_store, v_store, mask, prompts)
        # Else the product joins the weighted sum's program, in the library that is slow at it.
        out = jax.lax.optimization_barrier(out.reshape(x.shape[1], -1).T)
        return self.o_proj(out), k_store, v_store


class ColumnMLP(nnx.Module):
    """`MLP` that has gate and up in one product.

    Args:
        mlp: gives the weights.
    """

    def __init__(self, mlp: MLP):
        self.gate_up_proj = ColumnLinear(mlp.gate_proj, mlp.up_proj)
        self.down_proj = ColumnLinear(mlp.down_proj)

    def __call__(self, x):
        """`[D, tokens]` to `[D, tokens]`."""
        gate, up = jnp.split(self.gate_up_proj(x), 2)
        wide = gate.astype(jnp.float32)
        # One exponential and one division; the logistic function is a longer loop.
        gate = (wide / (1 + jnp.exp(-wide))).astype(gate.dtype)
        return self.down_proj(gate * up)


class FusedLayer(nnx.Module):
    """A `DecoderLayer` over a cache whose stream is `[D, tokens]` inside.

    Between two of them the compiler leaves the transposes out.

    Args:
        layer: gives the weights. A part that is not plain, with an adapter, say, stays as it is.
    """

    def __init__(self, layer: DecoderLayer):
        attention, mlp = layer.self_attn, layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.self_attn = ColumnAttention(attention) if _plain_attention(attention) else attention
        self.mlp = ColumnMLP(mlp) if _plain_mlp(mlp) else mlp

    def cached(self, x, *inputs):
        """As `DecoderLayer.cached`."""
        shape = x.shape
        x = flat(x).T
        normal = _column_norm(self.input_layernorm, x)
        if isinstance(self.self_attn, ColumnAttention):
            out, k_store, v_store = self.self_attn.cached(normal, shape[:2], *inputs)
        else:
            out, k_store, v_store = self.self_attn.cached(normal.T.reshape(shape), *inputs)
            out = flat(out).T
        x = x + out
        normal = _column_norm(self.post_attention_layernorm, x)
        x = x + (self.mlp(normal) if isinstance(self.mlp, ColumnMLP) else self.mlp(normal.T).T)
        return x.T.reshape(shape), k_store, v_store


def fuse(model: Decoder) -> Decoder:
    """The same function over a cache; joined weights are copies, all others are shared.

    Args:
        model: changed in place (merge a state for it); afterwards it needs a cache.
    """
    fused = nnx.List([FusedLayer(layer) for layer in model.layers])
    model.layers = fused  # pyright: ignore[reportAttributeAccessIssue]
    return model


def column_head(model: Decoder) -> jax.Array:
    """The head as `column_logits` reads it, `[V, D]`; a tied one is the embedding, not a copy."""
    if model.has_head and not model.has_free_head:
        return model.embed_tokens.embedding[...]
    return model.head_kernel().T


def column_logits(hidden: jax.Array, head: jax.Array) -> jax.Array:
    """`head_logits` by a product over columns, turned around.

    Args:
        hidden: `[tokens, D]`.
        head: `[V, D]`.

    Returns:
        `[V, tokens]` float32.
    """
    # Else the compiler turns the product around, which then takes a third longer.
    columns = jax.lax.optimization_barrier(hidden.T)
    return einsum_float32("vd,dt->vt", head.astype(hidden.dtype), columns)


def _column_norm(norm: RMSNorm, x: jax.Array) -> jax.Array:
    return norm.scale[...].astype(x.dtype)[:, None] * normalise(x, norm.eps, axis=0)


def _plain_attention(attention: nnx.Module) -> bool:
    return type(attention) is Attention and _plain(
        (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    )


def _plain_mlp(mlp: nnx.Module) -> bool:
    return type(mlp) is MLP and _plain((mlp.gate_proj, mlp.up_proj, mlp.down_proj))


def _plain(parts: Sequence[nnx.Module]) -> bool:
    return all(type(part) is nnx.Linear for part in parts)
