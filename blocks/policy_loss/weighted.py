"""Policy gradients −w A logπ, whose weight is a bounded ratio without a gradient of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, in_order
from ..masking import masked
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import approx_kl, clean, indicator


@register("policy_loss", "cispo", paper="arXiv:2506.13585")
def cispo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    low: float = 0.0,
    high: float = 5.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """The weight is clipped and not the update: every token keeps its gradient.

        loss = −sg(clip(r, low, high)) A logπ

    `low` and `high` bound the ratio itself: the paper's 1 − ε_low and 1 + ε_high, of which it
    only tunes the upper. verl: `low=1 − ε, high=1 + ε`; TRL: `high=epsilon_high`, no lower;
    SkyRL's default is [0, 5], as here.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        low: lower bound of the ratio.
        high: upper bound of the ratio.
        clamp: bound on the log-ratio before exp.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 where a bound binds) and
        `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, the bounds are out of order or `clamp` is not
            positive.

    Source: MiniMax-M1, arXiv:2506.13585, equation 4.
    """
    in_order("cispo", ("low", "high"), low, high)
    above("cispo", "clamp", clamp)
    given = clean("cispo", log_ratio, advantages, logp, old_logp, mask)
    ratio = jax.lax.stop_gradient(bounded_exp(given.log_ratio, clamp))
    weight = jnp.clip(ratio, low, high)
    stats = {"clip_ratio": indicator(ratio != weight, mask), "approx_kl": approx_kl(given)}
    return TokenLoss(-weight * given.advantages * given.logp, stats)


@register("policy_loss", "topr", paper="arXiv:2503.14286")
def topr(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    positive_low: float = 1.0,
    positive_high: float = 1.0,
    negative_low: float = 0.0,
    negative_high: float = 1.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """Good samples count fully, bad ones by a ratio tapered to at most 1.

        loss = −sg(clip(r, a⁺, b⁺)) A logπ  where A > 0
        loss = −sg(clip(r, a⁻, b⁻)) A logπ  elsewhere

    In the paper r is the ratio of whole sequences: take the ratio `sequence` with
    `reduce="sum"`.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        positive_low: a⁺.
        positive_high: b⁺; with a⁺ = b⁺ = 1 good samples have no ratio.
        negative_low: a⁻.
        negative_high: b⁻.
        clamp: bound on the log-ratio before exp.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 where a bound binds on A < 0)
        and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ or `clamp` is not positive.

    Source: Tapered Off-Policy REINFORCE, arXiv:2503.14286, equation 8.
    """
    above("topr", "clamp", clamp)
    given = clean("topr", log_ratio, advantages, logp, old_logp, mask)
    ratio = jax.lax.stop_gradient(bounded_exp(given.log_ratio, clamp))
    good = given.advantages > 0
    low = jnp.where(good, positive_low, negative_low)
    high = jnp.where(good, positive_high, negative_high)
    weight = jnp.clip(ratio, low, high)
    stats = {
        "clip_ratio": indicator((ratio != weight) & (given.advantages < 0), mask),
        "approx_kl": approx_kl(given),
    }
    return TokenLoss(-weight * given.advantages * given.logp, stats)


@register("policy_loss", "kimi", aliases=("dro",), paper="arXiv:2501.12599")
def kimi(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    tau: float = 0.1,
) -> TokenLoss:
    """The policy gradient with a squared pull back to the policy that the update started from.

        loss = −A logπ + τ/2 (log r)²

    The regression of DRO, per token, as Kimi k1.5 trains; both papers write it for a whole
    sequence (the ratio `sequence` with `reduce="sum"`). verl calls τ `dro_beta`.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`; not clamped.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        tau: τ, the strength of the pull.

    Returns:
        TokenLoss, `[N, T]` float32; statistic `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ or `tau` is not positive.

    Source: Kimi k1.5, arXiv:2501.12599, equation 3; DRO, arXiv:2405.19107.
    """
    above("kimi", "tau", tau)
    given = clean("kimi", log_ratio, advantages, logp, old_logp, mask)
    pull = 0.5 * tau * jnp.square(given.log_ratio)
    loss = masked(pull - given.advantages * given.logp, mask)
    return TokenLoss(loss, {"approx_kl": approx_kl(given)})
