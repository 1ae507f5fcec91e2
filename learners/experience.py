"""The first assembled function: from rewards to advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..blocks.checks import required
from ..blocks.masking import count, masked, masked_mean, masked_sum
from ..blocks.types import RewardInfo
from ..registry import setting
from .algorithm import Algorithm
from .arrays import Experience, Metrics, Rollouts, check_shapes
from .calling import call, check_coefficients, logged, plugged
from .contents import one
from .vocabulary import before_the_update

OLD_LOGP = "give the trainer's log-probabilities before the update"
REF_LOGP = "give the reference's log-probabilities"
KL = "measure it with the assembly's `distance`"
ROLLOUT_LOGP = "give the log-probabilities that the engine sampled with"


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
        check_shapes(rollouts)
        rollouts = rollouts._replace(valid=rollouts.valid > 0)
        if algorithm.bypasses:
            rollouts = rollouts._replace(
                old_logp=required(
                    "correction 'bypass'", "rollout_logp", rollouts.rollout_logp, ROLLOUT_LOGP
                )
            )
        prompts, group = rollouts.rewards.shape
        sequence_valid = rollouts.valid.reshape(-1, 1)
        mask = ((rollouts.mask > 0) & sequence_valid).astype(jnp.float32)
        group_ids = jnp.repeat(jnp.arange(prompts, dtype=jnp.int32), group)
        metrics: Metrics = {}

        shaped = _shape_rewards(algorithm, rollouts, mask, metrics)
        token_rewards = _token_rewards(shaped.reshape(-1), rollouts.token_rewards, mask)
        inputs = _inputs(rollouts, mask, group_ids)
        distance = _distance(algorithm, rollouts, mask, inputs)
        if distance is not None and algorithm.kl_placement == "reward":
            token_rewards = token_rewards - coefficients["kl"] * distance
        if distance is not None:
            metrics["kl"] = (masked_sum(distance, mask), count(mask))

        advantages, returns = logged("advantage", one(algorithm.advantage), inputs, metrics, mask)(
            token_rewards, rollouts.values, mask
        )
        whiten = logged("whitening", one(algorithm.whitening), inputs, metrics, mask)
        advantages = whiten(advantages, mask)
        advantages = plugged(algorithm, "whitening", advantages, inputs, metrics, mask)
        if distance is not None and algorithm.kl_placement == "advantage":
            centred = masked_mean(distance, mask) - distance
            advantages = advantages + coefficients["kl"] * centred
        advantages = jax.lax.stop_gradient(masked(advantages, mask))
        metrics["advantage/mean"] = (masked_sum(advantages, mask), count(mask))
        metrics["advantage/abs"] = (masked_sum(jnp.abs(advantages), mask), count(mask))

        judged = inputs | {"advantages": advantages}
        correction, counted = _correct(algorithm, rollouts, mask, judged, metrics)
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
                next_values=inputs["next_values"],
            ),
            metrics,
        )

    return experience


def _clean(x: jax.Array | None, mask: jax.Array) -> jax.Array | None:
    return None if x is None else jax.lax.stop_gradient(masked(x, mask))


def _shape_rewards(
    algorithm: Algorithm, rollouts: Rollouts, mask: jax.Array, metrics: Metrics
) -> jax.Array:
    """`[P, G]` the rewards after all shapings; 0 where invalid."""
    info = RewardInfo(
        valid=rollouts.valid,
        lengths=count(mask, axis=1).astype(jnp.int32).reshape(rollouts.rewards.shape),
        truncated=rollouts.truncated,
        components=rollouts.components,
        baseline=rollouts.baseline,
        scale=rollouts.scale,
        weights=rollouts.component_weights,
    )
    shaped = masked(rollouts.rewards, rollouts.valid)
    for spec in algorithm.value("reward_shaping"):
        shaped = logged("reward_shaping", spec, {}, metrics, rollouts.valid)(shaped, info)
    shaped = plugged(algorithm, "reward_shaping", shaped, {"info": info}, metrics, rollouts.valid)
    return masked(shaped, rollouts.valid)


def _token_rewards(shaped: jax.Array, given: jax.Array | None, mask: jax.Array) -> jax.Array:
    """`[N, T]`: what was given to single actions, and the rest of the shaped reward on the last.

    Their sum over a completion is its reward after all shapings, whatever was given to its parts.
    """
    if given is None:
        return _at_last_action(shaped, mask)
    given = masked(given.astype(jnp.float32), mask)
    return given + _at_last_action(shaped - given.sum(axis=1), mask)


def _at_last_action(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, T]`: each sequence's reward on its last action, 0 elsewhere."""
    width = mask.shape[1]
    last = width - 1 - jnp.argmax(mask[:, ::-1] > 0, axis=1)
    here = (jnp.arange(width) == last[:, None]) & (mask > 0)
    return jnp.where(here, rewards.astype(jnp.float32)[:, None], 0.0)


def _distance(
    algorithm: Algorithm, rollouts: Rollouts, mask: jax.Array, inputs: dict[str, Any]
) -> jax.Array | None:
    """`[N, T]` distance to the reference where it shapes rewards or advantages, else None."""
    if algorithm.kl_placement not in ("reward", "advantage"):
        return None
    block = f"kl_placement {algorithm.kl_placement!r}"
    if before_the_update(algorithm):
        block += f" with kl_estimator {one(algorithm.kl_estimator).name!r}"
        return jax.lax.stop_gradient(masked(required(block, "kl", rollouts.kl, KL), mask))
    old = masked(required(block, "old_logp", rollouts.old_logp, OLD_LOGP), mask)
    reference = masked(required(block, "ref_logp", rollouts.ref_logp, REF_LOGP), mask)
    distance = call("kl_estimator", one(algorithm.kl_estimator), inputs)(old, reference)
    return jax.lax.stop_gradient(masked(distance, mask))


def _inputs(rollouts: Rollouts, mask: jax.Array, group_ids: jax.Array) -> dict[str, Any]:
    """What a block may ask for beyond its slot's own inputs, 0 where masked."""
    truncated, turns = rollouts.truncated, rollouts.turn_ids
    behind = rollouts.next_values
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
        "next_values": None if behind is None else _clean(behind, mask.any(axis=1)),
    }


def _correct(
    algorithm: Algorithm,
    rollouts: Rollouts,
    mask: jax.Array,
    inputs: dict[str, Any],
    metrics: Metrics,
) -> tuple[jax.Array | None, jax.Array]:
    """Correction weights, and the actions that the denominators count.

    They are taken once, before the update: "the policy now" is the one from before it.
    """
    if algorithm.correction is None:
        return None, mask
    spec = one(algorithm.correction)
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
