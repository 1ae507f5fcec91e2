"""Log-probabilities and entropies through the head, a chunk of tokens at a time."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .axes import constrain
from .precision import einsum_float32
from .vocabulary import Options as BlockOptions
from .vocabulary import blocked_stats, logits_gradient

# Without a chunk size: about this many logits at a time (32 MiB in float32).
_LOGITS_A_CHUNK = 2**23
# Up to so many (64 MiB) are kept for the backward pass, which otherwise computes them again: one
# product in four of those that the head takes.
_LOGITS_KEPT = 2**24
# Where the vocabulary is cut: from how many columns on, and about how many logits at a time. On a
# CPU 4 MiB of them stay in the caches, and a product packs a block of the head, not all of it.
_BLOCKS_FROM, _LOGITS_A_BLOCK = 2**16, 2**22
_BLOCKS_FROM_CPU, _LOGITS_A_BLOCK_CPU = 2**14, 2**20
_ROWS_MULTIPLE = 8


def head_logits(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
    """The head: `hidden @ kernel`, in the dtype of `hidden`, summed and returned in float32.

    Args:
        hidden: `[..., D]`.
        kernel: `[D, V]`.

    Returns:
        `[..., V]` float32.
    """
    return einsum_float32("...d,dv->...v", hidden, kernel.astype(hidden.dtype))


class TokenStats(NamedTuple):
    """What one pass through the head tells of each token, float32, shape of the targets.

    Args:
        logp: log-probability of the target.
        entropy: of the whole distribution, in nats; None where not asked for.
        sum_pi_squared: sum over the vocabulary of the squared probabilities; None where not asked.
    """

    logp: jax.Array
    entropy: jax.Array | None
    sum_pi_squared: jax.Array | None


class _Options(NamedTuple):
    chunk: int
    entropy: bool
    squares: bool
    keep: bool


def split_chunks(x: jax.Array, chunk: int) -> jax.Array:
    """`[M, ...]` to `[chunks, chunk, ...]`, zeros at the end; chunk c takes every chunks-th row.

    Strided, so that rows that lie on different devices are in every chunk alike.
    """
    chunks = -(-x.shape[0] // chunk)
    padded = jnp.pad(x, [(0, chunks * chunk - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
    return jnp.swapaxes(padded.reshape(chunk, chunks, *x.shape[1:]), 0, 1)


def join_chunks(x: jax.Array, length: int) -> jax.Array:
    """What `split_chunks` split, back in its order and without the padding."""
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])[:length]


def _tempered(logits, temperature):
    return logits if temperature is None else logits / temperature


def _chunk_forward(hidden, kernel, targets, temperature, options: _Options):
    """Statistics of one chunk; each row's peak and log total, and its tempered logits.

    The peak is taken off the logits before anything is summed, so that no digits are lost to it.
    """
    tempered = _tempered(head_logits(hidden, kernel), temperature)
    peak = jnp.max(tempered, axis=-1)
    z = tempered - peak[:, None]
    log_total = jnp.log(jnp.sum(jnp.exp(z), axis=-1))
    logp = jnp.take_along_axis(z, targets[:, None], axis=-1)[:, 0] - log_total
    p = jnp.exp(z - log_total[:, None])
    entropy = log_total - jnp.sum(p * z, axis=-1) if options.entropy else None
    squares = jnp.sum(jnp.square(p), axis=-1) if options.squares else None
    return TokenStats(logp, entropy, squares), (peak, log_total), tempered


def _forward(hidden, kernel, targets, temperature, options: _Options):
    def step(_, inputs):
        return None, _chunk_forward(inputs[0], kernel, inputs[1], temperature, options)[:2]

    split = split_chunks(hidden, options.chunk), split_chunks(targets, options.chunk)
    _, out = jax.lax.scan(step, None, split)
    return jax.tree.map(lambda x: join_chunks(x, hidden.shape[0]), out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _token_stats(hidden, kernel, targets, temperature, options: _Options) -> TokenStats:
    return _forward(hidden, kernel, targets, temperature, options)[0]


def _token_stats_fwd(hidden, kernel, targets, temperature, options):
    if options.keep:
        stats, totals, kept = _chunk_forward(hidden, kernel, targets, temperature, options)
    else:
        (stats, totals), kept = _forward(hidden, kernel, targets, temperature, options), None
    return stats, (hidden, kernel, targets, temperature, stats, totals, kept)


def _token_stats_bwd(options, residuals, cotangents):
    hidden, kernel, targets, temperature, stats, totals, kept = residuals
    kernel_cast = kernel.astype(hidden.dtype)

    def step(carry, inputs):
        d_kernel, d_temperature = carry
        h, t, s, (peak, log_total), g, z = inputs
        if z is None:
            z = _tempered(head_logits(h, kernel_cast), temperature)
        chosen = jnp.arange(z.shape[-1]) == t[:, None]
        dz = logits_gradient(z - peak[:, None], chosen, log_total, s, g)
        if temperature is not None:
            d_temperature = d_temperature - jnp.sum(dz * z) / temperature
        d_logits = _tempered(dz, temperature).astype(h.dtype)
        d_hidden = einsum_float32("cv,dv->cd", d_logits, kernel_cast)
        d_kernel = d_kernel + einsum_float32("cd,cv->dv", h, d_logits)
        return (d_kernel, d_temperature), d_hidden.astype(h.dtype)

    inputs = (hidden, targets, stats, totals, cotangents, kept)
    chunk = options.chunk if kept is None else max(1, hidden.shape[0])
    split = jax.tree.map(lambda x: split_chunks(x, chunk), inputs)
    start = (jnp.zeros(kernel.shape, jnp.float32), jnp.zeros((), jnp.float32))
    (d_kernel, d_temperature), d_hidden = jax.lax.scan(step, start, split)
    return (
        join_chunks(d_hidden, hidden.shape[0]),
        d_kernel.astype(kernel.dtype),
        np.zeros(targets.shape, jax.dtypes.float0),
        None if temperature is None else d_temperature,
    )


_token_stats.defvjp(_token_stats_fwd, _token_stats_bwd)


def chunk_rows(tokens: int, vocab: int, chunk: int | None) -> int:
    """Rows a chunk: near the wish, evenly filled, a multiple of 8."""
    if chunk is None:
        chunk = max(_ROWS_MULTIPLE, _LOGITS_A_CHUNK // vocab)
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    chunks = max(1, -(-tokens // chunk))
    rows = max(1, -(-tokens // chunks))
    return min(chunk, -(-rows // _ROWS_MULTIPLE) * _ROWS_MULTIPLE)


def _block_columns(tokens: int, vocab: int) -> int | None:
    """Columns of the vocabulary that are taken at a time; None: it is not cut."""
    cpu = jax.default_backend() == "cpu"
    least = _BLOCKS_FROM_CPU if cpu else _BLOCKS_FROM
    logits = _LOGITS_A_BLOCK_CPU if cpu else _LOGITS_A_BLOCK
    if vocab < least or not tokens:
        return None
    return min(vocab, max(128, logits // tokens))


def token_stats(
    hidden: jax.Array,
    kernel: jax.Array,
    targets: jax.Array,
    *,
    temperature: float | jax.Array = 1.0,
    chunk: int | None = None,
    with_entropy: bool = False,
    with_sum_pi_squared: bool = False,
    vocabulary_blocks: bool = False,
) -> TokenStats:
    """Per-token statistics of softmax(hidden @ kernel / temperature), never `[tokens, V]` at once.

        z = hidden @ kernel / temperature
        logp = z[target] - logsumexp(z)
        entropy = -sum_j p_j log p_j
        sum_pi_squared = sum_j p_j^2

    The backward pass computes the logits of each chunk again, but for up to 64 MiB of them, which
    are kept; gradients reach `hidden`, `kernel` and `temperature`, and the kernel's are summed in
    float32. A chunk is some tokens and the whole vocabulary or, with `vocabulary_blocks`, all
    tokens and some of a vocabulary of 65,536 or more (on CPUs 16,384): then nothing of the kernel's
    size is held beside the kernel and its gradient.

    Args:
        hidden: `[..., D]`.
        kernel: `[D, V]`.
        targets: `[...]` int32 in 0..V-1, the token each row speaks of.
        temperature: positive; a scalar that may be traced.
        chunk: tokens at a time; None: about 2^23 logits' worth.
        with_entropy: whether to compute the entropy.
        with_sum_pi_squared: whether to compute the sum of squared probabilities.
        vocabulary_blocks: cut a large vocabulary instead of the tokens, where no `chunk` is given;
            for a kernel that lies on one device.

    Returns:
        `TokenStats`, float32.

    Raises:
        ValueError: if the shapes do not agree, or a temperature known now is not positive.
    """
    if hidden.shape[:-1] != targets.shape or hidden.ndim < 1:
        raise ValueError(
            f"targets must have the leading shape of hidden {hidden.shape[:-1]}, got "
            f"{targets.shape}"
        )
    if kernel.ndim != 2 or kernel.shape[0] != hidden.shape[-1]:
        raise ValueError(
            f"kernel must be [D, V] with D = {hidden.shape[-1]}, the width of hidden; got "
            f"{kernel.shape}"
        )
    if isinstance(temperature, int | float) and not temperature > 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; greedy tokens are scored at 1"
        )
    # On a mesh each device computes some tokens, also where it holds only a part of every row.
    flat = constrain(targets.reshape(-1), "tokens")
    wide = constrain(hidden.reshape(-1, hidden.shape[-1]), "tokens")
    scale: jax.Array | None = jnp.asarray(temperature, jnp.float32)
    if hidden.dtype == jnp.float32:
        # Before the product there are D numbers a token to divide, behind it V. What has 16 bits
        # would lose some.
        wide, scale = wide / scale, None
    kept = chunk is None and flat.size * kernel.shape[1] <= _LOGITS_KEPT
    cut = vocabulary_blocks and chunk is None
    block = _block_columns(flat.size, kernel.shape[1]) if cut else None
    if block:
        options = BlockOptions(block, with_entropy, with_sum_pi_squared, kept)
        found: Any = blocked_stats(wide, kernel, flat, scale, options)
        return TokenStats(*jax.tree.map(lambda x: x.reshape(targets.shape), found))
    rows = chunk_rows(flat.shape[0], kernel.shape[1], chunk)
    options = _Options(rows, with_entropy, with_sum_pi_squared, kept)
    stats = _token_stats(wide, kernel, flat, scale, options)
    return jax.tree.map(lambda x: x.reshape(targets.shape), stats)


def token_logps(
    hidden: jax.Array,
    kernel: jax.Array,
    targets: jax.Array,
    *,
    temperature: float | jax.Array = 1.0,
    chunk: int | None = None,
    with_entropy: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Log-probabilities of the targets and, where asked, entropies; see `token_stats`.

    Args:
        hidden: `[..., D]`.
        kernel: `[D, V]`.
        targets: `[...]` int32.
        temperature: positive; a scalar that may be traced.
        chunk: tokens at a time; None: about 2^23 logits' worth.
        with_entropy: whether to compute the entropy.

    Returns:
        `logp [...]` and `entropy [...]` (or None), float32.
    """
    stats = token_stats(
        hidden,
        kernel,
        targets,
        temperature=temperature,
        chunk=chunk,
        with_entropy=with_entropy,
    )
    return stats.logp, stats.entropy
