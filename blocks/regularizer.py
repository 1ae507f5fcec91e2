"""What is asked beside the reward: terms per token, each added to the loss with a coefficient."""

from __future__ import annotations

from typing import Literal

import jax

from ..registry import register
from . import kl_estimator
from .checks import required, same_shape
from .masking import masked


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
    estimator: Literal["k1", "k2", "k3", "abs"] = "k3",
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
    if estimator == "k3":
        return kl_estimator.k3(logp, ref_logp, clamp=clamp, clamp_out=clamp_out, gradient=gradient)
    if estimator == "k2":
        return kl_estimator.k2(logp, ref_logp, clamp_out=clamp_out)
    formula = {"k1": kl_estimator.k1, "abs": kl_estimator.absolute}[estimator]
    return formula(logp, ref_logp, clamp_out=clamp_out, gradient=gradient)
