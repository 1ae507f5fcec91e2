"""The second assembled function: from log-probabilities to the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..blocks.checks import required
from ..blocks.masking import count, masked, masked_sum
from ..models import Distributions
from ..registry import BlockSpec, ZootomyError
from .algorithm import Algorithm
from .arrays import Experience, Metrics
from .calling import VALUE, call, check_coefficients, logged, plugged
from .contents import one
from .experience import REF_LOGP
from .vocabulary import in_the_update, is_over_vocabulary, over_vocabulary


class Outputs(NamedTuple):
    """What the models say of the actions at the current weights; absent entries are None.

    Attributes:
        logp: `[N, T]` the policy's log-probability of each action, at the sampling temperature.
        entropy: `[N, T]` the policy's entropy at each action, in nats.
        values: `[N, T]` the critic's value of the state before each action.
        distributions: the policy's whole distributions at each action, for blocks that need
            them: a `Head` with hidden states `[N, T, D]`, or log-probabilities `[N, T, V]`.
        ref_distributions: the reference's, in either form.
    """

    logp: jax.Array | None = None
    entropy: jax.Array | None = None
    values: jax.Array | None = None
    distributions: Distributions | None = None
    ref_distributions: Distributions | None = None


class Loss(NamedTuple):
    """The loss and what it is made of, all of it sums that add up over micro-batches.

    Attributes:
        total: the scalar to minimise.
        parts: name -> the part's contribution to `total`.
        metrics: name -> (weighted sum, weight).
    """

    total: jax.Array
    parts: dict[str, jax.Array]
    metrics: Metrics


Objective = Callable[..., Loss]


def make_weights(algorithm: Algorithm) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The function `(counted [N, T], group_ids [N]) -> weights [N, T]` over a whole mini-batch."""
    return call("aggregation", one(algorithm.aggregation), {})


def make_objective(algorithm: Algorithm) -> Objective:
    """The pure function from model outputs to the loss that the algorithm's blocks define.

        loss = Σ weights · (correction · policy_loss + β · kl + Σ coef · regularizer)

    and, where the outputs hold values, `value coefficient · Σ weights · value_loss` on top.

    Args:
        algorithm: the algorithm.

    Returns:
        `f(outputs, experience, coefficients, weights=None) -> Loss`, jittable. `weights` are
        those of the whole mini-batch when `experience` is a part of it; left out, `experience`
        is the whole. `coefficients["kl"]` is the coefficient of the distance in the loss;
        `coefficients["regularizer.NAME"]` takes the place of that `coef`, and must be given where
        a controller steers it; `coefficients["value_loss"]` is the factor of the value loss, 1 if
        left out. It raises `ZootomyError` for outputs or arrays that are missing or have no use.
    """
    aggregate = make_weights(algorithm)

    def objective(
        outputs: Outputs,
        experience: Experience,
        coefficients: Mapping[str, Any],
        weights: jax.Array | None = None,
    ) -> Loss:
        _check_outputs(algorithm, outputs)
        check_coefficients(algorithm, coefficients)
        if weights is None:
            weights = aggregate(experience.counted, experience.group_ids)
        parts: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        if outputs.logp is not None:
            _policy_parts(algorithm, outputs, experience, coefficients, weights, parts, metrics)
        if outputs.values is not None:
            _value_part(
                algorithm, outputs.values, experience, coefficients, weights, parts, metrics
            )
        total = sum(parts.values(), jnp.zeros((), jnp.float32))
        return Loss(total, parts, metrics)

    return objective


def make_distance(algorithm: Algorithm) -> Callable[[Outputs, Mapping[str, Any]], jax.Array]:
    """The function that measures the distance before the update by whole distributions.

    Args:
        algorithm: the algorithm.

    Returns:
        `f(outputs, inputs) -> [N, T]`, jittable: the estimator at the outputs' distributions.
        `inputs` are arrays `[N, T]` or `[N]` by name, `mask` among them, of which the estimator
        takes what it asks for.
    """
    estimator = one(algorithm.kl_estimator)

    def distance(outputs: Outputs, inputs: Mapping[str, Any]) -> jax.Array:
        return _over_vocabulary("kl_estimator", estimator, outputs, inputs)

    return distance


def _over_vocabulary(
    slot_name: str, spec: BlockSpec, outputs: Outputs, inputs: Mapping[str, Any]
) -> jax.Array:
    """`[N, T]`: a block at the whole distributions of each action."""
    policy, reference = outputs.distributions, outputs.ref_distributions
    if policy is None:
        raise ZootomyError(
            f"{slot_name} {spec.name!r} needs distributions, which are missing; give the policy's "
            f"whole distributions at each action."
        )
    return over_vocabulary(slot_name, spec, inputs, policy, reference, inputs["mask"])


def _check_outputs(algorithm: Algorithm, outputs: Outputs) -> None:
    if outputs.logp is None and outputs.values is None:
        raise ZootomyError("objective: give outputs with logp or values; there is nothing else.")
    if outputs.values is not None and algorithm.value_loss is None:
        raise ZootomyError(
            "objective: outputs has values, but value_loss is 'none', so they have no effect. "
            "Set value_loss to 'clipped_mse' or 'mse', or leave the values out."
        )
    if outputs.distributions is not None and not in_the_update(algorithm):
        raise ZootomyError(
            "objective: outputs has distributions, but no term of the loss needs them, so they "
            "have no effect. Leave them out."
        )


