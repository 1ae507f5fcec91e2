"""Drawing one token a row from logits, with its log-probability.

Truncation is a bound on the distance from the most likely token's logit, so top-k, top-p and
min-p are three bounds of which the smallest counts. The bounds of top-k and top-p are found by
bisection over the bits of the distances: 31 passes, exact, where a sort of a large vocabulary
costs ten times as much.

The order is that of Hugging Face: temperature, top-k, top-p on what top-k left (renormalised),
min-p. Tokens tied with the last one kept are kept too, so top-k may keep more than k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .types import SamplingParams

BLOCK = 128  # tokens of the vocabulary summed together before the second draw
STOP_SLOTS = 8  # stop ids are padded to a multiple of this, so their number compiles nothing
_INFINITY_BITS = 0x7F800000
_Choice: TypeAlias = Callable[[jax.Array], jax.Array]  # [S, n] to [S] int32, one of n


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


def key_of(words: jax.Array | np.ndarray) -> jax.Array:
    """A typed key of the first of `[K]` uint32 words, into which the others are folded."""
    words = jnp.asarray(words)
    return functools.reduce(jax.random.fold_in, words[1:], jax.random.key(words[0]))


def row_keys(seed: jax.Array, owner: jax.Array) -> jax.Array:
    """One noise key a row, from the seed, the request and the completion alone.

    Args:
        seed: a typed key.
        owner: `[S, 2]` int32, index of the request and of the completion.

    Returns:
        `[S]` typed keys.
    """
    fold = jax.random.fold_in
    return jax.vmap(lambda pair: fold(fold(seed, pair[0]), pair[1]))(owner)


def row_noise(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Two uniforms a row for the token at `positions`, inside (0, 1).

    Folding the position in gives two random words already; no further bits are drawn.

    Args:
        keys: `[S]` typed keys.
        positions: `[S]` int32, where the token will stand in its row, prompt included.

    Returns:
        `[S, 2]` float32.
    """
    words = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, positions))
    return ((words >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)


def noise_ahead(keys: jax.Array, starts: jax.Array, count: int) -> jax.Array:
    """`row_noise` at the `count` positions after each row's start: `[S, count, 2]`."""
    positions = starts + jnp.arange(1, count + 1)[:, None]
    return jax.vmap(row_noise, (None, 0), 1)(keys, positions)


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
    distance = (top - blocks) / temperature
    bound = -jnp.log(sampling.min_p) * jnp.ones_like(top)
    if truncated:
        top_k, top_p = jnp.asarray(sampling.top_k), jnp.asarray(sampling.top_p)
        rows = distance.reshape(-1, len(top)).T
        bound = jnp.minimum(bound, _order_bound(rows, top_k, top_p))
    weight = jnp.where(distance <= bound, jnp.exp(-distance), 0.0)
    mass = _once(weight.sum(axis=1))
    tokens = jax.lax.cond(
        greedy,
        lambda: _pick(tallest, blocks, (_first_largest, _first_largest)),
        lambda: draw(mass, weight, noise),
    )
    picked = jnp.take_along_axis(logits, tokens[None], axis=0)[0]
    return tokens, (picked - top) / temperature - jnp.log(mass.sum(axis=0))


def draw(mass: jax.Array, weight: jax.Array, noise: jax.Array) -> jax.Array:
    """Index drawn in proportion to its weight, by the inverse of the cumulative sum.

    First a block of the vocabulary, then a token in it, each with its own uniform: one pass over
    the weights, and float32 sums over few terms. A weight of zero is never drawn.

    Args:
        mass: `[blocks, S]` float32, sums of the weights of each block.
        weight: `[blocks, BLOCK, S]` float32, not negative, at least one positive a column.
        noise: `[S, 2]` float32 in (0, 1).

    Returns:
        `[S]` int32.
    """
    first, second = noise.T
    return _pick(mass, weight, (lambda x: _invert(x, first), lambda x: _invert(x, second)))


def in_blocks(columns: jax.Array, fill: float) -> jax.Array:
    """`[V, S]` as `[blocks, BLOCK, S]`, the last block filled up."""
    vocabulary, rows = columns.shape
    padded = jnp.pad(columns, ((0, -vocabulary % BLOCK), (0, 0)), constant_values=fill)
    return padded.reshape(-1, BLOCK, rows)


def _once(by_block: jax.Array) -> jax.Array:
    """Else what is made of it is made of the whole vocabulary, in a pass of its own."""
    return jax.lax.optimization_barrier(by_block)


def _pick(whole: jax.Array, blocks: jax.Array, choices: tuple[_Choice, _Choice]) -> jax.Array:
    """A token a column: the first choice, among `whole` `[blocks, S]`, is that of its block."""
    block = choices[0](whole.T)
    inside = jnp.take_along_axis(blocks, block[None, None], axis=0)[0]
    return block * BLOCK + choices[1](inside.T)


def _first_largest(values: jax.Array) -> jax.Array:
    return jnp.argmax(values, axis=-1).astype(jnp.int32)


def _invert(weight: jax.Array, uniform: jax.Array) -> jax.Array:
    cumulative = jnp.cumsum(weight, axis=-1)
    # Sums are rounded, so that the last may stay below an earlier one, and a weight of zero may
    # seem to rise: a hit needs a positive weight, and the target stays within the largest sum.
    target = uniform[:, None] * jnp.max(cumulative, axis=-1, keepdims=True)
    index = jnp.arange(weight.shape[-1], dtype=jnp.int32)
    positive = weight > 0
    last = jnp.max(jnp.where(positive, index, 0), axis=-1)
    hit = jnp.min(jnp.where((cumulative >= target) & positive, index, len(index)), axis=-1)
    return jnp.minimum(hit, last)


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
