"""Models that a run reads from folders, each made where its role lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from safetensors import SafetensorError

from ..clusters import REWARD_MODEL, Role
from ..clusters.roles import reward_seat
from ..models import Decoder, RewardModel, ValueModel
from ..registry import ZootomyError
from .algorithm import Algorithm
from .role_config import RewardModelConfig
from .run_config import RunConfig
from .saved import load_policy, load_scalar, pinned
from .seeds import derive_seed


@contextlib.contextmanager
def reading(setting: str) -> Iterator[None]:
    """What is wrong with a model's folder is the user's to mend: the setting goes with it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise ZootomyError(f"{setting}: {str(error).rstrip('.')}.") from error


def roles_of(algorithm: Algorithm, config: RunConfig) -> tuple[str, ...]:
    """The roles of a run, before any model is made; `reward.NAME` for a reward model by name."""
    there: dict[str, bool] = {
        Role.ACTOR: True,
        Role.REFERENCE: "reference" in algorithm.needs,
        Role.CRITIC: algorithm.value_loss is not None,
        **dict.fromkeys(reward_seats(config), True),
        Role.ROLLOUT: True,
    }
    return tuple(role for role, is_there in there.items() if is_there)


def reward_seats(config: RunConfig) -> dict[str, RewardModelConfig]:
    """The reward models of a run by where they are placed: `reward.NAME`, or `reward` for one."""
    if not config.reward_models:
        return dict(zip([Role.REWARD], config.scorers.values(), strict=False))
    return {reward_seat(name): model for name, model in config.scorers.items()}


def make_reference(
    algorithm: Algorithm, config: RunConfig
) -> Literal["none", "snapshot"] | Decoder:
    """What the policy is compared with, in the form that a cluster takes.

    Raises:
        ZootomyError: if the folder cannot be read.
    """
    path = config.reference.path
    if "reference" not in algorithm.needs:
        return "none"
    if not path:
        return "snapshot"
    with reading("reference.path"):
        return load_policy(path, **model_options(config, Role.REFERENCE))


def make_critic(
    algorithm: Algorithm, config: RunConfig, policy: Decoder
) -> ValueModel | Literal["shared"] | None:
    """The critic, if the algorithm has one, in the form that a cluster takes.

    The policy's body with a fresh head, a model of its own, or a head on the policy's backbone.

    Raises:
        ZootomyError: if the folder cannot be read.
    """
    path = config.critic.path
    if algorithm.value_loss is None:
        return None
    if config.critic.shared:
        return "shared"
    if not path:
        seed = derive_seed(config.seed, "critic")
        return ValueModel.from_decoder(policy, rngs=nnx.Rngs(seed))
    with reading("critic.path"):
        critic = load_scalar(path, ValueModel, **model_options(config, Role.CRITIC))
    if config.critic.fresh_head:
        head = critic.score.kernel
        head.set_value(jnp.zeros_like(head[...]))
    return critic


def make_reward_models(config: RunConfig) -> RewardModel | dict[str, RewardModel] | None:
    """The models that score completions, in the form that a cluster takes.

    Raises:
        ZootomyError: if a folder cannot be read.
    """
    found = {}
    for (name, model), seat in zip(config.scorers.items(), reward_seats(config), strict=True):
        with reading(scorer_setting(config, name)):
            found[name] = load_scalar(model.path, RewardModel, **model_options(config, seat))
    if not found:
        return None
    return found if config.reward_models else found[REWARD_MODEL]


def with_pinned_scorers(config: RunConfig) -> RunConfig:
    """The settings with a checkpoint in place of each run folder that is to score.

    A reward model is no part of a checkpoint, and which of a run's own is the newest may change
    before this run is resumed.

    Raises:
        ZootomyError: if such a run has no whole checkpoint.
    """

    def pin(name: str, model: RewardModelConfig) -> RewardModelConfig:
        with reading(scorer_setting(config, name)):
            return replace(model, path=pinned(model.path))

    return replace(
        config,
        reward_model=pin(REWARD_MODEL, config.reward_model),
        reward_models={name: pin(name, model) for name, model in config.reward_models.items()},
    )


def scorer_setting(config: RunConfig, name: str) -> str:
    """The setting that names the folder of a reward model."""
    return f"reward_models.{name}.path" if name in config.reward_models else "reward_model.path"


def model_options(config: RunConfig, role: str) -> dict[str, Any]:
    """How a role's model is stored and computed, and where its parameters are made."""
    source = config.model
    return {
        "dtype": source.dtype,
        "param_dtype": source.param_dtype,
        "remat": source.remat,
        "layers": source.layers,
        "attention": source.attention,
        "place": config.cluster.placement(role).parameter,
    }
