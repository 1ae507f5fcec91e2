"""An optimizer step: looked at, begun, and handed over whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .optimizer import Check
from .optimizer_step import StepReport, apply_program, find_finite, look, memory_spent, step_program
from .programs import Total


class Step:
    """An optimizer step that was looked at; it changes nothing before it is begun.

    Args:
        optimizer: what turns gradients into updates.
        params: old parameters.
        optimizer_state: old state.
        total: gradients and loss.
        check: as of `OptimizerConfig.check`.
        keep_params: leave the old parameters to others that hold them (engine, reference); else
            their memory may be used for the new ones.
        keep_optimizer: likewise for the optimizer's state (a checkpoint that is being written).

    Attributes:
        report: what was found; whether the step is taken may be known only when it is begun.
        spent: whose memory the new parameters take.
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        params: Any,
        optimizer_state: Any,
        total: Total,
        *,
        check: Check,
        keep_params: bool,
        keep_optimizer: bool,
    ):
        self.report, kept = look(optimizer, params, optimizer_state, total, check=check)
        self.spent = memory_spent(params, keep_params=keep_params)
        self._optimizer = optimizer
        self._given = optimizer_state, total.gradients
        self._kept_state: Any = None
        self._results: list[list[jax.Array]] = []
        launched = is_launched(check, keep_optimizer=keep_optimizer)
        if kept is not None:
            updates, self._kept_state = kept
            self.spent = "neither" if keep_params else "params"
            self._structure = jax.tree.structure(params)
            self._program = apply_program(keep_params=keep_params)
            self._arguments = params, updates
        else:
            self._structure = jax.tree.structure((optimizer_state, params))
            self._program = step_program(
                self.spent, keep_optimizer=keep_optimizer, launched=launched
            )
            given = optimizer, optimizer_state, params, total.gradients, self.report.grad_norm
            self._arguments = (*given, self.report.applied) if launched else given
        # What is launched is not waited for: devices go from the gradient to the step themselves.
        if not launched and not bool(self.report.applied):
            self._program = None

    def begin(self) -> None:
        """Launch the step, unless it is known that it is not taken.

        What the program gives is kept here whatever interrupts: the interpreter hears an interrupt
        when this one call of C is over, which has put it into the list (but for the first call of a
        program, which the interpreter makes).
        """
        if self._program is not None:
            self._results.extend(itertools.starmap(self._program, [self._arguments]))
            self._arguments = ()

    @property
    def begun(self) -> bool:
        """Whether the old optimizer state, and the memory that is spent, are given away."""
        return bool(self._results)

    @property
    def optimizer_state(self) -> Any:
        """After the step, or, where it is not taken, as it was."""
        return self._after[0]

    @property
    def made(self) -> Any:
        """The new parameters; where the step is not taken, what was in the memory it spent."""
        return self._after[1]

    @property
    def _after(self) -> tuple[Any, Any]:
        if not self._results:
            return self._given
        after = jax.tree.unflatten(self._structure, self._results[0])
        return after if self._kept_state is None else (self._kept_state, after)

    def refusal(self, params: Any) -> StepReport:
        """What was found, with what is not finite, of a step that is not taken.

        Args:
            params: as they are.
        """
        gradients = self.made if self.spent == "gradients" else self._given[1]
        finite = find_finite(
            self._optimizer, params, self.optimizer_state, gradients, self.report.grad_norm
        )
        return self.report._replace(finite=finite)


def is_launched(check: Check, *, keep_optimizer: bool) -> bool:
    """Whether a step is begun before it is known whether it is taken.

    A way that changes nothing costs nothing where all is overwritten in place, which is so of Adam
    and its kin; another optimizer may need its old state beside the new, which is copied then.

    Args:
        check: as of `OptimizerConfig.check`.
        keep_optimizer: as of `Step`.
    """
    return check == "gradients" and not keep_optimizer


def carry_out(step: Step, settle: Callable[[], object], name: str) -> None:
    """Begin a step and hand over what it gives; an interrupt is raised before or after both.

    Args:
        step: to be begun.
        settle: takes what a begun step gives, and waits for whether it is taken; twice is once.
        name: of the step, for messages.
    """
    try:
        step.begin()
        settle()
    except KeyboardInterrupt:
        settle()  # A wait has its answer when it is interrupted: this one is short.
        raise
    except jax.errors.JaxRuntimeError as error:
        if step.begun:
            error.add_note(
                f"The devices failed in {name}, or in the pass before it. What the step was to "
                "overwrite, the optimizer's state, is lost: go on from a checkpoint."
            )
        raise


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
    spent = memory_spent(params, keep_params=keep_params)
    program = step_program(spent, keep_optimizer=keep_optimizer, launched=launched)
    program.lower(optimizer, optimizer_state, params, total.gradients, *found).compile()
