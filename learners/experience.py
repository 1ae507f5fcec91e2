"""The first assembled function: from rewards to advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..blocks.checks import rank, required
from ..blocks.masking import count, masked, masked_mean, masked_sum
from ..blocks.types import RewardInfo
from ..registry import BlockSpec, ZootomyError, bind, describe, setting, unknown_name
from .algorithm import Algorithm

OLD_LOGP = "give the trainer's log-probabilities before the update"
REF_LOGP = "give the reference's log-probabilities"
ROLLOUT_LOGP = "give the log-probabilities that the engine sampled with"

# name -> (weighted sum, weight): metrics that add up over any split of a batch.
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class Rollouts(NamedTuple):
    """What was sampled and what is known of it; row `p * G + g` is completion g of prompt p.

    Attributes:
        rewards: `[P, G]` float, one scalar a completion.
        valid: `[P, G]` bool, false where the rollout failed or was dropped.
        mask: `[N, T]` 1 on actions.
        truncated: `[P, G]` bool, true where the length limit cut the completion.
        components: `[F, P, G]` float, the rewards by function, NaN where one does not apply.
        baseline: `[P]` float, a reward to compare with.
        old_logp: `[N, T]` log-probability at the trainer's weights before the update; None where
            the update is exactly on-policy.
        rollout_logp: `[N, T]` log-probability as the engine sampled.
        ref_logp: `[N, T]` log-probability under the reference.
        values: `[N, T]` the critic's value of the state before each action.
        sum_pi_squared: `[N, T]` sum of the squared probabilities at each action.
        entropy: `[N, T]` the policy's entropy at each action before the update, in nats.
        turn_ids: `[N, T]` int, the turn of each action.
    """

    rewards: jax.Array
    valid: jax.Array
    mask: jax.Array
    truncated: jax.Array | None = None
    components: jax.Array | None = None
    baseline: jax.Array | None = None
    old_logp: jax.Array | None = None
    rollout_logp: jax.Array | None = None
    ref_logp: jax.Array | None = None
    values: jax.Array | None = None
    sum_pi_squared: jax.Array | None = None
    turn_ids: jax.Array | None = None
    entropy: jax.Array | None = None


class Experience(NamedTuple):
    """What an update learns from; every entry is aligned to the sequences of the batch.

    Attributes:
        mask: `[N, T]` float32, 1 on the actions of valid completions.
        counted: `[N, T]` float32, 1 on the actions that the loss's denominators count.
        group_ids: `[N]` int32, the prompt of each sequence.
        advantages: `[N, T]` float32.
        returns: `[N, T]` float32, what a critic should predict.
        correction: `[N, T]` float32, weight for the sampler's drift; 0 on rejected actions.
        old_logp, rollout_logp, ref_logp, old_values, turn_ids: `[N, T]` or None, as in `Rollouts`.
        truncated: `[N]` bool or None.
    """

    mask: jax.Array
    counted: jax.Array
    group_ids: jax.Array
    advantages: jax.Array
    returns: jax.Array
    correction: jax.Array | None
    old_logp: jax.Array | None
    rollout_logp: jax.Array | None
    ref_logp: jax.Array | None
    old_values: jax.Array | None
    turn_ids: jax.Array | None = None
    truncated: jax.Array | None = None


def call(slot: str, spec: BlockSpec, inputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A block with its hyperparameters and the extra inputs it asks for filled in.

    Raises:
        ZootomyError: if it asks for an input that is not at hand.
    """
    info = describe(slot, spec.name)
    at_hand = {name: value for name, value in inputs.items() if value is not None}
    for name in info.extras:
        if name not in at_hand:
            raise ZootomyError(
                f"{slot} {spec.name!r} asks for the input {name!r}, which is not at hand there; "
                f"there are: {', '.join(sorted(at_hand)) or 'none'}."
            )
    extras = {name: at_hand[name] for name in info.extras}
    return partial(info.function, **extras, **bind(slot, spec))


