"""A critic on the actor's backbone: one set of weights, an optimizer for each of its two parts."""

from __future__ import annotations

import functools
from typing import Any, get_args

import optax

from ..models import Decoder, PolicyWithValue, in_place
from .naming import from_named, named_leaves
from .optimizer import Check, OptimizerConfig, make_optimizer, make_schedule
from .optimizer_step import StepReport
from .programs import Total
from .roles import Role
from .sharding import Placement, like_params
from .step import Step, carry_out
from .trained import NonFiniteError, TrainedModel, check_horizon

# The two parts of a `PolicyWithValue`, in the order of its leaves.
POLICY, HEAD = "policy", "score"


@functools.lru_cache(maxsize=16)
def _for_both(
    policy: optax.GradientTransformation, head: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Each part has an optimizer of its own, its clipping included; the same one each time."""
    parts = {POLICY: policy, HEAD: head}

    def init(params: Any) -> dict[str, Any]:
        return {name: one.init(params[name]) for name, one in parts.items()}

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
        found, after = {}, {}
        for name, one in parts.items():
            found[name], after[name] = one.update(updates[name], state[name], params[name])
        return _joined(updates, found), after

    return optax.GradientTransformation(init, update)


def _joined(like: Any, parts: dict[str, Any]) -> Any:
    """A tree like one of both parts, of two trees like one part each."""
    named = {
        f"{name}.{path}": leaf
        for name, part in parts.items()
        for path, leaf in named_leaves(part).items()
    }
    return from_named(like, named)


class SharedActor(TrainedModel):
    """The actor with a value head on its backbone.

    A step on both is one step of two optimizers: the actor's for the language model, or its
    adapters, and the critic's for the head.

    Args:
        actor: the policy.
        placement: where both live.
        config: the actor's optimizer.
        total_steps: its horizon.
        head: the optimizer of the value head.
        head_steps: its horizon.
        offload: as in `RoleModel`.
        offload_optimizer: as in `TrainedModel`.
    """

    def __init__(
        self,
        actor: Decoder,
        placement: Placement,
        config: OptimizerConfig,
        total_steps: int,
        head: OptimizerConfig,
        head_steps: int,
        *,
        offload: bool = False,
        offload_optimizer: bool = False,
    ):
        self.head_optimizer = make_optimizer(head, head_steps)
        self.head_schedule = make_schedule(head, head_steps)
        self.head_scheduled = head.schedule != "constant"
        self.head_total = head_steps
        self._head_check: Check = head.check
        self.head_steps = 0
        both = _for_both(make_optimizer(config, total_steps), self.head_optimizer)
        super().__init__(
            Role.ACTOR,
            PolicyWithValue(actor),
            placement,
            config,
            total_steps,
            optimizer=both,
            offload=offload,
            offload_optimizer=offload_optimizer,
        )
        # A step of both is looked at as the one needs that needs more.
        checks: tuple[Check, Check] = config.check, head.check
        self._check = max(checks, key=get_args(Check).index)

    @property
    def policy_params(self) -> Any:
        """The language model's, or those of its adapters."""
        return self.params[POLICY]

    def optimizer_places(self, state: Any) -> Any:
        """Where an optimizer's state lies: with the parameters that it is of."""
        return {
            name: like_params(
                part, self.params[name], self.shardings[name], self.placement.replicated
            )
            for name, part in state.items()
        }

    def model(self) -> Decoder:
        """The language model with the present weights, which later steps leave as they are."""
        return super().model().policy

    def with_value(self) -> PolicyWithValue:
        """Both, with the present weights."""
        return super().model()

    def check_horizon(self) -> None:
        """Refuse a step after either schedule has ended."""
        super().check_horizon()
        self.check_head_horizon()

    def check_head_horizon(self) -> None:
        """Refuse a step after the head's schedule has ended."""
        if self.head_scheduled:
            check_horizon(Role.CRITIC, self.head_steps, self.head_total)

    def step(self, total: Total) -> StepReport:
        """One optimizer step of both parts, unless something is not finite."""
        before = self.steps
        try:
            return super().step(total)
        finally:  # A step that is taken counts for both, also where an interrupt follows.
            self.head_steps += self.steps - before

    def step_head(self, total: Total) -> StepReport:
        """One optimizer step of the value head alone; the backbone's arrays stay the same ones."""
        places = self.optimizer_shardings[HEAD]
        state = in_place(self.optimizer_state[HEAD], places)
        own = Total(total.gradients[HEAD], total.loss)
        step = Step(
            self.head_optimizer, self.params[HEAD], state, own, check=self._head_check,
            keep_params=self._params_lent, keep_optimizer=self._optimizer_lent,
        )  # fmt: skip
        settle = functools.partial(self._settle_head, step, self.head_steps + 1)
        carry_out(step, settle, f"optimizer step {self.head_steps} of the {Role.CRITIC}")
        return step.report if bool(step.report.applied) else step.refusal(self.params[HEAD])

    def _settle_head(self, step: Step, steps: int) -> None:
        """Take what a step of the head gives; twice is once."""
        if not step.begun:
            return
        state = self.placement.settled(step.optimizer_state, self.optimizer_shardings[HEAD])
        self.optimizer_state = {**self.optimizer_state, HEAD: state}
        self._park_optimizer()
        taken = bool(step.report.applied)
        if taken or step.spent == "params":
            head = self.placement.settled(step.made, self.shardings[HEAD])
            self.params = _joined(self.params, {POLICY: self.params[POLICY], HEAD: head})
        if taken:
            self._waiting = None
            self.head_steps = steps


class ValueHead:
    """The critic of a `SharedActor`: its passes are the actor's, its steps change the head alone.

    Args:
        actor: whose backbone it is on.
    """

    role = Role.CRITIC

    def __init__(self, actor: SharedActor):
        self.actor = actor
        self.graph = actor.graph
        self.placement = actor.placement
        self.schedule = actor.head_schedule

    @property
    def params(self) -> Any:
        """Of both parts."""
        return self.actor.params

    @property
    def rest(self) -> Any:
        """Of both parts."""
        return self.actor.rest

    @property
    def steps(self) -> int:
        """Optimizer steps that the head has taken."""
        return self.actor.head_steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.actor.head_steps = steps

    def wake(self) -> None:
        """Bring the weights to the devices."""
        self.actor.wake()

    def park(self) -> None:
        """Send the weights to the host, where the actor is to wait there."""
        self.actor.park()

    def model(self) -> PolicyWithValue:
        """Both parts with the present weights."""
        return self.actor.with_value()

    def held(self) -> Any:
        """All arrays, only to look at; those of the backbone are the actor's."""
        return self.actor.params[HEAD], self.actor.optimizer_state[HEAD]

    @property
    def places(self) -> Total:
        """Where the gradients of both parts lie."""
        return self.actor.places

    def zeros(self) -> Total:
        """Where micro-batches are added up."""
        return self.actor.zeros()

    def outline(self) -> Total:
        """Shapes and places of `zeros`."""
        return self.actor.outline()

    def compile_step(self) -> None:
        """Nothing: the step of a head alone is a small program."""

    def check_horizon(self) -> None:
        """Refuse a step after the schedule has ended."""
        self.actor.check_head_horizon()

    def step(self, total: Total) -> StepReport:
        """One optimizer step of the head, unless something is not finite."""
        return self.actor.step_head(total)

    def complain(self, report: StepReport, where: str) -> NonFiniteError:
        """The error for a step that was not taken."""
        return self.actor.complain(report, where, self.role, self.steps)
