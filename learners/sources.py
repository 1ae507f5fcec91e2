"""Models beside the policy that a run reads from folders: its reference, its reward model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from safetensors import SafetensorError

from ..models import Decoder, RewardModel, load_model, load_scalar_model
from ..registry import ZootomyError
from .algorithm import Algorithm
from .run_config import RunConfig


@contextlib.contextmanager
def reading(setting: str) -> Iterator[None]:
    """What is wrong with a model's folder is the user's to mend: the setting goes with it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise ZootomyError(f"{setting}: {error}.") from error


def make_reference(
    algorithm: Algorithm, config: RunConfig
) -> Literal["none", "snapshot"] | Decoder:
    """What the policy is compared with, in the form that a cluster takes.

    Raises:
        ZootomyError: if the folder cannot be read, or nothing compares with the model in it.
    """
    source, path = config.model, config.reference.path
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
        return load_model(
            path,
            dtype=source.dtype,
            param_dtype=source.param_dtype,
            layers=source.layers,
            attention=source.attention,
        )


def make_reward_model(config: RunConfig) -> RewardModel | None:
    """The model that scores completions, or None.

    Raises:
        ZootomyError: if the folder cannot be read.
    """
    if not config.reward_model.path:
        return None
    with reading("reward_model.path"):
        return load_scalar_model(
            config.reward_model.path, dtype=config.model.dtype, param_dtype=config.model.param_dtype
        )
