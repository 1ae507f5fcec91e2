"""The head a block of the vocabulary at a time: for vocabularies that dwarf everything else."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .precision import einsum_float32

_LOWEST = -1e30


class Options(NamedTuple):
    """What is computed and how: the columns of a block, and which sums are wanted.

    With `keep` all logits are kept for the backward pass, which otherwise computes them again.
    """

    block: int
    entropy: bool
    squares: bool
    keep: bool


class Sums(NamedTuple):
    """Running sums of one token over the blocks, with its largest logit taken off.

    Args:
        peak: the largest logit so far.
        total: Σ e^(z - peak).
        weighted: Σ e^(z - peak) (z - peak).
        squares: Σ e^(2 (z - peak)).
        target: the logit of the target, once its block has come.
    """

    peak: jax.Array
    total: jax.Array
    weighted: jax.Array
    squares: jax.Array
    target: jax.Array


def _blocks(vocab: int, block: int) -> int:
    return -(-vocab // block)


def _each_block(step, carry, blocks: int, *, unrolled: bool):
    """`step(carry, n)` for every block: as one loop, or written out, its results in a list then.

    Written out, a block's logits stay where the product left them: a loop would copy them into
    an array that it first fills with zeros.
    """
    if not unrolled:
        return jax.lax.scan(step, carry, jnp.arange(blocks))
    results = []
    for n in range(blocks):
        carry, result = step(carry, n)
        results.append(result)
    return carry, results


def _columns(kernel, n, block, dtype):
    """Block n of the kernel, its first column, and which of its columns no block before had.

    In a loop the last block ends with the vocabulary, and overlaps the one before where it must;
    None where none does. Written out it is shorter.
    """
    vocab = kernel.shape[1]
    if isinstance(n, int):
        return kernel[:, n * block : (n + 1) * block].astype(dtype), n * block, None
    start = jnp.minimum(n * block, vocab - block)
    columns = jax.lax.dynamic_slice_in_dim(kernel, start, block, axis=1).astype(dtype)
    new = None if vocab % block == 0 else start + jnp.arange(block) >= n * block
    return columns, start, new


def _places(targets, start):
    """Columns of the targets within a block.

    Behind a barrier, so that blocks that are written out share the programs that read it.
    """
    return jax.lax.optimization_barrier(targets - start)


def _logits(hidden, columns, temperature):
    z = einsum_float32("td,dv->tv", hidden, columns)
    return z if temperature is None else z / temperature


def _add(sums: Sums, z, new, places) -> Sums:
    masked = z if new is None else jnp.where(new, z, _LOWEST)
    peak = jnp.maximum(sums.peak, jnp.max(masked, axis=-1))
    lower = sums.peak - peak
    kept = jnp.exp(lower)
    total = jnp.sum(jnp.exp(masked - peak[:, None]), axis=-1)
    # Exponentials of their own, behind a barrier: those of the total would be written out for both.
    shifted = masked - jax.lax.optimization_barrier(peak)[:, None]
    e = jnp.exp(shifted)
    width = z.shape[1]
    at = jnp.take_along_axis(z, jnp.clip(places, 0, width - 1)[:, None], axis=1)[:, 0]
    return Sums(
        peak,
        kept * sums.total + total,
        kept * (sums.weighted + lower * sums.total) + jnp.sum(e * shifted, axis=-1),
        kept**2 * sums.squares + jnp.sum(e * e, axis=-1),
        jnp.where((places >= 0) & (places < width), at, sums.target),
    )


def _forward(hidden, kernel, targets, temperature, options: Options, *, keep: bool = False):
    """What is wanted; each token's peak and log total; the logits of each block, or None."""
    tokens, block = hidden.shape[0], options.block

    def step(sums, n):
        columns, start, new = _columns(kernel, n, block, hidden.dtype)
        z = _logits(hidden, columns, temperature)
        return _add(sums, z, new, _places(targets, start)), z if keep else None

    lowest, zero = jnp.full(tokens, _LOWEST, jnp.float32), jnp.zeros(tokens, jnp.float32)
    sums = Sums(lowest, zero, zero, zero, zero)
    blocks = _blocks(kernel.shape[1], block)
    sums, kept = _each_block(step, sums, blocks, unrolled=keep)
    log_total = jnp.log(sums.total)
    logp = (sums.target - sums.peak) - log_total
    entropy = log_total - sums.weighted / sums.total if options.entropy else None
    squares = sums.squares / sums.total**2 if options.squares else None
    return (logp, entropy, squares), (sums.peak, log_total), kept


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def blocked_stats(
    hidden, kernel, targets, temperature, options: Options
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Log-probability, entropy and sum of squared probabilities of each token.

    Each block of columns of the kernel is read once, and each block of its gradient written once;
    what is held beside them is `[tokens, block]`.

    Args:
        hidden: `[tokens, D]`.
        kernel: `[D, V]`.
        targets: `[tokens]` int32.
        temperature: a float32 scalar; None leaves the logits as they are.
        options: columns of a block, at most V, and what is wanted.

    Returns:
        Three arrays `[tokens]` float32; None for what is not wanted.
    """
    return _forward(hidden, kernel, targets, temperature, options)[0]


def _saved(hidden, kernel, targets, temperature, options):
    stats, totals, kept = _forward(hidden, kernel, targets, temperature, options, keep=options.keep)
    return stats, (hidden, kernel, targets, temperature, stats, totals, kept)


def logits_gradient(z, chosen, log_total, stats, cotangents):
    """Derivative with respect to tempered logits, all of a token or a block of them.

    d logp / dz_j    = [j = target] - p_j
    d entropy / dz_j = -p_j (z_j - sum_i p_i z_i),  sum_i p_i z_i = log_total - entropy
    d sum p^2 / dz_j = 2 p_j (p_j - sum p^2)

    Args:
        z: `[tokens, columns]`, each token's largest taken off.
        chosen: the same shape, where the target is.
        log_total: `[tokens]`, log of the sum of all exponentials of z.
        stats: log-probability, entropy and sum of squared probabilities, `[tokens]` each; None for
            what was not wanted.
        cotangents: of these.

    Returns:
        The shape of `z`.
    """
    _, entropy, squares = stats
    d_logp, d_entropy, d_squares = cotangents
    p = jnp.exp(z - log_total[:, None])
    dz = d_logp[:, None] * (chosen - p)
    if entropy is not None:
        dz = dz - d_entropy[:, None] * p * (z - (log_total - entropy)[:, None])
    if squares is not None:
        dz = dz + d_squares[:, None] * 2 * p * (p - squares[:, None])
    return dz


def _backward(options, saved, cotangents):
    hidden, kernel, targets, temperature, stats, (peak, log_total), kept = saved
    block, unrolled = options.block, kept is not None

    def of_block(n):
        """The block's gradient at the logits, its kernel, and its share of the temperature's."""
        columns, start, new = _columns(kernel, n, block, hidden.dtype)
        z = _logits(hidden, columns, temperature) if kept is None else kept[n]
        chosen = jnp.arange(z.shape[1]) == _places(targets, start)[:, None]
        dz = logits_gradient(z - peak[:, None], chosen, log_total, stats, cotangents)
        dz = dz if new is None else jnp.where(new, dz, 0.0)
        if temperature is None:
            return dz.astype(hidden.dtype), columns, None
        d_temperature = -jnp.sum(dz * z) / temperature
        return (dz / temperature).astype(hidden.dtype), columns, d_temperature

    def step(carry, n):
        d_hidden, d_temperature, d_kernel = carry
        dz, columns, more = of_block(n)
        d_hidden = d_hidden + einsum_float32("tv,dv->td", dz, columns)
        d_temperature = None if more is None else d_temperature + more
        d_columns = einsum_float32("td,tv->dv", hidden, dz).astype(kernel.dtype)
        if unrolled:
            return (d_hidden, d_temperature, None), d_columns
        return (d_hidden, d_temperature, _put(d_kernel, d_columns, n)), None

    blocks = _blocks(kernel.shape[1], block)
    start = (
        jnp.zeros(hidden.shape, jnp.float32),
        None if temperature is None else jnp.zeros((), jnp.float32),
        None if unrolled else jnp.zeros_like(kernel),
    )
    found, columns = _each_block(step, start, blocks, unrolled=unrolled)
    d_hidden, d_temperature, d_kernel = found
    if columns is not None:
        d_kernel = jnp.concatenate(columns, axis=1)
    no_targets = np.zeros(targets.shape, jax.dtypes.float0)
    return d_hidden.astype(hidden.dtype), d_kernel, no_targets, d_temperature


def _put(d_kernel, d_columns, n):
    """A block's gradient into the kernel's, without what the block before has put there."""
    block, vocab = d_columns.shape[1], d_kernel.shape[1]
    start = jnp.minimum(n * block, vocab - block)
    if vocab % block:
        before = jax.lax.dynamic_slice_in_dim(d_kernel, start, block, axis=1)
        d_columns = jnp.where(start + jnp.arange(block) >= n * block, d_columns, before)
    return jax.lax.dynamic_update_slice_in_dim(d_kernel, d_columns, start, axis=1)


blocked_stats.defvjp(_saved, _backward)
