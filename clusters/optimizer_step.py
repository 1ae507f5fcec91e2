"""An optimizer step, in programs: looked at, then taken in place."""

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


class Launched(NamedTuple):
    """A step that is under way, and whether it is taken with it.

    Attributes:
        optimizer_state: after the step; as it was where it is not taken.
        made: the new parameters; where the step is not taken, what was in the memory that they
            would have, gradients or parameters.
        report: what was found.
        spent: whose memory `made` has.
    """

    optimizer_state: Any
    made: Any
    report: StepReport
    spent: Spent


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
    report = _glance(total)
    if check == "gradients":
        return report, None
    updates, new_state = _update(
        optimizer, params, optimizer_state, total.gradients, report.grad_norm
    )
    flags = jax.tree.leaves(jax.tree.map(_finite, updates))
    report = report._replace(applied=report.applied & jnp.stack(flags).all())
    return report, (updates, new_state) if check == "kept updates" else None


def _glance(total: Total) -> StepReport:
    # The norm of gradients that are not all finite is not finite: they need no look of their own.
    grad_norm = optax.tree.norm(total.gradients)
    applied = jnp.isfinite(total.loss) & jnp.isfinite(grad_norm)
    return StepReport(applied, grad_norm, total.loss)


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
    optimizer: optax.GradientTransformation, params: Any, optimizer_state: Any, gradients: Any
) -> Finite:
    """Where a step is not finite: compiled when one is not, and not before."""
    norm = optax.tree.norm(gradients)
    updates, _ = _update(optimizer, params, optimizer_state, gradients, norm)
    return Finite(jax.tree.map(_finite, gradients), jax.tree.map(_finite, updates))


def _step(
    optimizer: optax.GradientTransformation,
    optimizer_state: Any,
    params: Any,
    gradients: Any,
    grad_norm: jax.Array,
) -> tuple[Any, Any]:
    # What is given away goes to what is returned in order, so that the state comes first in both:
    # moments that took each other's memory would be copied first.
    updates, state = _update(optimizer, params, optimizer_state, gradients, grad_norm)
    return state, optax.apply_updates(params, updates)


def _step_if(
    optimizer: optax.GradientTransformation,
    optimizer_state: Any,
    params: Any,
    gradients: Any,
    grad_norm: jax.Array,
    applied: jax.Array,
    spent: Spent,
) -> tuple[Any, Any]:
    # A choice number by number would need the old values beside the new; of two ways the one that
    # changes nothing hands out what it was given, in its place.
    return jax.lax.cond(
        applied,
        lambda: _step(optimizer, optimizer_state, params, gradients, grad_norm),
        lambda: (optimizer_state, gradients if spent == "gradients" else params),
    )


def _finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def _spent(params: Any, *, keep_params: bool) -> Spent:
    """Whose memory new parameters take.

    Of the gradients' dtype they take the gradients', so that one program serves whether the old
    ones are held by others (engine, reference) or not.
    """
    if all(p.dtype == jnp.float32 for p in jax.tree.leaves(params)):
        return "gradients"
    return "neither" if keep_params else "params"


@functools.cache
def _step_program(
    spent: Spent, *, keep_optimizer: bool, launched: bool = False
) -> Callable[..., Any]:
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
def _apply_program(*, keep_params: bool) -> Callable[..., Any]:
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
        keep_params: leave the old parameters to others that hold them (engine, reference); else
            their memory may be used for the new ones.
        keep_optimizer: likewise for the optimizer's state (a checkpoint that is being written).

    Returns:
        Parameters and state after the step, or the very ones given, and what was found.
    """
    report, made = look(optimizer, params, optimizer_state, total, check=check)
    if not bool(report.applied):
        finite = find_finite(optimizer, params, optimizer_state, total.gradients)
        return params, optimizer_state, report._replace(finite=finite)
    if made is not None:
        updates, optimizer_state = made
        return _apply_program(keep_params=keep_params)(params, updates), optimizer_state, report
    spent = _spent(params, keep_params=keep_params)
    program = _step_program(spent, keep_optimizer=keep_optimizer)
    state, params = program(optimizer, optimizer_state, params, total.gradients, report.grad_norm)
    return params, state, report


def is_launched(check: Check, *, keep_optimizer: bool) -> bool:
    """Whether a step is begun before it is known whether it is taken.

    A way that changes nothing costs nothing where all is overwritten in place, which is so of Adam
    and its kin; another optimizer may need its old state beside the new, which is copied then.

    Args:
        check: as of `OptimizerConfig.check`.
        keep_optimizer: as of `take_step`.
    """
    return check == "gradients" and not keep_optimizer


def launch_step(
    optimizer: optax.GradientTransformation,
    params: Any,
    optimizer_state: Any,
    total: Total,
    *,
    keep_params: bool,
) -> Launched:
    """Begin an optimizer step, which changes nothing if loss or gradient is not finite.

    Nothing is waited for: devices go from the gradient to the step, whatever the host does.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state; it is used up, whatever comes.
        total: gradients and loss; the gradients may be used up.
        keep_params: as of `take_step`.
    """
    report, _ = look(optimizer, params, optimizer_state, total, check="gradients")
    spent = _spent(params, keep_params=keep_params)
    program = _step_program(spent, keep_optimizer=False, launched=True)
    state, made = program(
        optimizer, optimizer_state, params, total.gradients, report.grad_norm, report.applied
    )
    return Launched(state, made, report, spent)


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
    """Compile what a step calls, but for a mere sum; the arguments may be shapes."""
    look.lower(optimizer, params, optimizer_state, total, check=check).compile()
    if check == "kept updates":
        return
    found = [jax.ShapeDtypeStruct((), jnp.float32, sharding=total.loss.sharding)]
    launched = is_launched(check, keep_optimizer=keep_optimizer)
    if launched:
        found.append(jax.ShapeDtypeStruct((), bool, sharding=total.loss.sharding))
    spent = _spent(params, keep_params=keep_params)
    program = _step_program(spent, keep_optimizer=keep_optimizer, launched=launched)
    program.lower(optimizer, optimizer_state, params, total.gradients, *found).compile()
