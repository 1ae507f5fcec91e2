"""A model with its optimizer, which takes a step or none."""

from __future__ import annotations

import functools
from threading import Lock
from typing import Any

import jax
import numpy as np
import optax

from ..models import from_host, in_place, quick
from ..registry import ZootomyError
from .naming import named_leaves
from .optimizer import Check, OptimizerConfig, make_optimizer, make_schedule
from .optimizer_step import StepReport, first_state
from .programs import Total, no_gradient
from .role_model import RoleModel
from .roles import Role
from .sharding import Placement, like_params, on_host
from .step import Step, carry_out, compile_step


class NonFiniteError(ZootomyError):
    """A loss or gradient that is NaN or infinite; the weights are as they were before it."""


def _outline(tree: Any, places: Any) -> Any:
    """Shapes of arrays, in their places."""
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places
    )


def check_horizon(role: str, steps: int, total_steps: int) -> None:
    """Refuse a step after a schedule has ended: its learning rate would be 0.

    Raises:
        ZootomyError: with what to change.
    """
    if steps >= total_steps:
        raise ZootomyError(
            f"The {role}'s schedule was planned for {total_steps} optimizer steps, "
            "and all were taken; a further one would change nothing. Give the number of "
            "steps that the run takes (batches x epochs x mini-batches) as total_steps."
        )


