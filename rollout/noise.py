"""The noise of the draws: two uniforms for each place of each row, by hashing.

The hash is Threefry-2x32 and its words are those of `jax.random.fold_in`, which is a loop of ten
small programs on a CPU, where one expression takes a third of the time to compile.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def key_of(words: jax.Array | np.ndarray) -> jax.Array:
    """`[2]` uint32, the key of the first of `[K]` words, into which the others are folded."""
    words = jnp.asarray(words).astype(jnp.uint32)
    first = jnp.stack([jnp.zeros_like(words[0]), words[0]])
    return functools.reduce(fold_in, words[1:], first)


def fold_in(keys: jax.Array, data: jax.Array) -> jax.Array:
    """`jax.random.fold_in` of many keys and numbers.

    Args:
        keys: `[..., 2]` uint32.
        data: `[...]` integers of 32 bits; both broadcast.

    Returns:
        `[..., 2]` uint32, a key each.
    """
    words = data.astype(jnp.uint32)
    return jnp.stack(_threefry(keys[..., 0], keys[..., 1], jnp.zeros_like(words), words), axis=-1)


def row_keys(seed: jax.Array, owner: jax.Array) -> jax.Array:
    """One noise key a row, from the seed, the request and the completion alone.

    Args:
        seed: `[2]` uint32, a key.
        owner: `[S, 2]` int32, index of the request and of the completion.

    Returns:
        `[S, 2]` uint32.
    """
    return fold_in(fold_in(seed, owner[:, 0]), owner[:, 1])


def row_noise(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Two uniforms for each token, inside (0, 1).

    Folding the position in gives two random words already; no further bits are drawn.

    Args:
        keys: `[..., 2]` uint32.
        positions: `[...]` int32, where the token will stand in its row, prompt included.

    Returns:
        `[..., 2]` float32.
    """
    words = fold_in(keys, positions)
    return ((words >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)


def noise_ahead(keys: jax.Array, starts: jax.Array, count: int) -> jax.Array:
    """`row_noise` at the `count` positions after each row's start: `[S, count, 2]`."""
    return row_noise(keys[:, None], starts[:, None] + jnp.arange(1, count + 1))


def _threefry(k0, k1, x0, x1):
    """The two words of a hash of `x0`, `x1`, in 20 rounds."""
    schedule = k0, k1, k0 ^ k1 ^ _PARITY
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for turn in range(5):
        for distance in _ROTATIONS[turn % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << distance) | (x1 >> (32 - distance)))
        x0 = x0 + schedule[(turn + 1) % 3]
        x1 = x1 + schedule[(turn + 2) % 3] + np.uint32(turn + 1)
    return x0, x1
