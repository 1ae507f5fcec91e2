"""Losses that fade a far token or sequence out smoothly, in place of a clip."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above
from ..masking import masked, masked_sum
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import approx_kl, clean


@register("policy_loss", "sapo", paper="arXiv:2511.20347")
def sapo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    clamp: float = 20.0,
) -> TokenLoss:
    """A sigmoid gate around ratio 1, narrower for negative advantages.

        loss = −(4/τ) σ(τ (r − 1)) A,   τ = τ⁺ where A > 0, else τ⁻

    At r = 1 the gradient is that of −rA. TRL and AReaL do not clamp the log-ratio
    (`clamp=inf`). The paper aggregates by `sequence_mean_token_mean`, as verl and TRL force.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        tau_positive: τ⁺.
        tau_negative: τ⁻.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `gate` (the weight of the gradient beside r,
        4 σ(1 − σ), 1 at r = 1) and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, or a τ or `clamp` is not positive.

    Source: SAPO, arXiv:2511.20347, equations 5 and 6.
    """
    above("sapo", "tau_positive", tau_positive)
    above("sapo", "tau_negative", tau_negative)
    above("sapo", "clamp", clamp)
    given = clean("sapo", log_ratio, advantages, logp, old_logp, mask)
    ratio = bounded_exp(given.log_ratio, clamp)
    tau = jnp.where(given.advantages > 0, tau_positive, tau_negative)
    gate = jax.nn.sigmoid(tau * (ratio - 1.0))
    stats = {
        "gate": masked(jax.lax.stop_gradient(4.0 * gate * (1.0 - gate)), mask),
        "approx_kl": approx_kl(given),
    }
    return TokenLoss(-given.advantages * gate * 4.0 / tau, stats)


@register("policy_loss", "vespo", paper="arXiv:2602.10693")
def vespo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """The whole sequence's ratio, reshaped by a kernel that is 1 at 1 and fades on both sides.

        w = exp(clip(Σ_t clip(log r_t, ±clamp), log 1e-8, clamp))
        φ = w^k exp(λ (1 − w)),   loss = −sg(φ) A logπ

    k and λ by the sign of A. Takes the ratio `token`: the sum over the sequence is made here,
    without length normalisation. Drift of the engine belongs into the same sum: let `old_logp`
    be the engine's (correction `bypass`). TRL adds it with the masked positions included.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        k_positive: k where A ≥ 0.
        lambda_positive: λ where A ≥ 0.
        k_negative: k where A < 0.
        lambda_negative: λ where A < 0.
        clamp: bound on a token's log-ratio, and upper bound on the sum.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `phi` and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ or `clamp` is not positive.

    Source: VESPO, arXiv:2602.10693.
    """
    above("vespo", "clamp", clamp)
    given = clean("vespo", log_ratio, advantages, logp, old_logp, mask)
    tokens = jnp.clip(jax.lax.stop_gradient(given.log_ratio), -clamp, clamp)
    total = masked_sum(tokens, mask, axis=1)[:, None]
    total = jnp.clip(total, math.log(1e-8), clamp)
    good = given.advantages >= 0
    k = jnp.where(good, k_positive, k_negative)
    scale = jnp.where(good, lambda_positive, lambda_negative)
    phi = jnp.exp(scale + k * total - scale * jnp.exp(total))
    phi = masked(jnp.where(jnp.isfinite(phi), phi, 0.0), mask)
    stats = {"phi": phi, "approx_kl": approx_kl(given)}
    return TokenLoss(-phi * given.advantages * given.logp, stats)
