"""The geometric mean of a sequence's clipped ratios."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, at_least
from ..masking import count, masked, masked_sum
from ..types import TokenLoss
from .inputs import approx_kl, clean, indicator


@register("policy_loss", "gmpo", paper="arXiv:2507.20673")
def gmpo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    clamp: float = 20.0,
) -> TokenLoss:
    """The geometric mean of a sequence's ratios, each clipped first on its pessimistic side.

        e_t = s min(s d_t, s clip(d_t, −lo, hi)),   d = log r, s = sign A
        loss_t = −A_t exp(1/|y| Σ_k e_k)

    The clips are bounds on the *log*-ratio: 0.4 stands for [e^−0.4, e^0.4]. Takes the ratio
    `token`; the paper aggregates by `sequence_mean_token_mean`, which verl and TRL force.

    Args:
        log_ratio: `[N, T]` log importance ratios of tokens.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo, in nats.
        clip_high: hi, in nats.
        clamp: bound on the mean before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 where a token's clip stops its
        gradient) and `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative or `clamp` is not positive.

    Source: GMPO, arXiv:2507.20673, equation 4.
    """
    at_least("gmpo", "clip_low", clip_low, 0.0)
    at_least("gmpo", "clip_high", clip_high, 0.0)
    above("gmpo", "clamp", clamp)
    given = clean("gmpo", log_ratio, advantages, logp, old_logp, mask)
    d, sign = given.log_ratio, jnp.sign(given.advantages)
    near = jnp.clip(d, -clip_low, clip_high)
    # no sign, no part: a token of advantage 0 neither pushes nor is pushed
    effective = sign * jnp.minimum(sign * d, sign * near)
    length = jnp.maximum(count(mask, axis=1), 1.0)
    mean = masked_sum(effective, mask, axis=1) / length
    ratio = masked(
        jnp.broadcast_to(jnp.exp(jnp.clip(mean, -clamp, clamp))[:, None], mask.shape), mask
    )
    stats = {
        "clip_ratio": indicator(sign * near < sign * d, mask),
        "approx_kl": approx_kl(given),
    }
    return TokenLoss(-given.advantages * ratio, stats)
