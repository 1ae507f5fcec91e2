"""One forward pass: what a model says of the actions of a micro-batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..models import Head, token_stats
from .packing import Rows
from .structure import Structure


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
    graph: Structure,
    params: Any,
    rest: Any,
    rows: Rows,
    temperature: jax.Array,
    wanted: Wanted,
    split: Split,
) -> ModelOutputs:
    """One forward pass; the same for log-probabilities before an update and within it."""
    model = graph.merge(params, rest)
    valid = jnp.arange(rows.actions.shape[1]) < rows.lengths[:, None]
    seen = rows.tokens, rows.positions, rows.segments, rows.reads
    before = _pick(rows.before, rows.actions)
    if wanted.values:
        values = model.token_scores(*seen)
        return _with_values(ModelOutputs(), values, rows, before, valid)
    hidden = model(*seen)
    options = {
        "temperature": temperature,
        "with_entropy": wanted.entropy,
        "with_sum_pi_squared": wanted.sum_pi_squared,
        "vocabulary_blocks": split.vocabulary,
    }
    # Prompts that stand for themselves are no actions.
    first = 0 if rows.reads is None else rows.tokens.shape[1] - rows.reads[0].size
    if rows.actions.size <= rows.tokens[:, first:].size:
        # Fewer actions than tokens: the head runs on the actions alone.
        actions = _pick(rows.tokens, rows.actions)
        stats = token_stats(_pick(hidden, before), model.head_kernel(), actions, **options)
    else:
        behind = _pick(hidden, rows.before[:, first:])
        stats = token_stats(behind, model.head_kernel(), rows.tokens[:, first:], **options)
        places = jnp.maximum(rows.actions - first, 0)
        stats = jax.tree.map(lambda x: _pick(x, places), stats)
    stats = jax.tree.map(lambda x: jnp.where(valid, x, 0.0), stats)
    outputs = ModelOutputs(stats.logp, stats.entropy, stats.sum_pi_squared)
    if wanted.both:
        outputs = _with_values(outputs, model.values(hidden), rows, before, valid)
    if wanted.hidden or wanted.head:
        picked = jnp.where(valid[..., None], _pick(hidden, before), 0)
        kernel, shape = model.head_kernel(), rows.tokens.shape
        head = Head(picked, kernel, temperature, shape) if wanted.head else None
        outputs = outputs._replace(hidden=picked if wanted.hidden else None, head=head)
    return outputs


def _with_values(
    outputs: ModelOutputs, values: jax.Array, rows: Rows, before: jax.Array, valid: jax.Array
) -> ModelOutputs:
    """With values `[R, L]` of all tokens, those before each action and after the last."""
    last = jnp.maximum(rows.lengths - 1, 0)[:, None]
    final = _pick(values, jnp.take_along_axis(rows.actions, last, axis=1))[:, 0]
    return outputs._replace(
        values=jnp.where(valid, _pick(values, before), 0.0),
        final_values=jnp.where(rows.lengths > 0, final, 0.0),
    )


def _pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """`[R, L, ...]` at columns `[M, S]` to `[M, S, ...]`; each slot reads its own row only."""
    rows, slots = x.shape[0], index.shape[0]
    columns = index.reshape(rows, -1)
    columns = columns.reshape(*columns.shape, *(1,) * (x.ndim - 2))
    picked = jnp.take_along_axis(x, columns, axis=1)
    return picked.reshape(slots, index.shape[1], *x.shape[2:])
