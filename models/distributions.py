"""Functions of whole distributions, a few tokens at a time: never `[tokens, V]` at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..registry import ZootomyError
from .logps import chunk_rows, head_logits, join_chunks, split_chunks


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("hidden", "kernel", "temperature"),
    meta_fields=("packed",),
)
@dataclass(frozen=True)
class Head:
    """Distributions over the vocabulary that are not computed yet.

        π = softmax(hidden @ kernel / temperature)

    Attributes:
        hidden: `[..., D]`.
        kernel: `[D, V]`.
        temperature: positive; a scalar that may be traced.
        packed: (R, L) where the sequences come from R rows, as many from each, of which none holds
            more than L tokens that count: only so many are computed. None: all are.
    """

    hidden: Any
    kernel: Any
    temperature: Any = 1.0
    packed: tuple[int, int] | None = None

    def log_probs(self) -> jax.Array:
        """`[..., V]` float32, all at once: for few tokens."""
        return jax.nn.log_softmax(head_logits(self.hidden, self.kernel) / self.temperature)


Distributions = Head | jax.Array
"""A `Head`, or log-probabilities `[N, T, V]` where there is room for them."""

TokenFunction = Callable[[jax.Array, jax.Array | None, dict[str, jax.Array]], jax.Array]
"""`(logp [C, 1, V], ref_logp [C, 1, V] or None, inputs) -> [C, 1]`."""


def map_distributions(
    function: TokenFunction,
    policy: Distributions,
    reference: Distributions | None,
    inputs: Mapping[str, jax.Array],
    mask: jax.Array,
    *,
    chunk: int | None = None,
) -> jax.Array:
    """A function of each token's whole distributions, a chunk of C tokens at a time.

        out_t = function(logπ_t(·), logπ_ref,t(·), inputs_t)

    In the function's eyes every token is a sequence of its own, of length 1: `[N, T, V]` becomes
    `[C, 1, V]`, `[N, T]` becomes `[C, 1]`, and an input `[N]` becomes `[C]`. The backward pass
    computes the distributions of each chunk again. Gradients reach the policy's hidden states and
    kernel (summed in float32) and the inputs, but not the reference.

    Args:
        function: pure; it may not couple tokens.
        policy: of the policy, at N sequences of T tokens.
        reference: of the reference, or None.
        inputs: arrays `[N, T]` or `[N]` by name.
        mask: `[N, T]` 1 on the tokens that count. At others the distributions are uniform in
            the function's eyes, whatever they hold, and the result is 0.
        chunk: C; None: about 2^23 logits' worth.

    Returns:
        `[N, T]` float32.

    Raises:
        ZootomyError: if the function gives something else than one number a token, or the two
            vocabularies differ.
    """
    rows, width = mask.shape
    vocab = _vocabulary(policy)
    if reference is not None and _vocabulary(reference) != vocab:
        raise ZootomyError(
            f"The policy's distributions are over {vocab} tokens, the reference's over "
            f"{_vocabulary(reference)}; they must share a tokenizer."
        )
    flat = {
        "mask": mask.reshape(-1) > 0,
        "policy": _rows(policy),
        "reference": None if reference is None else jax.lax.stop_gradient(_rows(reference)),
        "token": {name: x.reshape(-1) for name, x in inputs.items() if x.ndim == 2},
        "sequence": {name: jnp.repeat(x, width) for name, x in inputs.items() if x.ndim == 1},
    }
    chosen = _counting(policy, flat["mask"])
    if chosen is not None:
        flat = jax.tree.map(lambda x: _take(x, chosen), flat)
    policy_head = _shared(policy)
    reference_head = None if reference is None else jax.lax.stop_gradient(_shared(reference))

    # Kept for the backward pass: a chunk's inputs, and nothing of the width of the vocabulary.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def evaluate(part: dict[str, Any]) -> jax.Array:
        counts = part["mask"]
        logp = _log_probs(part["policy"], policy_head, counts)
        ref = None
        if part["reference"] is not None:
            ref = _log_probs(part["reference"], reference_head, counts)
        given = {name: x[:, None] for name, x in part["token"].items()}
        value = function(logp, ref, {**given, **part["sequence"]})
        if value.shape != (len(counts), 1):
            raise ZootomyError(
                f"A block over the vocabulary must return [N, T] for distributions [N, T, V]; for "
                f"{[len(counts), 1, vocab]} it returned {list(value.shape)}."
            )
        return jnp.where(counts, value[:, 0].astype(jnp.float32), 0.0)

    tokens = len(flat["mask"])
    size = chunk_rows(tokens, vocab, chunk)
    parts = jax.tree.map(lambda x: split_chunks(x, size), flat)
    _, out = jax.lax.scan(lambda carry, part: (carry, evaluate(part)), None, parts)
    out = join_chunks(out, tokens)
    if chosen is not None:
        out = _put(out, chosen, rows * width)
    return out.reshape(rows, width)


def _counting(policy: Distributions, counts: jax.Array) -> jax.Array | None:
    """`[R, L]` the tokens of each packed row that count, others behind them; None: take all.

    Within a row, so that rows on different devices stay where they are.
    """
    packed = policy.packed if isinstance(policy, Head) else None
    if packed is None or len(counts) <= packed[0] * packed[1]:
        return None
    return jnp.argsort(~counts.reshape(packed[0], -1), axis=1, stable=True)[:, : packed[1]]


def _take(x: jax.Array, chosen: jax.Array) -> jax.Array:
    """`[N * T, ...]` to `[R * L, ...]`."""
    by_row = x.reshape(len(chosen), -1, *x.shape[1:])
    at = chosen.reshape(*chosen.shape, *(1,) * (x.ndim - 1))
    return jnp.take_along_axis(by_row, at, axis=1).reshape(-1, *x.shape[1:])


def _put(x: jax.Array, chosen: jax.Array, tokens: int) -> jax.Array:
    """`[R * L]` to `[N * T]`, 0 where nothing was taken."""
    empty = jnp.zeros((len(chosen), tokens // len(chosen)), x.dtype)
    put = jax.vmap(lambda row, at, new: row.at[at].set(new, unique_indices=True))
    return put(empty, chosen, x.reshape(chosen.shape)).reshape(-1)


def _vocabulary(given: Distributions) -> int:
    return (given.kernel if isinstance(given, Head) else given).shape[-1]


def _rows(given: Distributions) -> jax.Array:
    """`[N * T, D]` hidden states, or `[N * T, V]` log-probabilities."""
    x = given.hidden if isinstance(given, Head) else given
    return x.reshape(-1, x.shape[-1])


def _shared(given: Distributions) -> tuple[jax.Array, jax.Array] | None:
    """What all chunks share: kernel and temperature; None for plain log-probabilities.

    In float32, since that is the dtype in which the gradients of the chunks are added up.
    """
    if not isinstance(given, Head):
        return None
    return given.kernel.astype(jnp.float32), jnp.asarray(given.temperature, jnp.float32)


def _log_probs(
    x: jax.Array, shared: tuple[jax.Array, jax.Array] | None, counts: jax.Array
) -> jax.Array:
    """`[C, D]` or `[C, V]` to `[C, 1, V]`; uniform where a token does not count."""
    if shared is None:
        uniform = -jnp.log(jnp.float32(x.shape[-1]))
        return jnp.where(counts[:, None], x.astype(jnp.float32), uniform)[:, None]
    return Head(jnp.where(counts[:, None], x, 0), *shared).log_probs()[:, None]
