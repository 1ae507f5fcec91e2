"""Who plays what: every model of a cluster, checked and put where its role lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

from ..models import (
    Decoder,
    RewardModel,
    ValueModel,
    merge_adapters,
    several,
    without_deltas,
)
from ..registry import ZootomyError
from ..rollout import RolloutConfig, VanillaEngine, keeps_arrays, make_engine, takes_adapters
from ..rollout.types import RolloutEngine
from .config import OPTIMIZER, ClusterConfig
from .naming import named_leaves
from .optimizer import OptimizerConfig
from .outputs import Wanted
from .passes import AnyModel, Learning
from .role_model import RoleModel
from .roles import POLICY_ROLES, TRAINED_ROLES, Role, find_seat, reward_seat, role_of
from .shared import SharedActor, ValueHead
from .trained import TrainedModel

SHARED = "shared"
NO_VALUES = "The actor gives no values; make the cluster with critic='shared'."
_TOGETHER = "A critic and critic_optimizer go together; give both or neither."


def make_actor(
    config: ClusterConfig,
    actor: Decoder,
    optimizer: OptimizerConfig,
    total_steps: int,
    critic: Any = None,
    critic_optimizer: OptimizerConfig | None = None,
    critic_steps: int | None = None,
) -> TrainedModel:
    """The policy with its optimizer, and with the critic's head where that is to be on it.

    Raises:
        ZootomyError: for a head without an optimizer, or with a place of its own.
    """
    if not isinstance(critic, str):
        return _trained(config, Role.ACTOR, actor, optimizer, total_steps)
    if critic != SHARED:
        raise ZootomyError(f"critic must be a model, '{SHARED}' or None, got {critic!r}.")
    if critic_optimizer is None:
        raise ZootomyError(_TOGETHER)
    config.check_shared_critic()
    return SharedActor(
        actor,
        config.placement(Role.ACTOR),
        optimizer,
        total_steps,
        critic_optimizer,
        total_steps if critic_steps is None else critic_steps,
        offload=config.offloads(Role.ACTOR),
        offload_optimizer=config.offloads(Role.ACTOR, OPTIMIZER),
    )


def make_others(
    config: ClusterConfig,
    actor: TrainedModel,
    reference: Literal["none", "snapshot"] | Decoder,
    critic: ValueModel | Literal["shared"] | None,
    critic_optimizer: OptimizerConfig | None,
    critic_steps: int | None,
    reward: RewardModel | Mapping[str, RewardModel] | None,
) -> dict[str, AnyModel]:
    """Every other model by its role, or `reward.NAME`; arguments as of `Cluster`.

    Raises:
        ZootomyError: for a critic without an optimizer or the reverse, or another vocabulary.
    """
    steps = actor.total_steps if critic_steps is None else critic_steps
    found: dict[str, AnyModel | None] = {
        Role.REFERENCE: _reference(config, actor, reference),
        Role.CRITIC: _critic(config, actor, critic, critic_optimizer, steps),
    }
    if isinstance(reward, Mapping):
        for name, model in reward.items():
            check_vocabulary(f"reward model {name!r}", model, actor)
            found[reward_seat(name)] = _plain(config, reward_seat(name), model)
    elif reward is not None:
        check_vocabulary("reward model", reward, actor)
        found[Role.REWARD] = _plain(config, Role.REWARD, reward)
    return {role: model for role, model in found.items() if model is not None}


def make_rollout(
    config: ClusterConfig, actor: TrainedModel, rollout: RolloutConfig
) -> RolloutEngine:
    """An engine on the mesh of the rollout; its arrays are the actor's where they agree."""
    place = config.placement(Role.ROLLOUT)
    graph, state = nnx.split(actor.model())
    mesh = dict(place.mesh.shape)
    return make_engine(rollout, nnx.merge(graph, place.put(state)), mesh=mesh)


