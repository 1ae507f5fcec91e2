"""Estimators whose gradient is right for tokens that an older policy sampled."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, same_shape
from ..masking import masked, masked_mean
from ..numerics import bounded_exp, with_gradient_of
from .sampled import Estimator, difference, estimate


@register("kl_estimator", "unbiased", needs=("old_logp",))
def unbiased(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    old_logp: jax.Array,
    estimator: Estimator = "k3",
    cap: float = 10.0,
    clamp: float = 20.0,
    clamp_out: float | None = None,
) -> jax.Array:
    """The value of an estimator, the gradient of the KL for tokens of an older policy.

        value: the estimator's;   derivative: w d,   w = sg(min(π / π_old, cap))

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` those under the reference.
        old_logp: `[N, T]` those under the policy that sampled.
        estimator: whose value.
        cap: the largest weight w.
        clamp: bound on k3's exponent, and on log(π / π_old) before exp.
        clamp_out: bound on the value; OpenRLHF 10.

    Returns:
        `[N, T]` float32.

    Raises:
        ZootomyError: if the shapes differ, or `cap`, `clamp` or `clamp_out` is not positive.

    Source: OpenRLHF's `unbiased_gradient`; on-policy it is the gradient "k2", arXiv:2506.09477.
    """
    above("unbiased", "cap", cap)
    same_shape("unbiased", logp=logp, ref_logp=ref_logp, old_logp=old_logp)
    value = estimate(estimator, logp, ref_logp, clamp=clamp, clamp_out=clamp_out)
    d = difference("unbiased", logp, ref_logp)
    moved = difference("unbiased", logp, old_logp)
    weight = jax.lax.stop_gradient(jnp.minimum(bounded_exp(moved, clamp), cap))
    return with_gradient_of(value, 0.5 * weight * jnp.square(d))


@register("kl_estimator", "importance_weighted", paper="arXiv:2512.02556", needs=("old_logp",))
def importance_weighted(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    old_logp: jax.Array,
    mask: jax.Array,
    estimator: Estimator = "k3",
    level: Literal["token", "sequence"] = "token",
    clamp: float = 20.0,
    clamp_out: float | None = None,
) -> jax.Array:
    """An estimator times the ratio to the policy that sampled: unbiased off-policy, as a whole.

        kl = r k(d),   r = π / π_old with its gradient (sequence: exp of the mean log-ratio)

    TRL's `use_bias_correction_kl`, which clamps nothing (`clamp=inf`).

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` those under the reference.
        old_logp: `[N, T]` those under the policy that sampled.
        mask: `[N, T]` 1 on actions.
        estimator: k.
        level: whose ratio.
        clamp: bound on k3's exponent, and on log r before exp; no gradient of r beyond it.
        clamp_out: bound on k.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ, or `clamp` or `clamp_out` is not positive.

    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1.
    """
    block = "importance_weighted"
    same_shape(block, logp=logp, ref_logp=ref_logp, old_logp=old_logp, mask=mask)
    logp, ref_logp, old_logp = (masked(x, mask) for x in (logp, ref_logp, old_logp))
    moved = logp - old_logp
    if level == "sequence":
        moved = masked_mean(moved, mask, axis=1)[:, None]
    kl = estimate(estimator, logp, ref_logp, clamp=clamp, clamp_out=clamp_out)
    return bounded_exp(moved, clamp) * kl
