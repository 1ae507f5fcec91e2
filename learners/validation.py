"""What makes a choice of blocks impossible (errors) or doubtful (warnings, each once)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..registry import BlockSpec, ZootomyError, describe, setting
from .contents import one

if TYPE_CHECKING:
    from .algorithm import Algorithm


# Losses that act through the ratio, and those that add up or compare the ratios of single tokens.
OF_THE_RATIO = (
    "cispo", "clip_cov", "delta_clip", "dppo", "dual_clip", "fipo", "gmpo", "ipo_mask", "kimi",
    "kl_cov", "luspo", "m2po", "ppo_clip", "real", "sapo", "topr", "vespo",
)  # fmt: skip
OF_TOKEN_RATIOS = ("fipo", "gmpo", "real", "vespo")
# Needs that are met by a number beside the rewards, `info.baseline`.
BASELINES = frozenset({"greedy_baseline", "prompt_values", "running_reward"})
# Shapings that change the unit of a reward.
SCALING = (
    "batch_norm", "gdpo", "gpg", "group_norm", "maxrl", "pass_at_k", "per_function",
    "running_norm", "scale",
)  # fmt: skip


class DoubtfulChoiceWarning(UserWarning):
    """A combination that works but is probably not what was meant."""


def check_algorithm(algorithm: Algorithm) -> None:
    """Refuse contradictions, warn of doubtful choices.

    Raises:
        ZootomyError: with a sentence that says what to change.
    """
    _check_shaping(algorithm)
    _check_critic(algorithm)
    _check_kl(algorithm)
    _check_ratio(algorithm)
    _check_regularizers(algorithm)
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
        name = one(algorithm.correction).name
        raise ZootomyError(
            f"correction {name!r} needs the log-probabilities the engine sampled with, and this "
            f"engine reports none. Set correction to 'none' or use another engine."
        )


def check_token_rewards(algorithm: Algorithm) -> None:
    """Warn of shapings that change a completion's reward in a unit that its parts do not share."""
    for spec in algorithm.value("reward_shaping"):
        divides = spec.name == "normalize" and spec.hyperparameters["std"] != "none"
        if spec.name in SCALING or divides:
            _warn(
                f"reward_shaping {spec.name!r} changes the unit of a completion's reward, and the "
                f"rewards of single tokens or turns keep theirs; the last action gets the "
                f"difference. Consider 'group_mean', or no shaping."
            )


def _check_shaping(algorithm: Algorithm) -> None:
    """The order of the list, for blocks that look at something else than the rewards so far."""
    listed = [(spec.name, describe("reward_shaping", spec.name).needs)
             for spec in algorithm.value("reward_shaping")]  # fmt: skip
    for (before, _), (name, needs) in itertools.pairwise(listed):
        if "components" in needs:
            raise ZootomyError(
                f"reward_shaping {name!r} starts from the single reward functions, so what stands "
                f"before it ({before!r}) would have no effect. Put {name!r} first in the list."
            )
        if needs & BASELINES:
            _warn(
                f"reward_shaping {name!r} compares with rewards as the functions gave them, but "
                f"{before!r} changes them before. Consider putting {name!r} first in the list."
            )
    compared = [name for name, needs in listed if needs & BASELINES]
    if len(compared) > 1:
        raise ZootomyError(
            f"reward_shaping {compared[0]!r} and {compared[1]!r} each compare with a baseline of "
            f"their own, and there is room for one. Take one of them out."
        )


def _check_critic(algorithm: Algorithm) -> None:
    advantage = one(algorithm.advantage).name
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
    estimator = one(algorithm.kl_estimator)
    controller = one(algorithm.controller)
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
    forward = estimator.hyperparameters.get("direction") == "forward"
    if placement == "reward" and (estimator.name not in ("k1", "full") or forward):
        what = f"{estimator.name!r}{', forward,' if forward else ''}"
        _warn(
            f"kl_estimator {what} in the reward biases the objective; 'k1' is the "
            f"estimator whose expected return is the KL-regularised one."
        )
    if placement == "loss" and estimator.hyperparameters.get("tail") is False:
        _warn(
            f"kl_estimator {estimator.name!r} without its tail as a loss falls when the policy "
            f"leaves the teacher's best tokens. Set kl_estimator.tail to true."
        )


def _check_ratio(algorithm: Algorithm) -> None:
    ratio = one(algorithm.ratio).name
    aggregation = one(algorithm.aggregation).name
    loss = one(algorithm.policy_loss).name
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
    if ratio == "none" and loss in OF_THE_RATIO:
        _warn(
            f"ratio 'none' is always 1, so the clip of policy_loss {loss!r} never binds. "
            f"Consider policy_loss 'reinforce', or ratio 'token'."
            if "clip" in loss
            else f"ratio 'none' is always 1, and policy_loss {loss!r} works through the ratio. "
            f"Consider policy_loss 'reinforce', or ratio 'token'."
        )
    form = one(algorithm.policy_loss).hyperparameters.get("form")
    if loss == "reinforce" and form == "logp" and ratio != "none":
        _warn(
            f"policy_loss 'reinforce' with form 'logp' does not look at ratio {ratio!r}, which has "
            f"no effect. Set ratio to 'none', or policy_loss.form to 'ratio'."
        )
    if loss in OF_TOKEN_RATIOS and ratio in ("sequence", "sequence_token"):
        _warn(
            f"policy_loss {loss!r} puts the ratios of single tokens together itself; ratio "
            f"{ratio!r} has done so before it. Consider ratio 'token'."
        )


def _check_regularizers(algorithm: Algorithm) -> None:
    """Coefficients that a controller steers: what it reads must be there."""
    specs = algorithm.value("regularizer")
    has_kl = algorithm.kl_placement != "none" or any(spec.name == "kl" for spec in specs)
    for spec in specs:
        coefficient = spec.hyperparameters["coef"]
        if not isinstance(coefficient, BlockSpec) or has_kl:
            continue
        if "reference" in describe("controller", coefficient.name).needs:
            raise ZootomyError(
                f"regularizer.{spec.name}.coef is steered by {coefficient.name!r}, which reads the "
                f"distance to the reference, and nothing measures it. Set kl_placement, add the "
                f"regularizer 'kl', or take another controller."
            )


def _check_settings(algorithm: Algorithm) -> None:
    """The range of slots' own settings, whose types the registry has checked."""
    if algorithm.group_filter is not None:
        refills = setting("group_filter", one(algorithm.group_filter), "max_refills")
        if refills < 0:
            raise ZootomyError(f"group_filter.max_refills must be 0 or more, got {refills}.")


def warn_of_idle_distance(algorithm: Algorithm, changes: Mapping[str, Any]) -> None:
    """Warn where a distance is chosen that no place computes."""
    if any(name.partition(".")[0] == "kl_estimator" for name in changes):
        _warn(
            f"kl_estimator is set, but has no effect on {algorithm.name!r}, whose kl_placement is "
            f"'none': set kl_placement too."
        )


def _warn(message: str) -> None:
    # The stack ends in the dataclass that builds an algorithm; Python's registry of warnings
    # already given keeps a message from coming twice.
    warnings.warn(message, DoubtfulChoiceWarning, stacklevel=5)