def shares_weights(config: ClusterConfig, engine: RolloutEngine, *, made_here: bool) -> bool:
    """Whether the engine may hold the very arrays of the actor.

    Args:
        config: says where both live.
        engine: see `keeps_arrays`.
        made_here: whether `make_rollout` made it; another engine may do as it likes.

    Raises:
        ZootomyError: if it does and the actor is to leave the devices meanwhile.
    """
    together = not made_here or config.together(Role.ACTOR, Role.ROLLOUT)
    shares = keeps_arrays(engine, together=together)
    if shares and config.offloads(Role.ACTOR):
        raise ZootomyError(
            "offload_to_cpu names the actor, but the engine samples from the actor's own arrays: "
            "while it does they cannot leave the devices. Send 'actor.optimizer' alone, or give "
            "the rollout a mesh of its own (vllm: a process of its own, rollout.vllm.server_mode)."
        )
    return shares


def weights_for(engine: RolloutEngine, actor: TrainedModel, shares: bool) -> Any:
    """What an engine is sent: of adapters only them, where it has the backbone."""
    if actor.adapted and not takes_adapters(engine):
        return nnx.state(merge_adapters(actor.model()), nnx.Param)
    # A copy on another mesh is the engine's alone, and the next step may overwrite ours.
    return actor.lend_params() if shares else actor.policy_params


def refresh(reference: AnyModel, actor: TrainedModel) -> None:
    """Make the actor as it is now the reference.

    Raises:
        ZootomyError: for a reference that is another model.
    """
    if named_leaves(reference.params).keys() != named_leaves(actor.policy_params).keys():
        raise ZootomyError(
            "The actor cannot become the reference, which is a model of another kind; set "
            "reference.refresh_steps to 0, or leave reference.path empty."
        )
    assert isinstance(reference, RoleModel)
    reference.take(actor.lend_params())


def samples_apart(
    config: ClusterConfig, models: Mapping[str, AnyModel], engine: RolloutEngine | None
) -> bool:
    """Whether sampling and scoring may run in a thread of their own beside updates.

    Not where they share devices: programs of several devices that two threads start in two orders
    wait for each other for ever. On a CPU all devices share one pool of threads, where that happens
    to any two such programs: there one side must do with single devices.
    """
    scores = tuple(seat for seat in models if role_of(seat) is Role.REWARD)
    # Nor in several processes: each must start its programs in the order of all others.
    if several() or (scores and config.offload_to_cpu):
        return False
    # Another engine has devices or processes of its own.
    samples = (*((Role.ROLLOUT,) if isinstance(engine, VanillaEngine) else ()), *scores)
    heads = tuple(seat for seat, model in models.items() if isinstance(model, ValueHead))
    learns = tuple(seat for seat in models if seat not in (*scores, *heads))
    return config.apart(samples, learns) and (
        jax.default_backend() != "cpu" or _single(config, samples) or _single(config, learns)
    )


def _single(config: ClusterConfig, roles: tuple[str, ...]) -> bool:
    return all(config.mesh_of(role).size == 1 for role in roles)


def _reference(
    config: ClusterConfig, actor: TrainedModel, reference: Literal["none", "snapshot"] | Decoder
) -> RoleModel | None:
    """The reference, if there is to be one: the actor as it is, or a model of its own."""
    if not isinstance(reference, str):
        check_vocabulary("reference", reference, actor)
        return _plain(config, Role.REFERENCE, reference)
    if reference not in ("none", "snapshot"):
        raise ZootomyError(f"reference must be 'none', 'snapshot' or a model, got {reference!r}.")
    if reference == "none":
        return None
    # The same arrays as the actor's; its first step leaves them to the reference.
    made = _plain(config, Role.REFERENCE, actor.model())
    if actor.adapted:
        made.take(without_deltas(actor.policy_params))
    return made


