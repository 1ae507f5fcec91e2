"""Losses that drop the tokens which have left a region around the old policy."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, at_least
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import Inputs, approx_kl, clean, indicator

# What keeps the logarithm of an improbable rest finite; the peers' number.
REST = 1e-8


@register("policy_loss", "dppo", aliases=("dppo_tv",), paper="arXiv:2602.04879")
def dppo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    form: Literal["ratio", "logp"] = "ratio",
    ratio_cap: float | None = None,
    clamp: float = 20.0,
) -> TokenLoss:
    """A trust region in probabilities, not in ratios: rare tokens may move, frequent ones may not.

        p = π, q = π_old of the sampled token
        D = |p − q| (tv)   or   q log(q/p) + (1 − q) log((1 − q)/(1 − p)) (kl)
        a token is dropped where A > 0, p > q, D > δ_high, or A < 0, p < q, D > δ_low
        form "ratio":  loss = −A r        form "logp":  loss = −A sg(min(r, cap)) logπ

    SkyRL uses the form "ratio", as the paper; verl the form "logp" with a cap of 3 (the same
    gradient, as long as the cap does not bind).

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those of the policy that the region is around.
        mask: `[N, T]` 1 on actions.
        divergence: D, on the two outcomes "this token" and "another".
        delta_low: δ_low, for negative advantages.
        delta_high: δ_high, for positive advantages.
        form: which of the two.
        ratio_cap: cap on the ratio in the form "logp"; None for none.
        clamp: bound on the log-ratio before exp.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio`, `clip_ratio_low`,
        `clip_ratio_high` (1 on dropped tokens, by the sign of A) and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, a δ is negative, or `ratio_cap` or `clamp` is not
            positive.

    Source: DPPO, arXiv:2602.04879.
    """
    at_least("dppo", "delta_low", delta_low, 0.0)
    at_least("dppo", "delta_high", delta_high, 0.0)
    above("dppo", "ratio_cap", ratio_cap)
    above("dppo", "clamp", clamp)
    given = clean("dppo", log_ratio, advantages, logp, old_logp, mask)
    p, q = jnp.exp(jax.lax.stop_gradient(given.logp)), jnp.exp(given.old_logp)
    if divergence == "tv":
        distance = jnp.abs(p - q)
    else:
        log_p = jax.lax.stop_gradient(given.logp)
        rest = (1.0 - q) * jnp.log((1.0 - q + REST) / (1.0 - p + REST))
        distance = q * (given.old_logp - log_p) + rest
    high = (given.advantages > 0) & (p > q) & (distance > delta_high)
    low = (given.advantages < 0) & (p < q) & (distance > delta_low)
    ratio = bounded_exp(given.log_ratio, clamp)
    if form == "ratio":
        pushed = ratio
    else:
        weight = ratio if ratio_cap is None else jnp.minimum(ratio, ratio_cap)
        pushed = jax.lax.stop_gradient(weight) * given.logp
    loss = jnp.where(high | low, 0.0, -given.advantages * pushed)
    return TokenLoss(loss, _dropped(given, low, high, mask))


@register("policy_loss", "ipo_mask", paper="https://github.com/PrimeIntellect-ai/prime-rl")
def ipo_mask(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    by_sign: bool = False,
    kl_tau: float = 1e-3,
    clamp: float = 20.0,
) -> TokenLoss:
    """A probability-difference mask with a squared pull on every token, masked ones included.

        keep = −mask_low ≤ p − q ≤ mask_high;   by sign: p − q ≤ mask_high where A > 0,
        p − q ≥ −mask_low elsewhere
        loss = −keep r A + τ (log r)²

    The mask does not look at the advantage: in asynchronous training a token beyond the bounds
    has been moved by other data. Later versions of prime-rl look at it (`by_sign=True`).

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats; p = exp of it.
        old_logp: `[N, T]` those of the policy that sampled; q = exp of it.
        mask: `[N, T]` 1 on actions.
        mask_low: how far a probability may fall.
        mask_high: how far a probability may rise.
        by_sign: whether only the bound in the direction of the push counts.
        kl_tau: τ, the strength of the pull.
        clamp: bound on the log-ratio before exp; the pull is not clamped.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio`, `clip_ratio_low`,
        `clip_ratio_high` (1 on dropped tokens) and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, a bound or `kl_tau` is negative, or `clamp` is not
            positive.

    Source: prime-rl's default loss, https://github.com/PrimeIntellect-ai/prime-rl.
    """
    for name, value in (("mask_low", mask_low), ("mask_high", mask_high), ("kl_tau", kl_tau)):
        at_least("ipo_mask", name, value, 0.0)
    above("ipo_mask", "clamp", clamp)
    given = clean("ipo_mask", log_ratio, advantages, logp, old_logp, mask)
    moved = jnp.exp(jax.lax.stop_gradient(given.logp)) - jnp.exp(given.old_logp)
    high, low = moved > mask_high, moved < -mask_low
    if by_sign:
        good = given.advantages > 0
        high, low = good & high, ~good & low
    ratio = bounded_exp(given.log_ratio, clamp)
    push = jnp.where(high | low, 0.0, -given.advantages * ratio)
    loss = push + kl_tau * jnp.square(given.log_ratio)
    return TokenLoss(loss, _dropped(given, low, high, mask))


@register("policy_loss", "m2po", paper="arXiv:2510.01161", needs=("whole_batch",))
def m2po(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    threshold: float = 0.04,
    scope: Literal["all", "harmful"] = "all",
    clamp: float = 20.0,
) -> TokenLoss:
    """Drops the fewest tokens that bring the batch's second moment of log r under a threshold.

        M₂ = mean of (log r)² over the tokens kept ≤ τ,   loss = −r A where kept, else 0

    Couples all rows of the mini-batch. The published code counts "harmful" tokens alone (r > 1
    with A > 0, r < 1 with A < 0: those that a clip would act on) and clips them at the radius
    found, with floors of 0.3 and 0.5, where the paper masks.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        threshold: τ, in nats².
        scope: which tokens are counted and may be dropped.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 on dropped tokens) and
        `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, or `threshold` or `clamp` is not positive.

    Source: M2PO, arXiv:2510.01161, equation 5 and algorithm 1.
    """
    above("m2po", "threshold", threshold)
    above("m2po", "clamp", clamp)
    given = clean("m2po", log_ratio, advantages, logp, old_logp, mask)
    d = jax.lax.stop_gradient(given.log_ratio)
    counted = mask > 0
    if scope == "harmful":
        counted &= d * given.advantages > 0
    moments = jnp.where(counted, jnp.square(d), jnp.inf).reshape(-1)
    order = jnp.argsort(moments)
    # means of the k smallest moments never fall with k: the tokens kept are a prefix
    smallest = moments[order]
    means = jnp.cumsum(smallest) / jnp.arange(1, smallest.size + 1)
    kept = jnp.zeros(moments.shape, bool).at[order].set(means <= threshold)
    dropped = counted & ~kept.reshape(mask.shape)
    ratio = bounded_exp(given.log_ratio, clamp)
    loss = jnp.where(dropped, 0.0, -given.advantages * ratio)
    stats = {"clip_ratio": indicator(dropped, mask), "approx_kl": approx_kl(given)}
    return TokenLoss(loss, stats)


def _dropped(
    given: Inputs, low: jax.Array, high: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
    return {
        "clip_ratio": indicator(low | high, mask),
        "clip_ratio_low": indicator(low, mask),
        "clip_ratio_high": indicator(high, mask),
        "approx_kl": approx_kl(given),
    }
