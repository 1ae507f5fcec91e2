"""Attention within packed rows, with a gradient of its own."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .axes import whole_length
from .layers import without_ones
from .precision import einsum_float32

# Masked scores are this low: finite, so that a row that sees nothing stays finite too, and low
# enough that exp(score - max) is exactly 0.
_MASKED = -1e30


class BranchMask(NamedTuple):
    """Who sees whom in rows that begin with prompts, which K branches of C tokens read.

    Attributes:
        prompts: `[R, P, P]` bool, of the prompts among themselves.
        own: `[R, K, C, C]` bool, of each branch's tokens among themselves.
        read: `[R, K, C, P]` bool, what each branch sees of the prompts.
    """

    prompts: jax.Array
    own: jax.Array
    read: jax.Array


class _Keys(NamedTuple):
    """Keys that queries see, of their own branch, or of the row for all its branches.

    Attributes:
        keys: `[R, kv_heads, K, T, head_dim]`, K 1 for all branches.
        values: the shape of `keys`.
        mask: `[R, K, C, T]` bool.
    """

    keys: jax.Array
    values: jax.Array
    mask: jax.Array | np.ndarray  # NumPy's in a gradient: that of a mask is of no value at all


def attend_rows(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention over packed rows, on any platform.

        out = softmax(q k^T / sqrt(head_dim)) v

    Args:
        q: `[R, L, heads, head_dim]`.
        k: `[R, L, kv_heads, head_dim]`; query head h reads key head h // (heads / kv_heads).
        v: the shape of `k`.
        mask: `[R, L, L]` bool, True where query s sees key t.

    Returns:
        `[R, L, heads, head_dim]` in the dtype of `q`; scores and softmax are float32.
    """
    # Each token of a row that is spread over devices sees keys of all.
    k, v = whole_length(k), whole_length(v)
    own = _Keys(_fold(k[:, None]), _fold(v[:, None]), mask[:, None])
    return _attend_branches(q[:, None], k.shape[2], (own,))[:, 0]


def attend_branches(q: jax.Array, k: jax.Array, v: jax.Array, mask: BranchMask) -> jax.Array:
    """`attend_rows` for rows of prompts, and of branches that read them.

    The keys of a prompt are read by all its branches, and no branch is compared with another: the
    scores of a row are P² + K C (P + C) instead of (P + K C)².

    Args:
        q: `[R, P + K * C, heads, head_dim]`.
        k: `[R, P + K * C, kv_heads, head_dim]`, as of `attend_rows`.
        v: the shape of `k`.
        mask: who sees whom; its shapes say what P, K and C are.

    Returns:
        `[R, P + K * C, heads, head_dim]` in the dtype of `q`.
    """
    rows, count, length, room = mask.read.shape

    def branches(x: jax.Array) -> jax.Array:
        return x[:, room:].reshape(rows, count, length, *x.shape[2:])

    own = _Keys(_fold(branches(k)), _fold(branches(v)), mask.own)
    read = _Keys(_fold(k[:, None, :room]), _fold(v[:, None, :room]), mask.read)
    out = _attend_branches(branches(q), k.shape[2], (own, read))
    prompts = attend_rows(q[:, :room], k[:, :room], v[:, :room], mask.prompts)
    return jnp.concatenate([prompts, out.reshape(rows, -1, *q.shape[2:])], axis=1)


def _fold(x: jax.Array, kv_heads: int | None = None) -> jax.Array:
    """`[R, K, C, heads, d]` to `[R, kv_heads, K, C * group, d]`; None: as many as heads.

    A mesh may spread rows, heads and length, so the first two stay axes of their own, and the
    length comes before what it is joined with.
    """
    rows, count, length, heads, width = x.shape
    x = x.reshape(rows, count, length, kv_heads or heads, -1, width)
    return x.transpose(0, 3, 1, 2, 4, 5).reshape(rows, kv_heads or heads, count, -1, width)


