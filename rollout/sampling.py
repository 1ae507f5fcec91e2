"""Drawing one token a row from logits, with its log-probability.

Truncation is a bound on the distance from the most likely token's logit, so top-k, top-p and
min-p are three bounds of which the smallest counts. The bounds of top-k and top-p are found by
bisection over the bits of the distances: 31 passes, exact, where a sort of a large vocabulary
costs ten times as much.

The order is that of Hugging Face: temperature, top-k, top-p on what top-k left (renormalised),
min-p. Tokens tied with the last one kept are kept too, so top-k may keep more than k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .types import SamplingParams

BLOCK = 128  # tokens of the vocabulary summed together before the second draw
STOP_SLOTS = 8  # stop ids are padded to a multiple of this, so their number compiles nothing
_INFINITY_BITS = 0x7F800000


class SamplingArrays(NamedTuple):
    """`SamplingParams` as traced values: changing one compiles nothing.

    Attributes:
        temperature: scalar float32, 0 is greedy.
        top_p: scalar float32, 1 keeps all.
        top_k: scalar int32, 0 keeps all.
        min_p: scalar float32, 0 keeps all.
        stop_ids: `[K]` int32, padded with -1.
    """

    temperature: jax.Array | np.ndarray
    top_p: jax.Array | np.ndarray
    top_k: jax.Array | np.ndarray
    min_p: jax.Array | np.ndarray
    stop_ids: jax.Array | np.ndarray


def sampling_arrays(sampling: SamplingParams) -> SamplingArrays:
    """The values of `sampling` as arrays of fixed shapes."""
    stops = np.full(max(1, -(-len(sampling.stop_ids) // STOP_SLOTS)) * STOP_SLOTS, -1, np.int32)
    stops[: len(sampling.stop_ids)] = sampling.stop_ids
    return SamplingArrays(
        temperature=np.asarray(sampling.temperature, np.float32),
        top_p=np.asarray(sampling.top_p, np.float32),
        top_k=np.asarray(sampling.top_k or 0, np.int32),
        min_p=np.asarray(sampling.min_p, np.float32),
        stop_ids=stops,
    )


def sample(
    logits: jax.Array, noise: jax.Array, sampling: SamplingArrays, *, truncated: bool
) -> tuple[jax.Array, jax.Array]:
    """Draw a token a column; its log-probability is that of the distribution drawn from.

        d = (max logits - logits) / temperature;  keep d <= bound;  p = exp(-d) / sum_kept exp(-d)

    Args:
        logits: `[V, S]` float32, a column for each row of the batch, as products over columns give
            them: to turn a large vocabulary around takes as long as all passes over it.
        noise: `[S, 2]` float32 in (0, 1).
        sampling: temperature 0 takes the most likely token and reports its logp at temperature 1.
        truncated: static; False leaves top-k and top-p out of the program.

    Returns:
        tokens `[S]` int32, logp `[S]` float32.
    """
    greedy = sampling.temperature == 0
    blocks = in_blocks(logits, -jnp.inf)
    tallest = _once(jnp.max(blocks, axis=1))
    top = jnp.max(tallest, axis=0)
    temperature = jnp.where(greedy, 1.0, sampling.temperature)
    bound = -jnp.log(sampling.min_p) * jnp.ones_like(top)
    if truncated:
        top_k, top_p = jnp.asarray(sampling.top_k), jnp.asarray(sampling.top_p)
        rows = ((top - blocks) / temperature).reshape(-1, len(top)).T
        bound = jnp.minimum(bound, _order_bound(rows, top_k, top_p))

    def weigh(some: jax.Array) -> jax.Array:
        distance = (top - some) / temperature
        return jnp.where(distance <= bound, jnp.exp(-distance), 0.0)

    def inside(block: jax.Array) -> jax.Array:
        some = jnp.take_along_axis(blocks, block[None, None], axis=0)[0]
        return jnp.where(greedy, _equal(some, top), weigh(some))

    mass = _once(weigh(blocks).sum(axis=1))
    # The most likely token: the first that weighs anything where only the largest logits do.
    heaviest = jnp.where(greedy, _equal(tallest, top), mass)
    tokens = draw(heaviest, inside, jnp.where(greedy, 0.0, noise))
    picked = jnp.take_along_axis(logits, tokens[None], axis=0)[0]
    return tokens, (picked - top) / temperature - jnp.log(mass.sum(axis=0))


def draw(mass: jax.Array, inside: Callable[[jax.Array], jax.Array], noise: jax.Array) -> jax.Array:
    """Index drawn in proportion to its weight, by the inverse of the cumulative sum.

    First a block of the vocabulary, then a token in it, each with its own uniform: one pass over
    the weights, and float32 sums over few terms. A weight of zero is never drawn.

    Args:
        mass: `[blocks, S]` float32, sums of the weights of each block.
        inside: of a block for each column, `[S]` int32, its weights `[BLOCK, S]` float32, not
            negative.
        noise: `[S, 2]` float32 in [0, 1); 0 takes the first that weighs anything.

    Returns:
        `[S]` int32; 0 where nothing weighs anything.
    """
    block = _invert(mass.T, noise[:, 0])
    return block * BLOCK + _invert(inside(block).T, noise[:, 1])


def in_blocks(columns: jax.Array, fill: float) -> jax.Array:
    """`[V, S]` as `[blocks, BLOCK, S]`, the last block filled up."""
    vocabulary, rows = columns.shape
    padded = jnp.pad(columns, ((0, -vocabulary % BLOCK), (0, 0)), constant_values=fill)
    return padded.reshape(-1, BLOCK, rows)


def _once(by_block: jax.Array) -> jax.Array:
    """Else what is made of it is made of the whole vocabulary, in a pass of its own."""
    return jax.lax.optimization_barrier(by_block)


def _equal(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x == y).astype(jnp.float32)


def _invert(weight: jax.Array, uniform: jax.Array) -> jax.Array:
    cumulative = jnp.cumsum(weight, axis=-1)
    # Not the last sum: of a vocabulary over devices that slice would spread the block again.
    target = uniform[:, None] * jnp.max(cumulative, axis=-1, keepdims=True)
    # Sums are rounded: an earlier one may be larger than the last, or seem to rise by a weight of
    # zero. So a hit weighs something, and where there is none the last that does is taken. One
    # minimum finds both: a hit stands for itself, another n - i places behind all hits.
    count = weight.shape[-1]
    index = jnp.arange(count, dtype=jnp.int32)
    otherwise = jnp.where(weight > 0, 2 * count - index, 2 * count)
    place = jnp.where((cumulative >= target) & (weight > 0), index, otherwise)
    found = jnp.min(place, axis=-1)
    return jnp.where(found < count, found, 2 * count - found)


def _order_bound(distance: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Largest distance kept by top-k, then by top-p on what it left; `[S]`."""
    rows = len(distance)

    def everything() -> jax.Array:
        return jnp.full(rows, jnp.inf)

    def by_rank() -> jax.Array:
        goal = jnp.broadcast_to(top_k.astype(jnp.float32), (rows,))
        return _bisect(distance, jnp.ones_like(distance), goal)

    def by_mass() -> jax.Array:
        weight = jnp.where(distance <= k_bound[:, None], jnp.exp(-distance), 0.0)
        return _bisect(distance, weight, top_p * weight.sum(axis=-1))

    k_bound = jax.lax.cond(top_k > 0, by_rank, everything)
    return jnp.minimum(k_bound, jax.lax.cond(top_p < 1, by_mass, everything))


def _bisect(distance: jax.Array, weight: jax.Array, goal: jax.Array) -> jax.Array:
    """Smallest bound whose tokens (distance <= bound) weigh at least `goal`; inf if none do.

    The bits of floats that are not negative sort as the floats do.
    """
    bits = jax.lax.bitcast_convert_type(distance, jnp.int32)

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = low + (high - low) // 2
        enough = jnp.where(bits <= middle[:, None], weight, 0.0).sum(axis=-1) >= goal
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    low = jnp.full(len(distance), -1, jnp.int32)
    high = jnp.full(len(distance), _INFINITY_BITS, jnp.int32)
    _, high = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(high, jnp.float32)
