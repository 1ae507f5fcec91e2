"""Attention over the slots of a cache, and over the prompts that its rows start from."""

from __future__ import annotations

import functools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .cache import PromptCache
from .precision import einsum_float32


class PromptSlots(NamedTuple):
    """The prompts of one layer; of B rows that attend, row b reads prompt b // (B / P).

    Attributes:
        k: `[P, kv_heads, head_dim, W]`.
        v: `[P, kv_heads, W, head_dim]`.
        mask: `[P, W]` bool, True where a slot holds a token.
    """

    k: jax.Array
    v: jax.Array
    mask: jax.Array


def prompt_slots(prompts: PromptCache) -> list[PromptSlots]:
    """What the layers read of prompts, one entry each."""
    mask = jnp.arange(prompts.slots.capacity) < prompts.length[:, None]
    stores = zip(prompts.slots.k, prompts.slots.v, strict=True)
    return [PromptSlots(k, v, mask) for k, v in stores]


def attend_slots(
    q: jax.Array,
    k_store: jax.Array,
    v_store: jax.Array,
    mask: jax.Array,
    prompts: PromptSlots | None = None,
) -> jax.Array:
    """Softmax attention over the slots of a cache.

        out = softmax(q [k_prompt, k]^T / sqrt(head_dim)) [v_prompt, v]

    A prompt's keys and values are read once for all the rows that start from it.

    Args:
        q: `[B, S, heads, head_dim]`; query head h reads key head h // (heads / kv_heads).
        k_store: `[B, kv_heads, head_dim, capacity]`.
        v_store: `[B, kv_heads, capacity, head_dim]`.
        mask: `[B, S, capacity]` bool, True where query s sees slot t, at least one a query.
        prompts: what all queries of their rows see besides.

    Returns:
        `[B, S, heads, head_dim]` in the dtype of `q`; scores and softmax are float32.
    """
    batch, length, heads, width = q.shape
    kv_heads = v_store.shape[1]
    grouped = q.reshape(batch, length, kv_heads, heads // kv_heads, width)
    queries = grouped.transpose(0, 2, 1, 3, 4).reshape(batch, kv_heads, -1, width)
    sources = [(k_store, v_store, jnp.repeat(mask, heads // kv_heads, axis=1)[:, None])]
    if prompts is not None:
        sources.append((prompts.k, prompts.v, prompts.mask[:, None, None]))
    products = partial(_attend, _score_product, _value_product, q.dtype)
    if length == 1:
        # One query a row: a CPU multiplies and sums faster than it prepares tiny matrix products.
        sums = partial(_attend, _score_sum, _value_sum, jnp.float32)
        out = jax.lax.platform_dependent(queries, sources, cpu=sums, default=products)
    else:
        out = products(queries, sources)
    out = out.reshape(batch, kv_heads, length, -1, width).transpose(0, 2, 1, 3, 4)
    return out.reshape(q.shape).astype(q.dtype)


def _attend(score, value, dtype, queries, sources):
    """One softmax over all sources, each `(k, v, mask)`, in products or sums of the given dtype.

    Queries are `[B, kv_heads, m, head_dim]`; so is what comes out, in float32.
    """
    rows, scale = len(queries), queries.shape[-1] ** -0.5
    scores = []
    for k, _, mask in sources:
        found = score(_together(queries.astype(dtype), len(k)), k.astype(dtype))
        # Added, not selected, so that masking joins the softmax's loops.
        scores.append(found * scale + jnp.where(mask, jnp.float32(0), -jnp.inf))
    tops = [_apart(jnp.max(one, axis=-1, keepdims=True), rows) for one in scores]
    top = functools.reduce(jnp.maximum, tops)
    outs, totals = [], []
    for (_, v, _), one in zip(sources, scores, strict=True):
        weights = jnp.exp(one - _together(top, len(v)))
        totals.append(_apart(jnp.sum(weights, axis=-1, keepdims=True), rows))
        outs.append(_apart(value(weights.astype(dtype), v.astype(dtype)), rows))
    return sum(outs[1:], outs[0]) / sum(totals[1:], totals[0])


def _together(x: jax.Array, prompts: int) -> jax.Array:
    """`[B, kv_heads, m, n]` to `[P, kv_heads, B / P m, n]`: the queries that read one prompt."""
    rows, heads, queries, width = x.shape
    grouped = x.reshape(prompts, rows // prompts, heads, queries, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(prompts, heads, -1, width)


def _apart(x: jax.Array, rows: int) -> jax.Array:
    """Back to B `rows`."""
    prompts, heads, _, width = x.shape
    grouped = x.reshape(prompts, heads, rows // prompts, -1, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(rows, heads, -1, width)


def _score_product(q: jax.Array, k: jax.Array) -> jax.Array:
    return einsum_float32("pkmd,pkdt->pkmt", q, k)


def _value_product(weights: jax.Array, v: jax.Array) -> jax.Array:
    return einsum_float32("pkmt,pktd->pkmd", weights, v)


def _score_sum(q: jax.Array, k: jax.Array) -> jax.Array:
    # Sums over two sources of one shape would share the queries' copies, written out for both.
    q, k = jax.lax.optimization_barrier((q, k))
    return _sum(q[..., None], k[:, :, None])


def _value_sum(weights: jax.Array, v: jax.Array) -> jax.Array:
    return _sum(weights[..., None], v[:, :, None])


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    """`sum(a * b, axis=-2)` of arrays with as many axes, which broadcast.

    Leading axes of one, as a query of its own has for each key head, are left out: with them the
    compiler's sums take 7 to 150 times as long.
    """
    *lead, _, _ = jnp.broadcast_shapes(a.shape, b.shape)
    ones = tuple(axis for axis, size in enumerate(lead) if size == 1)
    found = jnp.sum(jnp.squeeze(a, ones) * jnp.squeeze(b, ones), axis=-2)
    return jnp.expand_dims(found, ones)