class TrainedModel(RoleModel):
    """A model with an optimizer.

    Args:
        role: actor or critic.
        model: as in `RoleModel`.
        placement: as in `RoleModel`.
        config: the optimizer.
        total_steps: optimizer steps of the whole run, the horizon of the schedule.
        optimizer: one that takes the place of what `config` says, which gives the schedule then.
        offload: as in `RoleModel`.
        offload_optimizer: whether the optimizer's state waits on the host but for its step.
    """

    def __init__(
        self,
        role: Role,
        model: Any,
        placement: Placement,
        config: OptimizerConfig,
        total_steps: int,
        *,
        optimizer: optax.GradientTransformation | None = None,
        offload: bool = False,
        offload_optimizer: bool = False,
    ):
        super().__init__(role, model, placement)
        self.total_steps = total_steps
        self.scheduled = config.schedule != "constant"
        self.optimizer = make_optimizer(config, total_steps) if optimizer is None else optimizer
        self.schedule = make_schedule(config, total_steps)
        # Of an optimizer from elsewhere nothing is known.
        self._check: Check = config.check if optimizer is None else "updates"
        self.optimizer_state = self._first_state()
        self.steps = 0
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), self.params)
        # One program: an array at a time, this takes a tenth of the step of a small model.
        everywhere: Any = placement.replicated
        self.places = Total(self.shardings, everywhere)
        self._zeros = jax.jit(functools.partial(no_gradient, like), out_shardings=self.places)
        # While someone else holds the arrays (the given model, the engine, the reference, a
        # checkpoint that is being written), a step must not overwrite them.
        self._params_lent = True
        self._optimizer_lent = False
        self._compiling = Lock()
        self._compiled = False
        self.offload_optimizer = offload_optimizer
        self._park_optimizer()
        self.offload = offload
        self.park()

    @property
    def policy_params(self) -> Any:
        """The parameters that an engine or a reference has too."""
        return self.params

    def _first_state(self) -> Any:
        """The optimizer's state before the first step, made in its places by one program."""
        optimizer, params = self.optimizer, self.params
        state = jax.eval_shape(functools.partial(first_state, optimizer), params)
        self.optimizer_shardings = self.optimizer_places(state)
        make = jax.jit(
            first_state,
            static_argnames=("optimizer",),
            out_shardings=self.optimizer_shardings,
            compiler_options=quick(),
        )
        return make(optimizer, params)

    def optimizer_places(self, state: Any) -> Any:
        """Where an optimizer's state lies: with the parameters that it is of."""
        return like_params(state, self.params, self.shardings, self.placement.replicated)

    def lend_params(self) -> Any:
        """`policy_params`, for someone who keeps them: the next step leaves them as they are."""
        self.wake()
        self._params_lent = True
        return self.policy_params

    def model(self) -> Any:
        """The model with the present weights, which later steps leave as they are."""
        self.wake()  # Before, since what it brings is nobody else's.
        self._params_lent = True
        return super().model()

    def wake(self) -> None:
        """Bring the weights to the devices; what comes from the host nobody else holds."""
        if not self.awake:
            super().wake()
            self._params_lent = False

    def _park_optimizer(self) -> None:
        if self.offload_optimizer:
            host = on_host(self.optimizer_shardings)
            self.optimizer_state = jax.device_put(self.optimizer_state, host)

    def zeros(self) -> Total:
        """Where micro-batches are added up."""
        return self._zeros()

    def check_horizon(self) -> None:
        """Refuse a step after the schedule has ended: its learning rate would be 0."""
        if self.scheduled:
            check_horizon(self.role, self.steps, self.total_steps)

    def outline(self) -> Total:
        """Shapes and places of `zeros`."""
        return _outline(jax.eval_shape(self._zeros), self.places)

    def compile_step(self) -> None:
        """Compile the optimizer's first step, once; nothing of it depends on a batch."""
        with self._compiling, self.placement.context():
            if not self._compiled:
                total = jax.eval_shape(self._zeros)
                # What waits on the host comes to the devices for its step.
                state = _outline(self.optimizer_state, self.optimizer_shardings)
                params = _outline(self.params, self.shardings)
                compile_step(self.optimizer, params, state, total, **self._ways())
                self._compiled = True

    def _ways(self) -> dict[str, Any]:
        """How a step is taken, and what it leaves as it is; see `Step`."""
        return {
            "check": self._check,
            "keep_params": self._params_lent,
            "keep_optimizer": self._optimizer_lent,
        }

    def step(self, total: Total) -> StepReport:
        """One optimizer step, unless something is not finite."""
        state = self.optimizer_state
        if self.offload_optimizer:
            # It comes now and not before, and leaves again at once.
            state = in_place(state, self.optimizer_shardings)
        step = Step(self.optimizer, self.params, state, total, **self._ways())
        settle = functools.partial(self._settle, step, self.steps + 1)
        carry_out(step, settle, f"optimizer step {self.steps} of the {self.role}")
        return step.report if bool(step.report.applied) else step.refusal(self.params)

    def _settle(self, step: Step, steps: int) -> None:
        """Take what a step gives, and the new parameters if it is taken; twice is once."""
        if not step.begun:
            return
        self._take_state(step.optimizer_state)
        if step.spent == "params":
            self.params = self.placement.settled(step.made, self.shardings)
        if bool(step.report.applied):
            self._take_params(step.made, steps)

    def _take_state(self, state: Any) -> None:
        # Wherever the compiler left it; nothing moves where that is the right place.
        self.optimizer_state = self.placement.settled(state, self.optimizer_shardings)
        self._park_optimizer()

    def _take_params(self, params: Any, steps: int) -> None:
        self.params = self.placement.settled(params, self.shardings)
        self._waiting = None
        self._params_lent = self._optimizer_lent = False
        self.steps = steps

    def complain(
        self, report: StepReport, where: str, role: str = "", steps: int | None = None
    ) -> NonFiniteError:
        """The error for a step that was not taken, of a part of the model with a role of its own.

        Args:
            report: of the step.
            where: which sequences it is about.
            role: whose step it was; empty: this model's.
            steps: how many it has taken; None: as many as this model.
        """
        outcome = "The step was not taken and no weights were changed."
        at = f"{role or self.role}, optimizer step {self.steps if steps is None else steps}"
        if not np.isfinite(report.loss):
            return NonFiniteError(f"The loss is {float(report.loss)} ({at}){where}. {outcome}")
        assert report.finite is not None
        for what, tree in zip(("gradient", "optimizer's update"), report.finite, strict=True):
            flags = named_leaves(tree)
            bad = [name for name, finite in flags.items() if not finite]
            if bad:
                return NonFiniteError(
                    f"The {what} of {bad[0]!r} is not finite ({len(bad)} of {len(flags)} "
                    f"parameters; {at}), although the loss is {float(report.loss):g}. {outcome}"
                )
        return NonFiniteError(
            f"The gradient's norm overflows float32 ({at}), although every gradient is finite. "
            f"{outcome}"
        )

    def held(self) -> Any:
        """All arrays, only to look at."""
        return self.params, self.rest, self.optimizer_state

    def state(self) -> dict[str, Any]:
        """Weights and optimizer; the arrays stay as they are whatever steps follow."""
        self._params_lent = self._optimizer_lent = True
        return {"params": self.params, "optimizer": self.optimizer_state}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the weights and the optimizer's state; `steps` is set apart."""
        super().restore(state)
        self.optimizer_state = from_host(state["optimizer"], self.optimizer_shardings)
        self._params_lent = self._optimizer_lent = True
        self._park_optimizer()
