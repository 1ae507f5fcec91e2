"""A model that plays a role: its structure split from its weights, and its optimizer."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..models import trained_part
from ..registry import ZootomyError
from .naming import named_leaves, same_structure
from .optimizer import OptimizerConfig, make_optimizer, make_schedule
from .programs import StepReport, Total, step_program, widened
from .roles import Role


class NonFiniteError(ZootomyError):
    """A loss or gradient that is NaN or infinite; the weights are as they were before it."""


@functools.partial(jax.jit, static_argnames=("graph",))
def _head_kernel(graph: Any, params: Any, rest: Any) -> jax.Array:
    return nnx.merge(graph, params, rest).head_kernel()


class RoleModel:
    """A model split once into structure and weights.

    Args:
        role: for messages.
        model: an NNX model; its arrays are shared, not copied, and never overwritten.
        mesh: every parameter is put on all its devices.
    """

    def __init__(self, role: Role, model: nnx.Module, mesh: Mesh):
        self.role = role
        self.replicated = NamedSharding(mesh, PartitionSpec())
        # Under adapters the backbone is among the rest: it is neither trained nor saved.
        self.graph, params, rest = nnx.split(model, trained_part(model), ...)
        self.params = jax.device_put(params, self.replicated)
        self.rest = jax.device_put(rest, self.replicated)

    def model(self) -> Any:
        """The model with the present weights."""
        return nnx.merge(self.graph, self.params, self.rest)

    def head_kernel(self) -> jax.Array:
        """`[D, V]`: the present head of a language model."""
        return _head_kernel(self.graph, self.params, self.rest)

    def held(self) -> Any:
        """All arrays, only to look at."""
        return self.params, self.rest

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"params": self.params}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the weights of `state`."""
        same_structure(self.state(), state, str(self.role))
        self.params = jax.device_put(state["params"], self.replicated)


class TrainedModel(RoleModel):
    """A model with an optimizer.

    Args:
        role: actor or critic.
        model: as in `RoleModel`.
        mesh: as in `RoleModel`.
        config: the optimizer.
        total_steps: optimizer steps of the whole run, the horizon of the schedule.
    """

    def __init__(
        self, role: Role, model: nnx.Module, mesh: Mesh, config: OptimizerConfig, total_steps: int
    ):
        super().__init__(role, model, mesh)
        self.total_steps = total_steps
        self.scheduled = config.schedule != "constant"
        self.optimizer = make_optimizer(config, total_steps)
        self.schedule = make_schedule(config, total_steps)
        # Copied, since some optimizers (dog, prodigy) remember the very arrays of the parameters,
        # which others hold and which a step would overwrite together with its state.
        state = jax.tree.map(jnp.array, self.optimizer.init(widened(self.params)))
        self.optimizer_state = jax.device_put(state, self.replicated)
        self.steps = 0
        places = jax.tree.map(lambda p: p.sharding, self.params)
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), self.params)

        def zeros() -> Total:
            gradients = jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), like)
            return Total(gradients, jnp.zeros((), jnp.float32))

        # One program: an array at a time, this takes a tenth of the step of a small model.
        everywhere: Any = self.replicated
        self._zeros = jax.jit(zeros, out_shardings=Total(places, everywhere))
        # While someone else holds the arrays (the given model, the engine, the reference, a
        # checkpoint that is being written), a step must not overwrite them.
        self._params_lent = True
        self._optimizer_lent = False

    def lend_params(self) -> Any:
        """The parameters, for someone who keeps them: the next step leaves them as they are."""
        self._params_lent = True
        return self.params

    def model(self) -> Any:
        """The model with the present weights, which later steps leave as they are."""
        self._params_lent = True
        return super().model()

    def zeros(self) -> Total:
        """Where micro-batches are added up."""
        return self._zeros()

    def check_horizon(self) -> None:
        """Refuse a step after the schedule has ended: its learning rate would be 0."""
        if self.scheduled and self.steps >= self.total_steps:
            raise ZootomyError(
                f"The {self.role}'s schedule was planned for {self.total_steps} optimizer steps, "
                "and all were taken; a further one would change nothing. Give the number of "
                "steps that the run takes (batches x epochs x mini-batches) as total_steps."
            )

    def step(self, total: Total) -> StepReport:
        """One optimizer step, unless something is not finite."""
        program = step_program(keep_params=self._params_lent, keep_optimizer=self._optimizer_lent)
        self.params, self.optimizer_state, report = program(
            self.optimizer, self.params, self.optimizer_state, total
        )
        self._params_lent = self._optimizer_lent = False
        if bool(report.applied):
            self.steps += 1
        return report

    def complain(self, report: StepReport, where: str) -> NonFiniteError:
        """The error for a step that was not taken."""
        outcome = "The step was not taken and no weights were changed."
        at = f"{self.role}, optimizer step {self.steps}"
        if not np.isfinite(report.loss):
            return NonFiniteError(f"The loss is {float(report.loss)} ({at}){where}. {outcome}")
        for what, flags in (
            ("gradient", named_leaves(report.finite_gradients)),
            ("optimizer's update", named_leaves(report.finite_updates)),
        ):
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
        self.optimizer_state = jax.device_put(state["optimizer"], self.replicated)
        self._params_lent = self._optimizer_lent = True
