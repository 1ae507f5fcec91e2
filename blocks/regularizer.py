"""What is asked beside the reward: terms per token, each added to the loss with a coefficient."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ..registry import ZootomyError, register
from . import kl_estimator
from .checks import required, same_shape
from .masking import masked
from .quantile import masked_quantile


@register("regularizer", "entropy", paper="arXiv:1602.01783", needs=("entropy",))
def entropy_bonus(
    logp: jax.Array,
    ref_logp: jax.Array | None,
    entropy: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
) -> jax.Array:
    """Minus the entropy: a positive coefficient is a bonus for staying undecided.

        −H(π(·|s_t))

    Args:
        logp: `[N, T]`, not used.
        ref_logp: `[N, T]` or None, not used.
        entropy: `[N, T]` entropy of the policy at each token, in nats, differentiable.
        advantages: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the entropy is missing or its shape differs.

    Source: A3C, arXiv:1602.01783.
    """
    entropy = required(
        "regularizer entropy", "entropy", entropy, "take it from the policy's logits"
    )
    same_shape("regularizer entropy", entropy=entropy, mask=mask)
    return -masked(entropy, mask)


@register("regularizer", "kl", paper="arXiv:2402.03300", needs=("reference",))
def kl(
    logp: jax.Array,
    ref_logp: jax.Array | None,
    entropy: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    estimator: kl_estimator.Estimator = "k3",
    clamp: float = 20.0,
    clamp_out: float | None = None,
    gradient: kl_estimator.Gradient = "value",
) -> jax.Array:
    """The distance to the reference: a positive coefficient is a penalty.

        kl(logπ_t, logπ_ref,t), with the estimator's formula

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` those under the reference.
        entropy: `[N, T]` or None, not used.
        advantages: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.
        estimator: which formula, as in the slot `kl_estimator`.
        clamp: bound on k3's exponent; the others have none.
        clamp_out: bound on the result.
        gradient: "value", or "k2": the gradient of d²/2 whatever the value.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the reference is missing or the shapes differ.

    Source: the KL term of GRPO, arXiv:2402.03300, equation 4.
    """
    ref_logp = required("regularizer kl", "ref_logp", ref_logp, "give the run a reference model")
    same_shape("regularizer kl", logp=logp, ref_logp=ref_logp, mask=mask)
    logp, ref_logp = masked(logp, mask), masked(ref_logp, mask)
    return kl_estimator.estimate(
        estimator, logp, ref_logp, clamp=clamp, clamp_out=clamp_out, gradient=gradient
    )


@register("regularizer", "entropy_top", paper="arXiv:2506.01939", needs=("entropy", "whole_batch"))
def entropy_top(
    logp: jax.Array,
    ref_logp: jax.Array | None,
    entropy: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    fraction: float = 0.2,
) -> jax.Array:
    """Minus the entropy, on the tokens of the highest entropy in the mini-batch alone.

        −H_t where H_t ≥ quantile(1 − fraction) of the actions' entropies, else 0

    The mask of the correction `top_entropy`, so that bonus and policy loss can use the same.
    Couples all rows of the mini-batch.

    Args:
        logp: `[N, T]`, not used.
        ref_logp: `[N, T]` or None, not used.
        entropy: `[N, T]` entropy of the policy at each token, in nats, differentiable.
        advantages: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.
        fraction: the share of tokens with a bonus; 1 for all.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the entropy is missing, its shape differs, or `fraction` is not
            in (0, 1].

    Source: Wang et al. 2025, arXiv:2506.01939; TRL's `top_entropy_quantile`.
    """
    entropy = required(
        "regularizer entropy_top", "entropy", entropy, "take it from the policy's logits"
    )
    if not 0 < fraction <= 1:
        raise ZootomyError(f"entropy_top: fraction must be in (0, 1], got {fraction!r}.")
    same_shape("regularizer entropy_top", entropy=entropy, mask=mask)
    entropy = masked(entropy, mask)
    threshold = masked_quantile(jax.lax.stop_gradient(entropy), mask, 1.0 - fraction)
    return -masked(entropy, mask * (entropy >= threshold))


@register("regularizer", "nll_positives", aliases=("nll",), paper="arXiv:2504.05118")
def nll_positives(
    logp: jax.Array,
    ref_logp: jax.Array | None,
    entropy: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    threshold: float = 0.0,
) -> jax.Array:
    """Imitation of the good samples: a positive coefficient makes them more probable.

        −logπ_t where A_t > threshold, else 0

    VAPO averages over the tokens of right answers alone; here the aggregation's weights count
    every action, as for all other terms.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` or None, not used.
        entropy: `[N, T]` or None, not used.
        advantages: `[N, T]` advantages, which say what is good; carry no gradient.
        mask: `[N, T]` 1 on actions.
        threshold: the advantage from which on a token is imitated, not included.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ.

    Source: VAPO, arXiv:2504.05118, equation 12.
    """
    same_shape("regularizer nll_positives", logp=logp, advantages=advantages, mask=mask)
    good = (mask > 0) & (masked(advantages, mask) > threshold)
    return -masked(logp, good)


@register(
    "regularizer",
    "distillation",
    paper="arXiv:2306.13649",
    needs=("reference",),
    needs_when={"logits": {"estimator": ("full", "top_k")}},
)
def distillation(
    logp: jax.Array,
    ref_logp: jax.Array | None,
    entropy: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    estimator: Literal["k1", "k2", "k3", "abs", "full", "top_k"] = "k1",
    clamp: float = 20.0,
    clamp_out: float | None = None,
    gradient: kl_estimator.Gradient = "k2",
    direction: Literal["reverse", "forward"] = "reverse",
    k: int | None = None,
) -> jax.Array:
    """On-policy distillation: the distance to a teacher, given as the reference.

        kl(logπ_t, logπ_teacher,t), with the estimator's formula

    With the estimator of a sampled token it differs from the regularizer `kl` in its defaults
    alone: the value is the log-ratio and the gradient is that of the true KL. With "full" and
    "top_k" the log-probabilities are those of every token, or of the teacher's best.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats; `[N, T, V]` for "full",
            `[N, T, K]` or `[N, T, V]` for "top_k".
        ref_logp: `[N, T]` those under the teacher; as wide as `logp`.
        entropy: `[N, T]` or None, not used.
        advantages: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.
        estimator: which formula, as in the slot `kl_estimator`.
        clamp: bound on k3's exponent; the others have none.
        clamp_out: bound on the result; not for "full" and "top_k".
        gradient: "value", or "k2": the gradient of d²/2 whatever the value; not for "full" and
            "top_k", whose own gradient is the true one.
        direction: for "full": "reverse" KL(π ‖ teacher), or "forward" KL(teacher ‖ π).
        k: for "top_k": how many of the given tokens count, the teacher's best; None: all.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the teacher is missing or the shapes differ.

    Source: GKD, arXiv:2306.13649.
    """
    name = "regularizer distillation"
    ref_logp = required(name, "ref_logp", ref_logp, "give the run a teacher as its reference")
    if estimator in ("full", "top_k"):
        if logp.ndim != 3 or logp.shape[:2] != mask.shape:
            axes = "[N, T, K]" if estimator == "top_k" else "[N, T, V]"
            raise ZootomyError(
                f"{name}: with {estimator}, logp must be {axes} of the mask's "
                f"{list(mask.shape)}, got {list(logp.shape)}."
            )
        wide = jnp.broadcast_to(mask[..., None], logp.shape)
        policy, teacher = masked(logp, wide), masked(ref_logp, wide)
        if estimator == "top_k":
            return masked(kl_estimator.top_k(policy, teacher, k=k), mask)
        return masked(kl_estimator.full(policy, teacher, direction=direction), mask)
    same_shape(name, logp=logp, ref_logp=ref_logp, mask=mask)
    logp, ref_logp = masked(logp, mask), masked(ref_logp, mask)
    return kl_estimator.estimate(
        estimator, logp, ref_logp, clamp=clamp, clamp_out=clamp_out, gradient=gradient
    )
