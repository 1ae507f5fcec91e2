"""Attention within packed rows, with a gradient of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .precision import einsum_float32

# Masked scores are this low: finite, so that a row that sees nothing stays finite too, and low
# enough that exp(score - max) is exactly 0.
_MASKED = -1e30


@jax.custom_vjp
def attend_rows(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention over packed rows, on any platform.

        out = softmax(q k^T / sqrt(head_dim)) v

    The query heads that share a key head stand below each other in one matrix, so that each row
    and key head takes one product of two plain matrices; the sum of the exponentials divides the
    output and not the weights. The backward pass keeps the exponentials and uses
    `Σ_t p_t dp_t = out · d_out` for what a softmax takes off each row.

    Args:
        q: `[R, L, heads, head_dim]`.
        k: `[R, L, kv_heads, head_dim]`; query head h reads key head h // (heads / kv_heads).
        v: the shape of `k`.
        mask: `[R, L, L]` bool, True where query s sees key t.

    Returns:
        `[R, L, heads, head_dim]` in the dtype of `q`; scores and softmax are float32.
    """
    return _forward(q, k, v, mask)[0]


def _fold(q: jax.Array, kv_heads: int) -> jax.Array:
    """`[R, L, heads, d]` to `[R * kv_heads, group * L, d]`."""
    rows, length, heads, width = q.shape
    q = q.reshape(rows, length, kv_heads, heads // kv_heads, width)
    return q.transpose(0, 2, 3, 1, 4).reshape(rows * kv_heads, -1, width)


def _unfold(x: jax.Array, rows: int, length: int, kv_heads: int) -> jax.Array:
    """The way back of `_fold`."""
    width = x.shape[-1]
    x = x.reshape(rows, kv_heads, -1, length, width)
    return x.transpose(0, 3, 1, 2, 4).reshape(rows, length, -1, width)


def _forward(q, k, v, mask):
    rows, length, kv_heads, width = k.shape
    queries = _fold(q, kv_heads)
    keys, values = _fold(k, kv_heads), _fold(v, kv_heads)
    scores = einsum_float32("bsd,btd->bst", queries, keys) * width**-0.5
    scores = scores.reshape(rows, -1, length, length)
    scores = jnp.where(mask[:, None], scores, _MASKED)
    scores = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    weights = scores.reshape(rows * kv_heads, -1, length)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(v.dtype)
    out = (einsum_float32("bst,btd->bsd", weights, values) / total).astype(q.dtype)
    return _unfold(out, rows, length, kv_heads), (queries, keys, values, weights, total, out)


def _saved(q, k, v, mask):
    out, residuals = _forward(q, k, v, mask)
    return out, (*residuals, mask)


def _backward(saved, d_out):
    queries, keys, values, weights, total, out, mask = saved
    rows, length, _ = mask.shape
    kv_heads, width = keys.shape[0] // rows, keys.shape[-1]
    d_out = _fold(d_out, kv_heads).astype(jnp.float32) / total
    shift = jnp.sum(d_out * out.astype(jnp.float32), axis=-1, keepdims=True)
    d_out = d_out.astype(values.dtype)
    d_values = einsum_float32("bst,bsd->btd", weights, d_out)
    d_weights = einsum_float32("bsd,btd->bst", d_out, values)
    d_scores = (weights.astype(jnp.float32) * (d_weights - shift)).astype(queries.dtype)
    d_queries = einsum_float32("bst,btd->bsd", d_scores, keys) * width**-0.5
    d_keys = einsum_float32("bst,bsd->btd", d_scores, queries) * width**-0.5

    def back(x, like):
        return _unfold(x, rows, length, kv_heads).astype(like.dtype)

    no_mask = np.zeros(mask.shape, jax.dtypes.float0)
    return back(d_queries, queries), back(d_keys, keys), back(d_values, values), no_mask


attend_rows.defvjp(_saved, _backward)
