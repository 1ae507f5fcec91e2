"""Prompts through the layers, so many at a time as the caches of a CPU have room for."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..models import Decoder
from ..models.cache import KVCache, init_cache
from .buckets import power_of_two

LEAST_PREFILL = 256  # tokens; products of fewer take nearly as long


class Prefill(NamedTuple):
    """How much of prompts is read at a time.

    Attributes:
        tokens: at most, padding included.
        pairs: of a query and a key, of which no more should be scored at a time; None: any number.
    """

    tokens: int
    pairs: int | None = None

    def piece(self, rows: int, width: int) -> tuple[int, int]:
        """Prompts of a pass, and tokens of each, that go through the layers at a time.

        Args:
            rows: prompts of the pass, a power of two.
            width: tokens of each, padding included.

        >>> Prefill(8192, pairs=1_000_000).piece(16, 500)
        (4, 500)
        >>> Prefill(8192, pairs=1_000_000).piece(16, 2000)
        (1, 256)
        """
        chunk = width if width <= self.tokens else power_of_two(self.tokens)
        if self.pairs is None or rows * chunk * width <= self.pairs:
            return rows, chunk
        fitting = self.pairs // width
        if fitting >= chunk:
            return min(rows, power_of_two(fitting // chunk)), chunk
        return 1, min(chunk, max(LEAST_PREFILL, power_of_two(fitting)))


def read_prompts(
    model: Decoder,
    tokens: jax.Array,
    lengths: jax.Array,
    piece: tuple[int, int],
    cache_dtype: jax.typing.DTypeLike,
) -> tuple[KVCache, jax.Array]:
    """Keys and values of right-padded prompts, and what is said of the last token of each.

    Args:
        model: reads them.
        tokens: `[P, W]` int32.
        lengths: `[P]` int32, at least 1.
        piece: prompts, and tokens of each, that go through the layers at a time. The prompts
            divide P.
        cache_dtype: of keys and values.

    Returns:
        The cache, with W slots a prompt, and hidden states `[P, D]`.
    """
    rows, chunk = piece
    if rows == len(tokens):
        return _read_piece(model, tokens, lengths, chunk, cache_dtype)

    def read(piece: tuple[jax.Array, jax.Array]) -> tuple[KVCache, jax.Array]:
        return _read_piece(model, *piece, chunk, cache_dtype)

    pieces = tokens.reshape(-1, rows, tokens.shape[1]), lengths.reshape(-1, rows)
    found = jax.lax.map(read, pieces)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)


def _read_piece(
    model: Decoder,
    tokens: jax.Array,
    lengths: jax.Array,
    chunk: int,
    cache_dtype: jax.typing.DTypeLike,
) -> tuple[KVCache, jax.Array]:
    """`read_prompts` of some prompts, a chunk of their tokens at a time."""
    prompts, width = tokens.shape
    chunks = -(-width // chunk)
    padded = jnp.pad(tokens, ((0, 0), (0, chunks * chunk - width)))

    def step(carry, index):
        cache, last = carry
        positions = index * chunk + jnp.arange(chunk, dtype=jnp.int32)
        part = jax.lax.dynamic_slice_in_dim(padded, index * chunk, chunk, axis=1)
        hidden, cache = model(part, jnp.broadcast_to(positions, part.shape), cache=cache)
        place = jnp.clip(lengths - 1 - index * chunk, 0, chunk - 1)
        ends = jnp.take_along_axis(hidden, place[:, None, None], 1, mode="clip")[:, 0]
        here = (lengths - 1) // chunk == index
        return (cache, jnp.where(here[:, None], ends, last)), None

    cache = init_cache(model.config, prompts, width, cache_dtype)
    last = jnp.zeros((prompts, model.config.hidden_size), model.dtype)
    if chunks == 1:
        return step((cache, last), 0)[0]
    return jax.lax.scan(step, (cache, last), jnp.arange(chunks))[0]