def _attend_branches(q: jax.Array, kv_heads: int, seen: tuple[_Keys, ...]) -> jax.Array:
    """`[R, K, C, heads, head_dim]` queries to outputs of that shape."""
    rows, count, length, _, width = q.shape
    out = _attend(_fold(q, kv_heads), seen)
    out = out.reshape(rows, kv_heads, count, length, -1, width)
    return out.transpose(0, 2, 3, 1, 4, 5).reshape(q.shape)


@jax.custom_vjp
def _attend(queries: jax.Array, seen: tuple[_Keys, ...]) -> jax.Array:
    """One softmax over all keys that are seen.

    The query heads that share a key head are rows of one matrix, so that each branch and key head
    takes one product of two plain matrices; the sum of the exponentials divides the output and not
    the weights. The backward pass keeps the exponentials and uses `Σ_t p_t dp_t = out · d_out` for
    what a softmax takes off each row.
    """
    return _forward(queries, seen)[0]


def _forward(queries, seen):
    scores = [_scores(queries, one) for one in seen]
    highest = [jnp.max(score, axis=-1, keepdims=True) for score in scores]
    top = functools.reduce(jnp.maximum, highest)
    weights = [jnp.exp(score - top) for score in scores]
    total = _sum([jnp.sum(weight, axis=-1, keepdims=True) for weight in weights])
    total = total.reshape(*queries.shape[:-1], 1)
    weights = [
        weight.reshape(*queries.shape[:-1], -1).astype(one.values.dtype)
        for weight, one in zip(weights, seen, strict=True)
    ]
    mixed = [_mix(weight, one.values) for weight, one in zip(weights, seen, strict=True)]
    out = (_sum(mixed) / total).astype(queries.dtype)
    return out, (queries, seen, weights, total, out)


def _scores(queries, one):
    """`[R, kv_heads, K, C, group, T]` float32, masked."""
    count, length, keys = one.mask.shape[1:]
    found = einsum_float32("...sd,...td->...st", _by_keys(queries, one.keys), one.keys)
    found = found.reshape(*queries.shape[:2], count, length, -1, keys)
    return jnp.where(one.mask[:, None, :, :, None], found * queries.shape[-1] ** -0.5, _MASKED)


def _mix(weights, values):
    """`[R, kv_heads, K, S, T]` weights of each branch to `[R, kv_heads, K, S, d]` float32."""
    found = einsum_float32("...st,...td->...sd", _by_keys(weights, values), values)
    return found.reshape(*weights.shape[:-1], -1)


def _sum(parts: list[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, parts)


def _by_keys(x, keys):
    """`[R, kv_heads, K, S, n]`, or `[R, kv_heads, 1, K * S, n]` if all branches read the same."""
    return x.reshape(*keys.shape[:3], -1, x.shape[-1])


def _backward(saved, d_out):
    queries, seen, weights, total, out = saved
    d_out = d_out.astype(jnp.float32) / total
    shift = jnp.sum(without_ones(d_out) * without_ones(out).astype(jnp.float32), axis=-1)
    shift = shift.reshape(*out.shape[:-1], 1)
    scale = queries.shape[-1] ** -0.5
    d_queries, d_seen = [], []
    for weight, one in zip(weights, seen, strict=True):
        narrow = _by_keys(d_out.astype(one.values.dtype), one.keys)
        weight = _by_keys(weight, one.keys)
        d_values = einsum_float32("...st,...sd->...td", weight, narrow)
        d_weights = einsum_float32("...sd,...td->...st", narrow, one.values)
        d_scores = weight.astype(jnp.float32) * (d_weights - _by_keys(shift, one.keys))
        d_scores = d_scores.astype(queries.dtype)
        d_queries.append(
            einsum_float32("...st,...td->...sd", d_scores, one.keys).reshape(queries.shape)
        )
        d_keys = einsum_float32("...st,...sd->...td", d_scores, _by_keys(queries, one.keys)) * scale
        no_mask = np.zeros(one.mask.shape, jax.dtypes.float0)
        dtype = one.keys.dtype
        d_seen.append(_Keys(d_keys.astype(dtype), d_values.astype(dtype), no_mask))
    return (_sum(d_queries) * scale).astype(queries.dtype), tuple(d_seen)


_attend.defvjp(_forward, _backward)