def _inputs(experience: Experience) -> dict[str, Any]:
    """What a block may ask for beyond its slot's own inputs."""
    return {
        "group_ids": experience.group_ids,
        "mask": experience.mask,
        "old_logp": experience.old_logp,
        "rollout_logp": experience.rollout_logp,
        "ref_logp": experience.ref_logp,
        "advantages": experience.advantages,
        "turn_ids": experience.turn_ids,
        "truncated": experience.truncated,
        "next_values": experience.next_values,
    }


def _weighted(weights: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`Σ weights · x` over the actions."""
    return jnp.sum(weights * masked(x, mask))


def _policy_parts(
    algorithm: Algorithm,
    outputs: Outputs,
    experience: Experience,
    coefficients: Mapping[str, Any],
    weights: jax.Array,
    parts: dict[str, jax.Array],
    metrics: Metrics,
) -> None:
    """The policy loss, the distance in the loss and the regularizers."""
    mask = experience.mask
    assert outputs.logp is not None
    logp = masked(outputs.logp, mask)
    # Without an old_logp the update is exactly on-policy: the ratio is 1 to the last bit.
    old_logp = experience.old_logp
    if old_logp is None:
        old_logp = jax.lax.stop_gradient(logp)
    entropy = None if outputs.entropy is None else masked(outputs.entropy, mask)
    inputs = _inputs(experience) | {"logp": logp, "old_logp": old_logp, "entropy": entropy}

    if experience.rollout_logp is not None:
        # On the first update this is what separates the engine's arithmetic from the trainer's.
        trainer = jax.lax.stop_gradient(logp if algorithm.bypasses else old_logp)
        gap = jnp.abs(trainer - experience.rollout_logp)
        metrics["rollout_logp_gap"] = (masked_sum(gap, mask), count(mask))

    log_ratio = call("ratio", one(algorithm.ratio), inputs)(logp, old_logp, mask)
    token_loss = call("policy_loss", one(algorithm.policy_loss), inputs)(
        log_ratio, experience.advantages, logp, old_logp, mask
    )
    loss = plugged(algorithm, "policy_loss", token_loss.loss, inputs, metrics, mask)
    if experience.correction is not None:
        loss = masked(loss, experience.correction != 0) * experience.correction
    parts["policy_loss"] = _weighted(weights, loss, mask)
    for name, stat in token_loss.stats.items():
        metrics[name] = (masked_sum(stat, mask), count(mask))

    if algorithm.kl_placement == "loss":
        estimator = one(algorithm.kl_estimator)
        if is_over_vocabulary("kl_estimator", estimator):
            distance = _over_vocabulary("kl_estimator", estimator, outputs, inputs)
        else:
            reference = required("kl_placement 'loss'", "ref_logp", experience.ref_logp, REF_LOGP)
            distance = call("kl_estimator", estimator, inputs)(logp, reference)
        parts["kl_loss"] = coefficients["kl"] * _weighted(weights, distance, mask)
        metrics["kl"] = (masked_sum(jax.lax.stop_gradient(distance), mask), count(mask))
    if entropy is not None:
        metrics["entropy"] = (masked_sum(jax.lax.stop_gradient(entropy), mask), count(mask))
    for spec in algorithm.value("regularizer"):
        if is_over_vocabulary("regularizer", spec):
            term = _over_vocabulary("regularizer", spec, outputs, inputs)
        else:
            term = logged("regularizer", spec, inputs, metrics, mask)(
                logp, experience.ref_logp, entropy, experience.advantages, mask
            )
        coefficient = coefficients.get(f"regularizer.{spec.name}", spec.hyperparameters["coef"])
        parts[f"{spec.name}_regularizer"] = coefficient * _weighted(weights, term, mask)
        if spec.name == "kl" and algorithm.kl_placement == "none":
            metrics["kl"] = (masked_sum(jax.lax.stop_gradient(term), mask), count(mask))


def _value_part(
    algorithm: Algorithm,
    values: jax.Array,
    experience: Experience,
    coefficients: Mapping[str, Any],
    weights: jax.Array,
    parts: dict[str, jax.Array],
    metrics: Metrics,
) -> None:
    """The critic's loss, and how much of the returns' variance it explains."""
    mask = experience.mask
    spec = one(algorithm.value_loss)
    old_values = required(
        f"value_loss {spec.name!r}", "values", experience.old_values, "give them with the rollouts"
    )
    token = call("value_loss", spec, _inputs(experience))(
        masked(values, mask), old_values, experience.returns, mask
    )
    parts["value_loss"] = coefficients.get(VALUE, 1.0) * _weighted(weights, token, mask)
    values = jax.lax.stop_gradient(values)
    metrics["value/mean"] = (masked_sum(values, mask), count(mask))
    error = masked(values, mask) - experience.returns
    metrics["value/squared_error"] = (masked_sum(error**2, mask), count(mask))