def check_coefficients(algorithm: Algorithm, coefficients: Mapping[str, Any]) -> None:
    """Refuse a coefficient that nothing reads, and the lack of the one of the distance.

    Raises:
        ZootomyError: naming it.
    """
    known = ["kl", *(f"regularizer.{spec.name}" for spec in algorithm.value("regularizer"))]
    for name in coefficients:
        if name not in known:
            raise unknown_name("coefficient", name, known)
    if algorithm.kl_placement != "none" and "kl" not in coefficients:
        raise ZootomyError(
            f"kl_placement is {algorithm.kl_placement!r}, but coefficients has no 'kl'; "
            f"give {{'kl': {_one(algorithm.controller).hyperparameters.get('coef', 0.0)}}}."
        )


def make_experience(
    algorithm: Algorithm,
) -> Callable[[Rollouts, Mapping[str, Any]], tuple[Experience, Metrics]]:
    """The pure function from rollouts to experience that the algorithm's blocks define.

    Args:
        algorithm: the algorithm.

    Returns:
        `f(rollouts, coefficients) -> (experience, metrics)`, jittable; `coefficients["kl"]` is
        the coefficient of the distance to the reference. It raises `ZootomyError` for arrays that
        are missing or do not fit each other.
    """

    def experience(
        rollouts: Rollouts, coefficients: Mapping[str, Any]
    ) -> tuple[Experience, Metrics]:
        check_coefficients(algorithm, coefficients)
        _check_shapes(rollouts)
        rollouts = rollouts._replace(valid=rollouts.valid > 0)
        prompts, group = rollouts.rewards.shape
        sequence_valid = rollouts.valid.reshape(-1, 1)
        mask = ((rollouts.mask > 0) & sequence_valid).astype(jnp.float32)
        group_ids = jnp.repeat(jnp.arange(prompts, dtype=jnp.int32), group)
        metrics: Metrics = {}

        shaped = _shape_rewards(algorithm, rollouts, mask)
        token_rewards = _at_last_action(shaped.reshape(-1), mask)
        distance = _distance(algorithm, rollouts, mask)
        if distance is not None and algorithm.kl_placement == "reward":
            token_rewards = token_rewards - coefficients["kl"] * distance
        if distance is not None:
            metrics["kl"] = (masked_sum(distance, mask), count(mask))

        inputs = _inputs(rollouts, mask, group_ids)
        advantages, returns = call("advantage", _one(algorithm.advantage), inputs)(
            token_rewards, rollouts.values, mask
        )
        advantages = call("whitening", _one(algorithm.whitening), inputs)(advantages, mask)
        if distance is not None and algorithm.kl_placement == "advantage":
            centred = masked_mean(distance, mask) - distance
            advantages = advantages + coefficients["kl"] * centred
        advantages = jax.lax.stop_gradient(masked(advantages, mask))
        metrics["advantage/mean"] = (masked_sum(advantages, mask), count(mask))
        metrics["advantage/abs"] = (masked_sum(jnp.abs(advantages), mask), count(mask))

        correction, counted = _correct(algorithm, rollouts, mask, inputs, metrics)
        return (
            Experience(
                mask=mask,
                counted=counted,
                group_ids=group_ids,
                advantages=advantages,
                returns=jax.lax.stop_gradient(masked(returns, mask)),
                correction=correction,
                old_logp=_clean(rollouts.old_logp, mask),
                rollout_logp=_clean(rollouts.rollout_logp, mask),
                ref_logp=_clean(rollouts.ref_logp, mask),
                old_values=_clean(rollouts.values, mask),
                turn_ids=inputs["turn_ids"],
                truncated=inputs["truncated"],
            ),
            metrics,
        )

    return experience


def _one(value: Any) -> BlockSpec:
    assert isinstance(value, BlockSpec)
    return value


def _check_shapes(rollouts: Rollouts) -> None:
    """Refuse arrays that do not fit each other, which would otherwise be broadcast silently."""
    rank("experience", "rewards", rollouts.rewards, "P, G")
    rank("experience", "mask", rollouts.mask, "N, T")
    prompts, group = rollouts.rewards.shape
    rows, width = prompts * group, rollouts.mask.shape[1]
    functions = 0 if rollouts.components is None else len(rollouts.components)
    for axes, shape, names in (
        ("P, G", (prompts, group), ("valid", "truncated")),
        ("F, P, G", (functions, prompts, group), ("components",)),
        ("P", (prompts,), ("baseline",)),
        ("N, T", (rows, width), ("mask", "old_logp", "rollout_logp", "ref_logp")),
        ("N, T", (rows, width), ("values", "sum_pi_squared", "turn_ids", "entropy")),
    ):
        for name in names:
            array = rollouts._asdict()[name]
            if array is not None and array.shape != shape:
                raise ZootomyError(
                    f"experience: {name} must be [{axes}] = {list(shape)}, got shape "
                    f"{list(array.shape)}; rewards are [P, G] and N = P * G."
                )


