"""One forward pass: what a model says of the actions of a micro-batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ..models import Head, token_stats
from .packing import Rows


class Wanted(NamedTuple):
    """What a pass computes beside log-probabilities; `values` instead of them for a critic.

    `both` is for values of a head on the actor's backbone, beside its log-probabilities.
    """

    entropy: bool = False
    sum_pi_squared: bool = False
    values: bool = False
    hidden: bool = False  # for a result that leaves the program
    head: bool = False  # for a loss within it
    both: bool = False


class Split(NamedTuple):
    """How a micro-batch is cut within a program.

    Attributes:
        parts: the rows go through in so many equal parts, one after the other, each in the memory
            of the one before.
        vocabulary: cut a large vocabulary, instead of the tokens, in the head; for models that lie
            on one device.
    """

    parts: int = 1
    vocabulary: bool = False


class ModelOutputs(NamedTuple):
    """What a model says of the actions of a micro-batch; None where it was not asked.

    Entries past the end of a completion are 0 and carry no gradient.

    Attributes:
        logp: `[M, T]` float32, log-probability of each token at the temperature of the pass.
        entropy: `[M, T]` float32, of the distribution it was drawn from, in nats.
        sum_pi_squared: `[M, T]` float32, sum of the squared probabilities of that distribution.
        values: `[M, T]` float32, value of the state before each action.
        final_values: `[M]` float32, value of the state after the last action.
        hidden: `[M, T, D]` the hidden states from which each action's distribution follows.
        head: the distributions themselves, not computed yet; its hidden states are those.
    """

    logp: jax.Array | None = None
    entropy: jax.Array | None = None
    sum_pi_squared: jax.Array | None = None
    values: jax.Array | None = None
    final_values: jax.Array | None = None
    hidden: jax.Array | None = None
    head: Head | None = None


def compute(
    graph: Any,
    params: Any,
    rest: Any,
    rows: Rows,
    temperature: jax.Array,
    wanted: Wanted,
    split: Split,
) -> ModelOutputs:
    """One forward pass; the same for log-probabilities before an update and within it."""
    model = nnx.merge(graph, params, rest)
    valid = jnp.arange(rows.index.shape[1]) < rows.lengths[:, None]
    if wanted.values:
        values = model.token_scores(rows.tokens, rows.positions, rows.segments)
        return _with_values(ModelOutputs(), values, rows, valid)
    hidden = model(rows.tokens, rows.positions, rows.segments)
    options = {
        "with_entropy": wanted.entropy,
        "with_sum_pi_squared": wanted.sum_pi_squared,
        "vocabulary_blocks": split.vocabulary,
    }
    if rows.index.size <= rows.tokens.size:
        # Fewer actions than tokens: the head runs on the actions alone.
        stats = token_stats(
            _pick(hidden, rows.index),
            model.head_kernel(),
            _pick(rows.tokens, rows.index + 1),
            temperature=temperature,
            **options,
        )
    else:
        following = jnp.roll(rows.tokens, -1, axis=1)
        stats = token_stats(
            hidden, model.head_kernel(), following, temperature=temperature, **options
        )
        stats = jax.tree.map(lambda x: _pick(x, rows.index), stats)
    stats = jax.tree.map(lambda x: jnp.where(valid, x, 0.0), stats)
    outputs = ModelOutputs(stats.logp, stats.entropy, stats.sum_pi_squared)
    if wanted.both:
        outputs = _with_values(outputs, model.values(hidden), rows, valid)
    if wanted.hidden or wanted.head:
        picked = jnp.where(valid[..., None], _pick(hidden, rows.index), 0)
        kernel, shape = model.head_kernel(), rows.tokens.shape
        head = Head(picked, kernel, temperature, shape) if wanted.head else None
        outputs = outputs._replace(hidden=picked if wanted.hidden else None, head=head)
    return outputs


def _with_values(
    outputs: ModelOutputs, values: jax.Array, rows: Rows, valid: jax.Array
) -> ModelOutputs:
    """With values `[R, L]` of all tokens, those before each action and after the last."""
    last = jnp.take_along_axis(rows.index, jnp.maximum(rows.lengths - 1, 0)[:, None], axis=1)
    final = _pick(values, last + 1)[:, 0]
    return outputs._replace(
        values=jnp.where(valid, _pick(values, rows.index), 0.0),
        final_values=jnp.where(rows.lengths > 0, final, 0.0),
    )


def _pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """`[R, L, ...]` at columns `[M, S]` to `[M, S, ...]`; each slot reads its own row only."""
    rows, slots = x.shape[0], index.shape[0]
    columns = index.reshape(rows, -1)
    columns = columns.reshape(*columns.shape, *(1,) * (x.ndim - 2))
    picked = jnp.take_along_axis(x, columns, axis=1)
    return picked.reshape(slots, index.shape[1], *x.shape[2:])
