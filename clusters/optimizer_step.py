"""The programs of an optimizer step: a look, and the step in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..models import QuickJit, quick
from .optimizer import Check
from .programs import Total, widened

Spent = Literal["gradients", "params", "neither"]
"""Whose memory the new parameters of a step take."""


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
    report = StepReport(applied, grad_norm, total.loss)
    if check == "gradients":
        return report, None
    updates, new_state = _update(optimizer, params, optimizer_state, total.gradients, grad_norm)
    flags = jax.tree.leaves(jax.tree.map(_finite, updates))
    report = report._replace(applied=applied & jnp.stack(flags).all())
    return report, (updates, new_state) if check == "kept updates" else None


def _update(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    gradients: Any,
    grad_norm: jax.Array,
) -> tuple[Any, Any]:
    """What an optimizer makes of gradients; their norm is there for those that clip by it."""
    optimizer = optax.with_extra_args_support(optimizer)
    return optimizer.update(gradients, optimizer_state, widened(params), grad_norm=grad_norm)


@functools.partial(QuickJit, static_argnames=("optimizer",))
def find_finite(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    gradients: Any,
    grad_norm: jax.Array,
) -> Finite:
    """Where a step is not finite: compiled when one is not, and not before."""
    updates, _ = _update(optimizer, params, optimizer_state, gradients, grad_norm)
    return Finite(jax.tree.map(_finite, gradients), jax.tree.map(_finite, updates))


def _step(
    optimizer: optax.GradientTransformation,
    optimizer_state: Any,
    params: Any,
    gradients: Any,
    grad_norm: jax.Array,
) -> list[jax.Array]:
    # What is given away goes to what is returned in order, so that the state comes first in both:
    # moments that took each other's memory would be copied first. In a list, since to make the
    # named tuples of a state the interpreter takes part, and may be interrupted.
    updates, state = _update(optimizer, params, optimizer_state, gradients, grad_norm)
    return jax.tree.leaves((state, optax.apply_updates(params, updates)))


def _step_if(
    optimizer: optax.GradientTransformation,
    optimizer_state: Any,
    params: Any,
    gradients: Any,
    grad_norm: jax.Array,
    applied: jax.Array,
    spent: Spent,
) -> list[jax.Array]:
    # A choice number by number would need the old values beside the new; of two ways the one that
    # changes nothing hands out what it was given, in its place.
    kept = optimizer_state, gradients if spent == "gradients" else params
    return jax.lax.cond(
        applied,
        lambda: _step(optimizer, optimizer_state, params, gradients, grad_norm),
        lambda: jax.tree.leaves(kept),
    )


def _finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def memory_spent(params: Any, *, keep_params: bool) -> Spent:
    """Whose memory new parameters take.

    Of the gradients' dtype they take the gradients', so that one program serves whether the old
    ones are held by others (engine, reference) or not.

    Args:
        params: old parameters.
        keep_params: whether others hold them.
    """
    if all(p.dtype == jnp.float32 for p in jax.tree.leaves(params)):
        return "gradients"
    return "neither" if keep_params else "params"


@functools.cache
def step_program(spent: Spent, *, keep_optimizer: bool, launched: bool) -> Callable[..., Any]:
    """An optimizer step, compiled.

    Args:
        spent: whose memory the new parameters take.
        keep_optimizer: leave the old state to others that hold it.
        launched: whether the program is told if the step is to be taken.

    Returns:
        `(optimizer, optimizer_state, params, gradients, grad_norm)` to the arrays of
        `(optimizer_state, params)`; launched, with one more argument `applied`: where it is false,
        those of the old state and of what was in the memory that was spent.
    """
    donated = [] if spent == "neither" else [spent]
    if not keep_optimizer:
        donated.append("optimizer_state")
    return jax.jit(
        functools.partial(_step_if, spent=spent) if launched else _step,
        static_argnames=("optimizer",),
        donate_argnames=donated,
        compiler_options=quick(),
    )


@functools.cache
def apply_program(*, keep_params: bool) -> Callable[..., Any]:
    """Updates that are there already, added: `(params, updates)` to the arrays of the params.

    Args:
        keep_params: leave the old parameters to others that hold them.
    """
    donated = () if keep_params else ("params",)
    return jax.jit(_apply, donate_argnames=donated, compiler_options=quick())


def _apply(params: Any, updates: Any) -> list[jax.Array]:
    return jax.tree.leaves(optax.apply_updates(params, updates))
