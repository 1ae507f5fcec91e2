"""The compiled programs over rows: forward passes, and a micro-batch's gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from ..models import QuickJit
from .outputs import ModelOutputs, Split, Wanted, compute
from .packing import Rows
from .structure import Structure

LossFunction = Callable[[ModelOutputs, Any, Any], tuple[jax.Array, dict[str, Any]]]
"""`(outputs, batch, coefficients) -> (loss, {name: (sum, weight)})`."""

_WHOLE = Split()


class Total(NamedTuple):
    """What micro-batches add up to: gradients like the parameters, in float32, and the loss."""

    gradients: Any
    loss: jax.Array


def widened(params: Any) -> Any:
    """In float32, as what is added up and what an optimizer sees, whatever the model's dtype."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def no_gradient(params: Any) -> Total:
    """A total of no micro-batch."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    return Total(zeros, jnp.zeros((), jnp.float32))


@functools.partial(QuickJit, wide_products=True, static_argnames=("graph", "wanted", "split"))
def forward(
    graph: Structure,
    params: Any,
    rest: Any,
    rows: Rows,
    temperature: jax.Array,
    wanted: Wanted,
    split: Split = _WHOLE,
) -> ModelOutputs:
    """`compute`, compiled."""

    def one(part: Rows) -> ModelOutputs:
        return compute(graph, params, rest, part, temperature, wanted, split)

    return _in_parts(one, rows, split.parts)


@functools.partial(
    QuickJit, wide_products=True, static_argnames=("graph", "function", "wanted", "split")
)
def measure(
    graph: Structure,
    function: Callable[[ModelOutputs, Any, Any], dict[str, jax.Array]],
    wanted: Wanted,
    params: Any,
    rest: Any,
    rows: Rows,
    batch: Any,
    temperature: jax.Array,
    coefficients: Any,
    split: Split = _WHOLE,
) -> dict[str, jax.Array]:
    """What a function makes of the outputs of one forward pass: arrays `[M, ...]` by name."""

    def one(part: tuple[Rows, Any]) -> dict[str, jax.Array]:
        outputs = compute(graph, params, rest, part[0], temperature, wanted, split)
        return function(outputs, part[1], coefficients)

    return _in_parts(one, (rows, batch), split.parts)


@functools.partial(
    QuickJit,
    static_argnames=("graph", "loss", "wanted", "split", "places"),
    donate_argnames=("total",),
)
def accumulate(
    graph: Structure,
    loss: LossFunction,
    wanted: Wanted,
    params: Any,
    rest: Any,
    total: Total | None,
    rows: Rows,
    batch: Any,
    temperature: jax.Array,
    coefficients: Any,
    split: Split = _WHOLE,
    places: tuple[NamedSharding, ...] | None = None,
) -> tuple[Total, jax.Array, dict[str, Any]]:
    """Add the loss and gradient of one micro-batch to the total.

    Args:
        graph: structure of the model.
        loss: as of `Cluster.update`.
        wanted: what the loss reads.
        params: what is differentiated.
        rest: other arrays of the model.
        total: of the micro-batches before; None: this is the only one.
        rows: what the model sees.
        batch: leaves `[M, ...]`.
        temperature: of the log-probabilities.
        coefficients: given to the loss.
        split: how the micro-batch is cut.
        places: where the leaves of the total lie, on several devices.

    Returns:
        The new total, this micro-batch's loss, its metrics as (sum, weight) pairs.
    """

    def objective(params: Any, rows: Rows, batch: Any) -> tuple[jax.Array, dict[str, Any]]:
        outputs = compute(graph, params, rest, rows, temperature, wanted, split)
        value, metrics = loss(outputs, batch, coefficients)
        return value.astype(jnp.float32), metrics

    def gradient(part: tuple[Rows, Any]) -> tuple[Total, Any]:
        found = jax.value_and_grad(objective, has_aux=True)(params, *part)
        (value, metrics), gradients = found
        return Total(widened(gradients), value), metrics

    if split.parts == 1:
        own, metrics = gradient((rows, batch))
        total = own if total is None else _sum(total, own)
        return total if places is None else _placed(total, places), own.loss, metrics

    def add(total: Total, part: tuple[Rows, Any]) -> tuple[Total, tuple[jax.Array, Any]]:
        own, metrics = gradient(part)
        return _sum(total, own), (own.loss, metrics)

    total = no_gradient(params) if total is None else total
    total, (values, metrics) = jax.lax.scan(add, total, _cut((rows, batch), split.parts))
    return total, jnp.sum(values), {name: _merged(*pair) for name, pair in metrics.items()}


def _sum(one: Total, other: Total) -> Total:
    return jax.tree.map(jnp.add, one, other)


def _placed(total: Total, places: tuple[NamedSharding, ...]) -> Total:
    # The compiler would choose, and the next micro-batch and the step be compiled for its choice.
    leaves, structure = jax.tree.flatten(total)
    placed = map(jax.lax.with_sharding_constraint, leaves, places)
    return jax.tree.unflatten(structure, placed)


def _in_parts(function: Callable[[Any], Any], tree: Any, parts: int) -> Any:
    """What a function makes of the parts, one after the other: leaves `[M, ...]`."""
    if parts == 1:
        return function(tree)
    found = jax.lax.map(function, _cut(tree, parts))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)


def _cut(tree: Any, parts: int) -> Any:
    """Leaves `[M, ...]` to `[parts, M / parts, ...]`, in order."""
    return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), tree)


def _merged(sums: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum, weight) of all parts; one of weight 0 says nothing, whatever its sum."""
    weights = jnp.asarray(weights)
    return jnp.sum(jnp.where(weights == 0, 0, sums)), jnp.sum(weights)
