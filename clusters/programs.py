"""The compiled programs: forward passes, a micro-batch's gradient, an optimizer step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..models import QuickJit, quick
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


class StepReport(NamedTuple):
    """What an optimizer step found.

    Attributes:
        applied: whether the step is taken: all below is finite.
        grad_norm: global norm of the gradient before clipping.
        loss: of the whole mini-batch.
        finite_gradients: like the parameters, whether each is finite.
        finite_updates: likewise of what the optimizer made of it.
    """

    applied: jax.Array
    grad_norm: jax.Array
    loss: jax.Array
    finite_gradients: Any
    finite_updates: Any


@functools.partial(QuickJit, static_argnames=("graph", "wanted", "split"))
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


@functools.partial(QuickJit, static_argnames=("graph", "function", "wanted", "split"))
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
    QuickJit, static_argnames=("graph", "loss", "wanted", "split"), donate_argnames=("total",)
)
def accumulate(
    graph: Structure,
    loss: LossFunction,
    wanted: Wanted,
    params: Any,
    rest: Any,
    total: Total,
    rows: Rows,
    batch: Any,
    temperature: jax.Array,
    coefficients: Any,
    split: Split = _WHOLE,
) -> tuple[Total, jax.Array, dict[str, Any]]:
    """Add the loss and gradient of one micro-batch to the total.

    Args:
        graph: structure of the model.
        loss: as of `Cluster.update`.
        wanted: what the loss reads.
        params: what is differentiated.
        rest: other arrays of the model.
        total: of the micro-batches before.
        rows: what the model sees.
        batch: leaves `[M, ...]`.
        temperature: of the log-probabilities.
        coefficients: given to the loss.
        split: how the micro-batch is cut.

    Returns:
        The new total, this micro-batch's loss, its metrics as (sum, weight) pairs.
    """

    def objective(params: Any, rows: Rows, batch: Any) -> tuple[jax.Array, dict[str, Any]]:
        outputs = compute(graph, params, rest, rows, temperature, wanted, split)
        value, metrics = loss(outputs, batch, coefficients)
        return value.astype(jnp.float32), metrics

    def add(total: Total, part: tuple[Rows, Any]) -> tuple[Total, tuple[jax.Array, Any]]:
        found = jax.value_and_grad(objective, has_aux=True)(params, *part)
        (value, metrics), gradients = found
        gradients = jax.tree.map(lambda t, g: t + g.astype(t.dtype), total.gradients, gradients)
        return Total(gradients, total.loss + value), (value, metrics)

    if split.parts == 1:
        total, (value, metrics) = add(total, (rows, batch))
        return total, value, metrics
    total, (values, metrics) = jax.lax.scan(add, total, _cut((rows, batch), split.parts))
    return total, jnp.sum(values), {name: _merged(*pair) for name, pair in metrics.items()}


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


def first_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """The state of an optimizer that has taken no step."""
    # Copied, since some optimizers (dog, prodigy) remember the very arrays of the parameters, which
    # others hold and which a step would overwrite together with its state.
    return jax.tree.map(jnp.copy, optimizer.init(widened(params)))


@functools.partial(QuickJit, static_argnames=("optimizer", "keep"))
def look(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Total,
    keep: bool,
) -> tuple[StepReport, tuple[Any, Any] | None]:
    """What a step would do, before it is taken: nothing is written that others could read.

    Apart from the step itself, which then has nothing to choose: what it makes goes straight to
    where the old values lie, and the updates of all parameters need not be held at once.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state.
        total: gradients and loss.
        keep: hand out the updates and the new state as well, which are too costly to make twice.

    Returns:
        What was found; updates and new state, or None.
    """
    gradients = total.gradients
    grad_norm = optax.tree.norm(gradients)
    updates, new_state = optimizer.update(gradients, optimizer_state, widened(params))
    finite_gradients = jax.tree.map(_finite, gradients)
    finite_updates = jax.tree.map(_finite, updates)
    flags = [*jax.tree.leaves(finite_gradients), *jax.tree.leaves(finite_updates)]
    applied = jnp.isfinite(total.loss) & jnp.isfinite(grad_norm) & jnp.stack(flags).all()
    report = StepReport(applied, grad_norm, total.loss, finite_gradients, finite_updates)
    return report, (updates, new_state) if keep else None


def _step(
    optimizer: optax.GradientTransformation, params: Any, optimizer_state: Any, gradients: Any
) -> tuple[Any, Any]:
    updates, state = optimizer.update(gradients, optimizer_state, widened(params))
    return optax.apply_updates(params, updates), state


def widened(params: Any) -> Any:
    """Parameters in float32, as the optimizer sees them: its memory is float32 whatever theirs."""
    return jax.tree.map(lambda p: p.astype(jnp.float32), params)


def _finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


@functools.cache
def step_program(*, keep_params: bool, keep_optimizer: bool) -> Callable[..., Any]:
    """An optimizer step, compiled.

    Args:
        keep_params: leave the old parameters to others that hold them (engine, reference); else
            their memory is used for the new ones.
        keep_optimizer: likewise for the optimizer's state (a checkpoint that is being written).

    Returns:
        `(optimizer, params, optimizer_state, gradients) -> (params, optimizer_state)`.
    """
    donated = ["gradients"] if keep_params else ["params"]
    if not keep_optimizer:
        donated.append("optimizer_state")
    return jax.jit(
        _step,
        static_argnames=("optimizer",),
        donate_argnames=donated,
        compiler_options=quick(),
    )


@functools.cache
def apply_program(*, keep_params: bool) -> Callable[..., Any]:
    """Updates that are there already, added: `(params, updates) -> params`, compiled.

    Args:
        keep_params: as of `step_program`.
    """
    donated = () if keep_params else ("params",)
    return jax.jit(_apply, donate_argnames=donated, compiler_options=quick())


def _apply(params: Any, updates: Any) -> Any:
    return optax.apply_updates(params, updates)


def take_step(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Total,
    *,
    costly: bool,
    keep_params: bool,
    keep_optimizer: bool,
) -> tuple[Any, Any, StepReport]:
    """An optimizer step, not taken if anything is not finite.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state.
        total: gradients and loss; it is used up if the step is taken.
        costly: whether the updates are too costly to be made twice.
        keep_params: as of `step_program`.
        keep_optimizer: as of `step_program`.

    Returns:
        Parameters and state after the step, or the very ones given, and what was found.
    """
    report, made = look(optimizer, params, optimizer_state, total, keep=costly)
    if not bool(report.applied):
        return params, optimizer_state, report
    if made is not None:
        updates, optimizer_state = made
        return apply_program(keep_params=keep_params)(params, updates), optimizer_state, report
    program = step_program(keep_params=keep_params, keep_optimizer=keep_optimizer)
    return *program(optimizer, params, optimizer_state, total.gradients), report


def compile_step(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Any,
    *,
    costly: bool,
    keep_params: bool,
    keep_optimizer: bool,
) -> None:
    """Compile what `take_step` calls, but for a mere sum; the arguments may be shapes."""
    before = optimizer, params, optimizer_state
    look.jitted.lower(*before, total, keep=costly).compile()
    if not costly:
        program = step_program(keep_params=keep_params, keep_optimizer=keep_optimizer)
        program.lower(*before, total.gradients).compile()
