"""Who plays what: every model of a cluster, checked and put where its role lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
from flax import nnx

from ..models import Decoder, RewardModel, ValueModel, merge_adapters, without_deltas
from ..registry import ZootomyError
from ..rollout import RolloutConfig, VanillaEngine, keeps_arrays, make_engine, takes_adapters
from ..rollout.types import RolloutEngine
from .config import OPTIMIZER, ClusterConfig
from .naming import named_leaves
from .optimizer import OptimizerConfig
from .roles import Role
from .trained import RoleModel, TrainedModel


def make_actor(
    config: ClusterConfig, actor: Decoder, optimizer: OptimizerConfig, total_steps: int
) -> TrainedModel:
    """The policy with its optimizer."""
    return _trained(config, Role.ACTOR, actor, optimizer, total_steps)


def make_others(
    config: ClusterConfig,
    actor: TrainedModel,
    reference: Literal["none", "snapshot"] | Decoder,
    critic: ValueModel | None,
    critic_optimizer: OptimizerConfig | None,
    critic_steps: int | None,
    reward: RewardModel | None,
) -> dict[Role, RoleModel]:
    """Every other model; arguments as of `Cluster`.

    Raises:
        ZootomyError: for a critic without an optimizer or the reverse, or another vocabulary.
    """
    steps = actor.total_steps if critic_steps is None else critic_steps
    found = {
        Role.REFERENCE: _reference(config, actor, reference),
        Role.CRITIC: _critic(config, actor, critic, critic_optimizer, steps),
    }
    if reward is not None:
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
    return actor.lend_params() if shares else actor.params


def refresh(reference: RoleModel, actor: TrainedModel) -> None:
    """Make the actor as it is now the reference.

    Raises:
        ZootomyError: for a reference that is another model.
    """
    if named_leaves(reference.params).keys() != named_leaves(actor.params).keys():
        raise ZootomyError(
            "The actor cannot become the reference, which is a model of another kind; set "
            "reference.refresh_steps to 0, or leave reference.path empty."
        )
    reference.take(actor.lend_params())


def samples_apart(
    config: ClusterConfig, models: Mapping[Role, RoleModel], engine: RolloutEngine | None
) -> bool:
    """Whether sampling and scoring may run in a thread of their own beside updates.

    Not where they share devices: programs of several devices that two threads start in two orders
    wait for each other for ever. On a CPU all devices share one pool of threads, where that happens
    to any two such programs: there one side must do with single devices.
    """
    scores = (Role.REWARD,) if Role.REWARD in models else ()
    if scores and config.offload_to_cpu:
        return False
    # Another engine has devices or processes of its own.
    samples = (*((Role.ROLLOUT,) if isinstance(engine, VanillaEngine) else ()), *scores)
    learns = tuple(role for role in models if role is not Role.REWARD)
    return config.apart(samples, learns) and (
        jax.default_backend() != "cpu" or _single(config, samples) or _single(config, learns)
    )


def _single(config: ClusterConfig, roles: tuple[Role, ...]) -> bool:
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
        made.take(without_deltas(actor.params))
    return made


def _critic(
    config: ClusterConfig,
    actor: TrainedModel,
    critic: ValueModel | None,
    optimizer: OptimizerConfig | None,
    total_steps: int,
) -> TrainedModel | None:
    """The critic with its optimizer, if there is one."""
    if (critic is None) != (optimizer is None):
        raise ZootomyError("A critic and critic_optimizer go together; give both or neither.")
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


def _plain(config: ClusterConfig, role: Role, model: Any) -> RoleModel:
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