def _critic(
    config: ClusterConfig,
    actor: TrainedModel,
    critic: ValueModel | Literal["shared"] | None,
    optimizer: OptimizerConfig | None,
    total_steps: int,
) -> TrainedModel | ValueHead | None:
    """The critic with its optimizer, if there is one, or as the actor's head."""
    if isinstance(actor, SharedActor):
        return ValueHead(actor)
    if (critic is None) != (optimizer is None):
        raise ZootomyError(_TOGETHER)
    if critic is None or optimizer is None:
        return None
    check_vocabulary("critic", critic, actor)
    return _trained(config, Role.CRITIC, critic, optimizer, total_steps)


def check_vocabulary(who: str, model: Any, actor: TrainedModel) -> None:
    """Refuse a model with another vocabulary than the actor's."""
    ours, theirs = actor.vocab_size, model.config.vocab_size
    if theirs != ours:
        raise ZootomyError(
            f"The {who} has a vocabulary of {theirs} tokens, the actor of {ours}; they must share "
            "a tokenizer."
        )


def _plain(config: ClusterConfig, role: str, model: Any) -> RoleModel:
    return RoleModel(role, model, config.placement(role), offload=config.offloads(role))


def _trained(
    config: ClusterConfig, role: Role, model: Any, optimizer: OptimizerConfig, total_steps: int
) -> TrainedModel:
    return TrainedModel(
        role,
        model,
        config.placement(role),
        optimizer,
        total_steps,
        offload=config.offloads(role),
        offload_optimizer=config.offloads(role, OPTIMIZER),
    )


def find_model(models: Mapping[str, AnyModel], role: str) -> AnyModel:
    """The model of a role, or of `reward.NAME`.

    Raises:
        ZootomyError: if the cluster has none.
    """
    role = find_seat(role)
    if role not in models:
        raise ZootomyError(
            f"This cluster has no {role}; it has {', '.join(models)}. Give one when "
            "the cluster is made."
        )
    return models[role]


def learning_rate(model: Learning) -> float:
    """Of the last optimizer step, or of the first where there was none."""
    return float(np.asarray(model.schedule(max(0, model.steps - 1))))


def wanted_of(
    model: Learning, entropy: bool, sum_pi_squared: bool, head: bool, values: bool
) -> Wanted:
    """What a model's pass computes for a loss that reads all that is true here.

    Raises:
        ZootomyError: for what the model does not say.
    """
    if model.role is Role.CRITIC:
        if entropy or sum_pi_squared or head:
            raise ZootomyError("A critic has values only; entropy and the like are the actor's.")
        return Wanted(values=True)
    if values and not isinstance(model, SharedActor):
        raise ZootomyError(NO_VALUES)
    return Wanted(entropy, sum_pi_squared, head=head, both=values)


def find_policy(models: Mapping[str, AnyModel], role: str) -> RoleModel:
    """The model of a role that gives log-probabilities.

    Raises:
        ZootomyError: if the cluster has none, or it gives none.
    """
    if find_seat(role) not in POLICY_ROLES:
        raise ZootomyError(f"The {role} gives no log-probabilities; ask actor or reference.")
    model = find_model(models, role)
    assert isinstance(model, RoleModel)
    return model


def find_trained(models: Mapping[str, AnyModel], role: str) -> Learning:
    """The model of a role that has an optimizer.

    Raises:
        ZootomyError: if the cluster has none, or it is not trained.
    """
    model = find_model(models, role)
    if not isinstance(model, Learning):
        trained = " and ".join(TRAINED_ROLES)
        raise ZootomyError(f"The {role} is not trained; only {trained} are.")
    return model


def compile_steps(models: Mapping[str, AnyModel]) -> None:
    """Compile the first steps of all optimizers that nobody has compiled."""
    for model in models.values():
        if isinstance(model, TrainedModel):
            model.compile_step()


def find_engine(engine: RolloutEngine | None) -> RolloutEngine:
    """The engine, or a `ZootomyError` where there is none."""
    if engine is None:
        raise ZootomyError("This cluster has no rollout engine; give one when it is made.")
    return engine
