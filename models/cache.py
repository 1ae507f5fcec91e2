"""The memory of a decode: keys and values of the tokens seen so far."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .config import ModelConfig


class KVCache(NamedTuple):
    """Keys and values, one array a layer, `[B, kv_heads, capacity, head_dim]`.

    Slot s of row b holds the token at position s of that row, so right-padded prompts leave no
    holes: what was written for padding is overwritten by the token that comes to stand there, and
    nothing beyond a token's own position is ever read for it. One array a layer, and slots next to
    the head width, because a step then neither slices a stack nor transposes what it reads.
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return self.k[0].shape[2]

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.k[0].shape[0]


def init_cache(config: ModelConfig, batch: int, capacity: int, dtype=jnp.float32) -> KVCache:
    """An empty cache.

    Args:
        config: gives layers, key heads and head width.
        batch: rows.
        capacity: slots a row, in tokens; the largest position plus one.
        dtype: storage dtype of keys and values.

    Returns:
        A `KVCache` of zeros.

    Raises:
        ValueError: if `batch` or `capacity` is below 1.
    """
    if batch < 1 or capacity < 1:
        raise ValueError(f"batch and capacity must be at least 1, got {batch} and {capacity}")
    shape = (batch, config.num_kv_heads, capacity, config.head_dim)

    def zeros():
        return tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers))

    return KVCache(k=zeros(), v=zeros())


def take_rows(cache: KVCache, rows: jax.Array) -> KVCache:
    """A cache whose row i is row `rows[i]` of the given one (repeat a prompt, drop done rows).

    Args:
        cache: with B rows.
        rows: `[B']` int32, row numbers in 0..B-1, repeats allowed.

    Returns:
        A `KVCache` with B' rows and the same capacity.
    """
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0), cache)


def write_slots(store: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
    """Put the new entries at their positions; a position outside the store is dropped.

    Args:
        store: `[B, kv_heads, capacity, head_dim]`, keys or values of one layer.
        new: `[B, S, kv_heads, head_dim]`.
        positions: `[B, S]` int32, distinct within a row.

    Returns:
        The store with `new[b, s]` in slot `positions[b, s]` of row b.
    """
    rows = jnp.arange(store.shape[0])[:, None]
    return store.at[rows, :, positions].set(new.astype(store.dtype), mode="drop")
