"""The memory of a decode: keys and values of the tokens seen so far."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .axes import heads_held
from .config import ModelConfig


class KVCache(NamedTuple):
    """Keys `[B, kv_heads, head_dim, capacity]` and values `[B, kv_heads, capacity, head_dim]`.

    On a mesh kv_heads is `heads_held`.

    Slot s of row b holds the token at position s of that row (after its prompt, beside a
    `PromptCache`), so right-padded prompts leave no holes: what was written for padding is
    overwritten by the token that comes to stand there, and nothing beyond a token's own slot is
    ever read for it. One array a layer, so that a step
    slices no stack; slots last in the keys and before last in the values, so that neither the
    scores nor the output sum along the last axis, which a CPU cannot do many terms at a time.
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return self.v[0].shape[2]

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.v[0].shape[0]


class PromptCache(NamedTuple):
    """Prompts that several rows of a decode start from, each held once.

    Of B rows that are decoded, row b starts from prompt b // (B / P), and its own `KVCache` holds
    only what comes after that prompt.

    Attributes:
        slots: keys and values, P rows.
        length: `[P]` int32, tokens of each prompt.
    """

    slots: KVCache
    length: jax.Array

    def starts(self, rows: int) -> jax.Array:
        """`[rows]` int32: the position of each decoded row's first own slot.

        Raises:
            ValueError: if the rows cannot be shared out evenly.
        """
        if rows % self.slots.batch:
            raise ValueError(
                f"{rows} rows cannot start from {self.slots.batch} prompts, as many from each"
            )
        return jnp.repeat(self.length, rows // self.slots.batch)


def init_cache(config: ModelConfig, batch: int, capacity: int, dtype=jnp.float32) -> KVCache:
    """An empty cache.

    Args:
        config: gives layers, key heads and head width.
        batch: rows.
        capacity: slots a row, in tokens.
        dtype: storage dtype of keys and values.

    Returns:
        A `KVCache` of zeros.

    Raises:
        ValueError: if `batch` or `capacity` is below 1.
    """
    if batch < 1 or capacity < 1:
        raise ValueError(f"batch and capacity must be at least 1, got {batch} and {capacity}")
    heads, width = heads_held(config.num_kv_heads, config.num_heads), config.head_dim

    def zeros(*shape):
        return tuple(jnp.zeros((batch, heads, *shape), dtype) for _ in range(config.num_layers))

    return KVCache(k=zeros(width, capacity), v=zeros(capacity, width))


def grow_cache(cache: KVCache, capacity: int) -> KVCache:
    """A cache with the same rows and room for more tokens.

    Args:
        cache: with at most `capacity` slots a row.
        capacity: slots a row.
    """
    more = capacity - cache.capacity

    def pad(stores: tuple[jax.Array, ...], axis: int) -> tuple[jax.Array, ...]:
        widths = [(0, more if n == axis else 0) for n in range(4)]
        return tuple(jnp.pad(store, widths) for store in stores)

    return KVCache(k=pad(cache.k, 3), v=pad(cache.v, 2))


def take_rows(cache: KVCache, rows: jax.Array) -> KVCache:
    """A cache whose row i is row `rows[i]` of the given one (repeat a prompt, drop done rows).

    Args:
        cache: with B rows.
        rows: `[B']` int32, row numbers in 0..B-1, repeats allowed.

    Returns:
        A `KVCache` with B' rows and the same capacity.
    """
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0), cache)


def write_slots(
    k_store: jax.Array, v_store: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Put new keys and values in their slots; one beyond the stores is dropped.

    Args:
        k_store: `[B, kv_heads, head_dim, capacity]`, keys of one layer.
        v_store: `[B, kv_heads, capacity, head_dim]`, values of it.
        k: `[B, S, kv_heads, head_dim]`.
        v: the shape of `k`.
        slots: `[B, S]` int32, at least 0, distinct within a row.

    Returns:
        The stores with `k[b, s]` and `v[b, s]` in slot `slots[b, s]` of row b.
    """

    # Row by row, so that the compiler knows that no row writes in another: on a mesh every device
    # would gather all of them.
    def write_k(store: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        new = jnp.moveaxis(new, 0, 2).astype(store.dtype)
        return store.at[:, :, at].set(new, mode="drop", unique_indices=True)

    def write_v(store: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        new = jnp.moveaxis(new, 0, 1).astype(store.dtype)
        return store.at[:, at].set(new, mode="drop", unique_indices=True)

    return jax.vmap(write_k)(k_store, k, slots), jax.vmap(write_v)(v_store, v, slots)
