"""What makes a choice of blocks impossible (errors) or doubtful (warnings, each once)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..registry import BlockSpec, ZootomyError, describe, setting

if TYPE_CHECKING:
    from .algorithm import Algorithm


class DoubtfulChoiceWarning(UserWarning):
    """A combination that works but is probably not what was meant."""


def check_algorithm(algorithm: Algorithm) -> None:
    """Refuse contradictions, warn of doubtful choices.

    Raises:
        ZootomyError: with a sentence that says what to change.
    """
    _check_critic(algorithm)
    _check_kl(algorithm)
    _check_ratio(algorithm)
    _check_settings(algorithm)


def check_run(algorithm: Algorithm, *, group_size: int, rollout_logp: bool) -> None:
    """Refuse an algorithm whose needs a run does not meet.

    Args:
        algorithm: the algorithm.
        group_size: completions a prompt.
        rollout_logp: whether the engine reports the log-probabilities it sampled with.

    Raises:
        ZootomyError: with a sentence that says what to change.
    """
    if group_size < 1:
        raise ZootomyError(f"group_size must be at least 1, got {group_size}.")
    for slot_name, spec in algorithm.specs():
        if "groups" in describe(slot_name, spec.name).needs and group_size == 1:
            raise ZootomyError(
                f"{slot_name} {spec.name!r} compares the completions of one prompt, but "
                f"group_size is 1: every advantage would be 0. Set group_size to 2 or more, or "
                f"use an algorithm without a group baseline (reinforce, reinforce_pp, ppo)."
            )
    if "rollout_logp" in algorithm.needs and not rollout_logp:
        name = _spec(algorithm.correction).name
        raise ZootomyError(
            f"correction {name!r} needs the log-probabilities the engine sampled with, and this "
            f"engine reports none. Set correction to 'none' or use another engine."
        )


def _spec(value: object) -> BlockSpec:
    assert isinstance(value, BlockSpec)
    return value


def _check_critic(algorithm: Algorithm) -> None:
    advantage = _spec(algorithm.advantage).name
    uses_critic = "critic" in describe("advantage", advantage).needs
    if uses_critic and algorithm.value_loss is None:
        raise ZootomyError(
            f"advantage {advantage!r} needs a critic, but value_loss is 'none'. Set value_loss "
            f"to 'clipped_mse' or 'mse', or advantage to 'cumulative_return'."
        )
    if algorithm.value_loss is not None and not uses_critic:
        _warn(
            f"value_loss trains a critic that advantage {advantage!r} never asks. Set value_loss "
            f"to 'none', or advantage to 'gae'."
        )


def _check_kl(algorithm: Algorithm) -> None:
    placement = algorithm.kl_placement
    estimator = _spec(algorithm.kl_estimator)
    controller = _spec(algorithm.controller)
    coefficient = controller.hyperparameters.get("coef")
    if placement == "none" and (controller.name != "constant" or coefficient):
        raise ZootomyError(
            f"controller {controller.name!r} sets a coefficient of {coefficient}, but "
            f"kl_placement is 'none', so it has no effect. Set kl_placement to 'loss', 'reward' "
            f"or 'advantage', or controller.coef to 0."
        )
    if placement != "none" and coefficient == 0:
        _warn(
            f"kl_placement is {placement!r} with a coefficient of 0: the reference is computed "
            f"and has no effect. Set controller.coef, or kl_placement to 'none'."
        )
    gradient = estimator.hyperparameters.get("gradient", "value")
    if placement == "loss" and estimator.name == "k1" and gradient == "value":
        raise ZootomyError(
            "kl_estimator 'k1' as a loss: its gradient is that of logp alone, does not depend on "
            "the reference and has mean zero. Set kl_estimator to 'k3' or 'k2', "
            "kl_estimator.gradient to 'k2', or kl_placement to 'reward'."
        )
    if placement == "loss" and estimator.name == "abs" and gradient == "value":
        _warn(
            "kl_estimator 'abs' as a loss pushes with the same force however small the distance. "
            "Consider 'k2', 'k3' or kl_estimator.gradient='k2'."
        )
    if placement == "reward" and estimator.name not in ("k1", "full"):
        _warn(
            f"kl_estimator {estimator.name!r} in the reward biases the objective; 'k1' is the "
            f"estimator whose expected return is the KL-regularised one."
        )


def _check_ratio(algorithm: Algorithm) -> None:
    ratio = _spec(algorithm.ratio).name
    aggregation = _spec(algorithm.aggregation).name
    loss = _spec(algorithm.policy_loss).name
    if ratio == "sequence" and aggregation == "token_mean":
        raise ZootomyError(
            "ratio 'sequence' gives a completion one ratio, but aggregation 'token_mean' counts "
            "it once a token, so long completions would weigh more. Set aggregation to "
            "'sequence_mean_token_mean', or ratio to 'token'."
        )
    if ratio == "sequence_token" and aggregation == "token_mean":
        _warn(
            "ratio 'sequence_token' under aggregation 'token_mean' counts a completion's one "
            "ratio once a token. Consider 'sequence_mean_token_mean'."
        )
    if ratio == "none" and loss in ("ppo_clip", "dual_clip"):
        _warn(
            f"ratio 'none' is always 1, so the clip of policy_loss {loss!r} never binds. "
            f"Consider policy_loss 'reinforce', or ratio 'token'."
        )


def _check_settings(algorithm: Algorithm) -> None:
    """The range of slots' own settings, whose types the registry has checked."""
    if algorithm.group_filter is not None:
        refills = setting("group_filter", _spec(algorithm.group_filter), "max_refills")
        if refills < 0:
            raise ZootomyError(f"group_filter.max_refills must be 0 or more, got {refills}.")


def _warn(message: str) -> None:
    # The stack ends in the dataclass that builds an algorithm; Python's registry of warnings
    # already given keeps a message from coming twice.
    warnings.warn(message, DoubtfulChoiceWarning, stacklevel=5)
