"""The cluster: every model of a run, its passes and its updates, behind one object."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from ..models import Decoder, RewardModel, ValueModel, several
from ..registry import ZootomyError
from ..rollout import RolloutConfig
from ..rollout.types import Completion, Request, RolloutEngine, SamplingParams
from . import cast
from .config import ClusterConfig
from .memory import bytes_by_role
from .optimizer import OptimizerConfig
from .outputs import ModelOutputs, Wanted
from .passes import AnyModel, Passes, UpdateResult
from .programs import LossFunction
from .roles import REWARD_MODEL, Role, reward_seat, role_of
from .row_sizes import row_length, shared_prompts
from .sequences import Sequences
from .shared import ValueHead
from .state import ClusterState, give_state, take_state


class Cluster:
    """The models of a run on their meshes.

    Args:
        config: meshes and row shapes.
        actor: the policy; of one with adapters only these are trained, sent and saved.
        optimizer: the actor's.
        total_steps: optimizer steps of the whole run, the horizon of the schedules.
        max_tokens: longest sequence of the run, prompt and completion; the row length where
            `config.row_length` is None.
        max_prompt_tokens: longest prompt; needed where completions are to share theirs.
        group_size: G, completions of a prompt.
        reference: `"none"`, `"snapshot"` (the actor as it is given, of one with adapters its
            backbone), or a model of its own.
        critic: a model that gives `[R, L]` values, or `"shared"`: a head on the actor's backbone.
        critic_optimizer: its optimizer; needed with a critic.
        critic_steps: its horizon; None: `total_steps`.
        reward: scores whole sequences, or several by name; never trained, nor in a checkpoint.
        engine: samples completions, with the actor's weights from the start. Settings make one on
            the mesh of the rollout, which shares the actor's arrays where they agree.

    Raises:
        ZootomyError: for a critic without an optimizer or the reverse, or no row length.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        actor: Decoder,
        optimizer: OptimizerConfig,
        total_steps: int,
        max_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        group_size: int = 1,
        reference: Literal["none", "snapshot"] | Decoder = "none",
        critic: ValueModel | Literal["shared"] | None = None,
        critic_optimizer: OptimizerConfig | None = None,
        critic_steps: int | None = None,
        reward: RewardModel | Mapping[str, RewardModel] | None = None,
        engine: RolloutEngine | RolloutConfig | None = None,
    ):
        self.config = config
        self.version = 0
        self.row_length = row_length(config, max_tokens)
        shared = shared_prompts(config, actor.kernel, max_prompt_tokens, group_size)
        self._passes = Passes(config, self.row_length, actor.config, shared)
        self.micro_rows = config.rows(self.row_length)
        critics = critic, critic_optimizer, critic_steps
        self._actor = cast.make_actor(config, actor, optimizer, total_steps, *critics)
        self._models: dict[str, AnyModel] = {Role.ACTOR: self._actor}
        self._models |= cast.make_others(config, self._actor, reference, *critics, reward)
        own = isinstance(engine, RolloutConfig)
        self.engine = cast.make_rollout(config, self._actor, engine) if own else engine
        if self.engine is not None:
            self._shares = cast.shares_weights(config, self.engine, made_here=own)
            self._give_weights(self.engine)
        for model in self._models.values():
            model.park()

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that this cluster fills."""
        models = dict.fromkeys(role_of(seat) for seat in self._models)
        return (*models, *((Role.ROLLOUT,) if self.engine is not None else ()))

    @property
    def reward_models(self) -> tuple[str, ...]:
        """The names of the reward models; one that was given alone is `reward_model`."""
        seats = [seat for seat in self._models if role_of(seat) is Role.REWARD]
        return tuple(seat.partition(".")[2] or REWARD_MODEL for seat in seats)

    @property
    def shares_backbone(self) -> bool:
        """Whether the critic is a head on the actor's backbone."""
        return isinstance(self._models.get(Role.CRITIC), ValueHead)

    @property
    def samples_apart(self) -> bool:
        """Whether sampling and scoring may run in a thread of their own beside updates."""
        return cast.samples_apart(self.config, self._models, self.engine)

    def compile_ahead(self, work: Callable[[Cluster], object]) -> None:
        """Compile what some work takes, once, in a thread beside what runs until it is needed.

        The work is done with a cluster of the same models whose passes and updates are compiled,
        not run, and give zeros; not where models wait on the host, or processes compile in step.
        """
        if not (several() or self.config.offload_to_cpu):
            twin = copy.copy(self)
            twin._passes = self._passes.compiling()
            self._passes.ahead.begin(functools.partial(work, twin))
            weakref.finalize(self, self._passes.ahead.stop)

    def compile_steps(self) -> None:
        """Compile the optimizers' first steps, if nobody has."""
        cast.compile_steps(self._models)

    def run(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """What a compiled function of arrays on the host gives; see `compile_ahead`."""
        return self._passes.run(program, *arguments)

    def steps(self, role: Role) -> int:
        """Optimizer steps that a role has taken."""
        return cast.find_trained(self._models, role).steps

    def learning_rate(self, role: Role) -> float:
        """The learning rate of the last optimizer step of a role, or of its first."""
        return cast.learning_rate(cast.find_trained(self._models, role))

    def model(self, role: Role) -> Any:
        """The NNX model of a role with its present weights, e.g. to write it to a folder."""
        self._passes.begin(self._model(role))
        return self._model(role).model()

    def log_probs(
        self,
        role: Role,
        sequences: Sequences,
        *,
        temperature: float,
        with_entropy: bool = False,
        with_sum_pi_squared: bool = False,
        with_hidden: bool = False,
        with_values: bool = False,
    ) -> dict[str, np.ndarray]:
        """Log-probabilities of the completions' tokens.

        Args:
            role: actor or reference.
            sequences: N prompts and completions.
            temperature: of the distribution, the one that was sampled from.
            with_entropy: also the entropy of that distribution.
            with_sum_pi_squared: also the sum of its squared probabilities.
            with_hidden: also `hidden` `[N, T, D]`, from which it follows by the head's kernel.
            with_values: also `values` and `final_values`, of a critic on the actor's backbone.

        Returns:
            `logp` (and `entropy`, `sum_pi_squared`), each `[N, T]` float32, 0 past the end.

        Raises:
            ZootomyError: a role without log-probabilities, a sequence longer than a row, a token
                outside the vocabulary, a temperature of 0 or less.
        """
        model = cast.find_policy(self._models, role)
        if with_values and not (role == Role.ACTOR and self.shares_backbone):
            raise ZootomyError(cast.NO_VALUES)
        wanted = Wanted(with_entropy, with_sum_pi_squared, hidden=with_hidden, both=with_values)
        return self._passes.forward(model, sequences, temperature, wanted)

    def head_kernel(self, role: Role) -> jax.Array:
        """`[D, V]`: the present head of the actor or the reference."""
        return cast.find_policy(self._models, role).head_kernel()

    def measure(
        self,
        role: Role,
        sequences: Sequences,
        batch: Any,
        function: Callable[[ModelOutputs, Any, Any], dict[str, jax.Array]],
        *,
        temperature: float,
        coefficients: Any = None,
        wanted: Wanted,
    ) -> dict[str, np.ndarray]:
        """What a function makes of a pass without gradient: arrays `[N, ...]` by name.

        As `update`, with arrays `[M, ...]` for a loss; `wanted` is what it reads of the outputs.
        """
        return self._passes.measure(
            self._model(role), sequences, batch, function,
            temperature=temperature, coefficients=coefficients, wanted=wanted,
        )  # fmt: skip

    def values(self, sequences: Sequences) -> np.ndarray:
        """The critic's value of the state before each action, `[N, T]` float32."""
        return self.values_with_final(sequences)[0]

    def values_with_final(self, sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
        """Values `[N, T]`, and `[N]` of the state after the last action, for a truncated row."""
        found = self._passes.forward(self._model(Role.CRITIC), sequences, 1.0, Wanted(values=True))
        return found["values"], found["final_values"]

    def scores(self, sequences: Sequences, name: str = REWARD_MODEL) -> np.ndarray:
        """A reward model's score of each whole sequence, `[N]` float32; 0 for no completion."""
        alone = name == REWARD_MODEL and Role.REWARD in self._models
        model = self._model(Role.REWARD if alone else reward_seat(name))
        return self._passes.forward(model, sequences, 1.0, Wanted(values=True))["final_values"]

    def update(
        self,
        role: Role,
        sequences: Sequences,
        batch: Any,
        loss: LossFunction,
        *,
        temperature: float = 1.0,
        coefficients: Any = None,
        with_entropy: bool = False,
        with_sum_pi_squared: bool = False,
        whole: bool = False,
        with_head: bool = False,
        with_values: bool = False,
        beside: Callable[[], object] | None = None,
    ) -> UpdateResult:
        """An optimizer step on a mini-batch, in as many micro-batches as needed; says what it did.

            gradient = Σ_micro-batches ∇ loss(outputs, batch, coefficients)

        The sum is that of the whole mini-batch: the weights in `batch` carry its denominators.

        Args:
            role: actor or critic.
            sequences: N prompts and completions.
            batch: leaves `[N, ...]`; the loss sees `[M, ...]`, zeros in slots of no sequence.
            loss: `(ModelOutputs, batch, coefficients) -> (scalar, {name: (sum, weight)})`; the
                same function each time, since another one is another program.
            temperature: of the actor's log-probabilities.
            coefficients: numbers, or JAX arrays, that may change from step to step, in a tree.
            with_entropy: whether the loss reads `outputs.entropy`.
            with_sum_pi_squared: whether the loss reads `outputs.sum_pi_squared`.
            whole: the loss couples sequences, so that it must see all of them at once.
            with_head: whether the loss reads `outputs.head`.
            with_values: whether the actor's loss reads the `outputs.values` of a critic on its
                backbone: a step of both. One of the critic alone changes nothing but its head.
            beside: work of the host, called once while the devices compute the gradient.

        Raises:
            NonFiniteError: a loss or gradient that is not finite; no weights are changed.
            ZootomyError: leaves that do not fit, or a step after the schedule has ended.
        """
        trained = cast.find_trained(self._models, role)
        wanted = cast.wanted_of(trained, with_entropy, with_sum_pi_squared, with_head, with_values)
        return self._passes.update(
            trained, sequences, batch, loss, beside=beside,
            temperature=temperature, coefficients=coefficients, wanted=wanted, whole=whole,
        )  # fmt: skip

    def sync_weights(self) -> int:
        """Give the actor's weights to the engine, under the next version; returns the version."""
        engine = cast.find_engine(self.engine)
        self.version += 1
        self._give_weights(engine)
        return self.version

    def refresh_reference(self) -> None:
        """Make the actor as it is now the reference."""
        self._passes.begin(self._actor)
        cast.refresh(self._model(Role.REFERENCE), self._actor)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Completions from the engine, with the weights of the last `sync_weights`."""
        self._passes.begin(None)
        return cast.find_engine(self.engine).generate(requests, sampling, seed)

    def state(self) -> ClusterState:
        """Weights, optimizers and counters; later updates leave the arrays as they are."""
        return take_state(self._models, self.version)

    def restore(self, state: ClusterState) -> None:
        """Go on from a state; the engine is given the actor's weights under their version.

        Raises:
            ZootomyError: if the state is of other models, optimizers or roles.
        """
        give_state(state, self._models)
        self.version = state.counters["version"]
        if self.engine is not None:
            self._give_weights(self.engine)

    def memory(self) -> dict[str, int]:
        """Bytes that each role holds on this process's devices; what roles share counts once."""
        return bytes_by_role(self._models, self.engine)

    def close(self) -> None:
        """Close the engine."""
        if self.engine is not None:
            self.engine.close()

    def _give_weights(self, engine: RolloutEngine) -> None:
        """The actor's weights to the engine: of adapters only them, where it has the backbone."""
        self._passes.begin(self._actor)
        engine.update_weights(cast.weights_for(engine, self._actor, self._shares), self.version)
        self._passes.begin(None)  # From here on all roles are idle.

    def _model(self, role: str) -> AnyModel:
        return cast.find_model(self._models, role)
