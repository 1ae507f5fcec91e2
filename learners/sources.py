"""Models beside the policy that a run reads from folders, each made where its role lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from flax import nnx
from safetensors import SafetensorError

from ..clusters import Role
from ..models import Decoder, RewardModel, ValueModel, load_model, load_scalar_model
from ..registry import ZootomyError
from .algorithm import Algorithm
from .run_config import RunConfig
from .seeds import derive_seed


@contextlib.contextmanager
def reading(setting: str) -> Iterator[None]:
    """What is wrong with a model's folder is the user's to mend: the setting goes with it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise ZootomyError(f"{setting}: {error}.") from error


def roles_of(algorithm: Algorithm, config: RunConfig) -> tuple[Role, ...]:
    """The roles of a run, before any model is made."""
    there = {
        Role.ACTOR: True,
        Role.REFERENCE: "reference" in algorithm.needs,
        Role.CRITIC: algorithm.value_loss is not None,
        Role.REWARD: bool(config.reward_model.path),
        Role.ROLLOUT: True,
    }
    return tuple(role for role, is_there in there.items() if is_there)


def make_reference(
    algorithm: Algorithm, config: RunConfig
) -> Literal["none", "snapshot"] | Decoder:
    """What the policy is compared with, in the form that a cluster takes.

    Raises:
        ZootomyError: if the folder cannot be read, or nothing compares with the model in it.
    """
    path = config.reference.path
    if "reference" not in algorithm.needs:
        if path:
            raise ZootomyError(
                f"reference.path is {path!r}, but algorithm {algorithm.name!r} compares with no "
                f"reference, so it has no effect. Add a term that does (a kl_placement, or the "
                f"regularizer 'kl' or 'distillation'), or leave reference.path empty."
            )
        return "none"
    if not path:
        return "snapshot"
    with reading("reference.path"):
        return load_model(path, **model_options(config, Role.REFERENCE))


def make_critic(algorithm: Algorithm, config: RunConfig, policy: Decoder) -> ValueModel | None:
    """The critic, if the algorithm has one: the policy's body, or a model of its own.

    Raises:
        ZootomyError: if the folder cannot be read, or the algorithm has no critic.
    """
    path = config.critic.path
    if algorithm.value_loss is None:
        if path:
            raise ZootomyError(
                f"critic.path is {path!r}, but algorithm {algorithm.name!r} has no critic, so it "
                f"has no effect. Set value_loss to 'clipped_mse', or leave critic.path empty."
            )
        return None
    if not path:
        seed = derive_seed(config.seed, "critic")
        return ValueModel.from_decoder(policy, rngs=nnx.Rngs(seed))
    with reading("critic.path"):
        return load_scalar_model(path, ValueModel, **model_options(config, Role.CRITIC))


def make_reward_model(config: RunConfig) -> RewardModel | None:
    """The model that scores completions, or None.

    Raises:
        ZootomyError: if the folder cannot be read.
    """
    if not config.reward_model.path:
        return None
    with reading("reward_model.path"):
        return load_scalar_model(config.reward_model.path, **model_options(config, Role.REWARD))


def model_options(config: RunConfig, role: Role) -> dict[str, Any]:
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