def _clean(x: jax.Array | None, mask: jax.Array) -> jax.Array | None:
    return None if x is None else jax.lax.stop_gradient(masked(x, mask))


def _shape_rewards(algorithm: Algorithm, rollouts: Rollouts, mask: jax.Array) -> jax.Array:
    """`[P, G]` the rewards after the chain; 0 where invalid."""
    info = RewardInfo(
        valid=rollouts.valid,
        lengths=count(mask, axis=1).astype(jnp.int32).reshape(rollouts.rewards.shape),
        truncated=rollouts.truncated,
        components=rollouts.components,
        baseline=rollouts.baseline,
    )
    shaped = masked(rollouts.rewards, rollouts.valid)
    for spec in algorithm.value("reward_shaping"):
        shaped = call("reward_shaping", spec, {})(shaped, info)
    return masked(shaped, rollouts.valid)


def _at_last_action(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, T]`: each sequence's reward on its last action, 0 elsewhere."""
    width = mask.shape[1]
    last = width - 1 - jnp.argmax(mask[:, ::-1] > 0, axis=1)
    here = (jnp.arange(width) == last[:, None]) & (mask > 0)
    return jnp.where(here, rewards.astype(jnp.float32)[:, None], 0.0)


def _distance(algorithm: Algorithm, rollouts: Rollouts, mask: jax.Array) -> jax.Array | None:
    """`[N, T]` distance to the reference where it shapes rewards or advantages, else None."""
    if algorithm.kl_placement not in ("reward", "advantage"):
        return None
    block = f"kl_placement {algorithm.kl_placement!r}"
    old = masked(required(block, "old_logp", rollouts.old_logp, OLD_LOGP), mask)
    reference = masked(required(block, "ref_logp", rollouts.ref_logp, REF_LOGP), mask)
    extras = {"old_logp": old, "mask": mask}
    distance = call("kl_estimator", _one(algorithm.kl_estimator), extras)(old, reference)
    return jax.lax.stop_gradient(masked(distance, mask))


def _inputs(rollouts: Rollouts, mask: jax.Array, group_ids: jax.Array) -> dict[str, Any]:
    """What a block may ask for beyond its slot's own inputs, 0 where masked."""
    truncated, turns = rollouts.truncated, rollouts.turn_ids
    old = _clean(rollouts.old_logp, mask)
    return {
        "group_ids": group_ids,
        "turn_ids": None if turns is None else jnp.where(mask > 0, turns, 0),
        "mask": mask,
        "logp": old,
        "old_logp": old,
        "rollout_logp": _clean(rollouts.rollout_logp, mask),
        "ref_logp": _clean(rollouts.ref_logp, mask),
        "sum_pi_squared": _clean(rollouts.sum_pi_squared, mask),
        "entropy": _clean(rollouts.entropy, mask),
        "truncated": None if truncated is None else truncated.reshape(-1),
    }


def _correct(
    algorithm: Algorithm,
    rollouts: Rollouts,
    mask: jax.Array,
    inputs: dict[str, Any],
    metrics: Metrics,
) -> tuple[jax.Array | None, jax.Array]:
    """Correction weights, and the actions that the denominators count."""
    if algorithm.correction is None:
        return None, mask
    spec = _one(algorithm.correction)
    block = f"correction {spec.name!r}"
    old = masked(required(block, "old_logp", rollouts.old_logp, OLD_LOGP), mask)
    sampled = masked(required(block, "rollout_logp", rollouts.rollout_logp, ROLLOUT_LOGP), mask)
    weights, kept = call("correction", spec, inputs)(old, sampled, mask)
    kept = masked(kept, mask)
    weights = jax.lax.stop_gradient(masked(weights, kept))
    metrics["correction/weight"] = (masked_sum(weights, mask), count(mask))
    metrics["correction/rejected"] = (masked_sum(1.0 - kept, mask), count(mask))
    counted = mask if setting("correction", spec, "denominator") == "original" else mask * kept
    return weights, counted
