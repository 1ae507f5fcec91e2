"""An optimizer step, in programs: looked at, then taken in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..models import QuickJit, quick
from .optimizer import Check
from .programs import Total, widened


class Finite(NamedTuple):
    """Of each parameter, whether all numbers are finite.

    Attributes:
        gradients: like the parameters.
        updates: likewise, of what the optimizer made of them.
    """

    gradients: Any
    updates: Any


class StepReport(NamedTuple):
    """What an optimizer step found.

    Attributes:
        applied: whether the step is taken: loss, norm and updates are finite.
        grad_norm: global norm of the gradient before clipping.
        loss: of the whole mini-batch.
        finite: of each parameter, whether it is; only where the step is not taken.
    """

    applied: jax.Array
    grad_norm: jax.Array
    loss: jax.Array
    finite: Finite | None = None


def first_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """The state of an optimizer that has taken no step."""
    # Copied, since some optimizers (dog, prodigy) remember the very arrays of the parameters, which
    # others hold and which a step would overwrite together with its state.
    return jax.tree.map(jnp.copy, optimizer.init(widened(params)))


@functools.partial(QuickJit, static_argnames=("optimizer", "check"))
def look(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Total,
    check: Check,
) -> tuple[StepReport, tuple[Any, Any] | None]:
    """What a step would do, before it is taken: nothing is written that others could read.

    Apart from the step itself, which then has nothing to choose: what it makes goes straight to
    where the old values lie, and the updates of all parameters need not be held at once.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state.
        total: gradients and loss.
        check: what is looked at beside loss and norm; kept updates are handed out, with the state.

    Returns:
        What was found; updates and new state, or None.
    """
    # The norm of gradients that are not all finite is not finite: they need no look of their own.
    grad_norm = optax.tree.norm(total.gradients)
    applied = jnp.isfinite(total.loss) & jnp.isfinite(grad_norm)
    if check == "gradients":
        return StepReport(applied, grad_norm, total.loss), None
    updates, new_state = optimizer.update(total.gradients, optimizer_state, widened(params))
    flags = jax.tree.leaves(jax.tree.map(_finite, updates))
    report = StepReport(applied & jnp.stack(flags).all(), grad_norm, total.loss)
    return report, (updates, new_state) if check == "kept updates" else None


@functools.partial(QuickJit, static_argnames=("optimizer",))
def find_finite(
    optimizer: optax.GradientTransformation, params: Any, optimizer_state: Any, gradients: Any
) -> Finite:
    """Where a step is not finite: compiled when one is not, and not before."""
    updates, _ = optimizer.update(gradients, optimizer_state, widened(params))
    return Finite(jax.tree.map(_finite, gradients), jax.tree.map(_finite, updates))


def _step(
    optimizer: optax.GradientTransformation, optimizer_state: Any, params: Any, gradients: Any
) -> tuple[Any, Any]:
    # What is given away goes to what is returned in order, so that the state comes first in both:
    # moments that took each other's memory would be copied first.
    updates, state = optimizer.update(gradients, optimizer_state, widened(params))
    return state, optax.apply_updates(params, updates)


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
        `(optimizer, optimizer_state, params, gradients) -> (optimizer_state, params)`.
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
    check: Check,
    keep_params: bool,
    keep_optimizer: bool,
) -> tuple[Any, Any, StepReport]:
    """An optimizer step, not taken if anything is not finite.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state.
        total: gradients and loss; it is used up if the step is taken.
        check: as of `OptimizerConfig.check`.
        keep_params: as of `step_program`.
        keep_optimizer: as of `step_program`.

    Returns:
        Parameters and state after the step, or the very ones given, and what was found.
    """
    report, made = look(optimizer, params, optimizer_state, total, check=check)
    if not bool(report.applied):
        finite = find_finite(optimizer, params, optimizer_state, total.gradients)
        return params, optimizer_state, report._replace(finite=finite)
    if made is not None:
        updates, optimizer_state = made
        return apply_program(keep_params=keep_params)(params, updates), optimizer_state, report
    program = step_program(keep_params=keep_params, keep_optimizer=keep_optimizer)
    state, params = program(optimizer, optimizer_state, params, total.gradients)
    return params, state, report


def compile_step(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Any,
    *,
    check: Check,
    keep_params: bool,
    keep_optimizer: bool,
) -> None:
    """Compile what `take_step` calls, but for a mere sum; the arguments may be shapes."""
    look.lower(optimizer, params, optimizer_state, total, check=check).compile()
    if check != "kept updates":
        program = step_program(keep_params=keep_params, keep_optimizer=keep_optimizer)
        program.lower(optimizer, optimizer_state, params, total.gradients).compile()
