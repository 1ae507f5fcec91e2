"""The clipped losses of PPO."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, at_least
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import Inputs, clean, clip_stats, indicator


@register("policy_loss", "ppo_clip", paper="arXiv:1707.06347")
def ppo_clip(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clamp: float = 20.0,
) -> TokenLoss:
    """PPO's clipped surrogate: no reward for leaving [1 − clip_low, 1 + clip_high].

        r = exp(clip(log r, ±clamp)),   loss = −min(r A, clip(r, 1 − lo, 1 + hi) A)

    For A < 0 the loss has no upper bound; verl always bounds it (`dual_clip`). TRL and AReaL
    do not clamp the log-ratio (`clamp=inf`).

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo.
        clip_high: hi; DAPO 0.28.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio`, `clip_ratio_low`,
        `clip_ratio_high` (1 where the clip stops the gradient), `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative or `clamp` is not positive.

    Source: PPO, arXiv:1707.06347, equation 7; two bounds: DAPO, arXiv:2503.14476.
    """
    given = clean("ppo_clip", log_ratio, advantages, logp, old_logp, mask)
    ratio, loss = clipped_surrogate("ppo_clip", given, clip_low, clip_high, clamp)
    return TokenLoss(loss, clip_stats(given, ratio, 1.0 - clip_low, 1.0 + clip_high, mask))


@register("policy_loss", "dual_clip", paper="arXiv:1912.09729")
def dual_clip(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float = 3.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """PPO's clipped surrogate, bounded for negative advantages too.

        l = −min(r A, clip(r, 1 − lo, 1 + hi) A),   loss = min(l, −c A) where A < 0, else l

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo.
        clip_high: hi.
        clip_dual: c > 1, the largest ratio that counts where A < 0.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; the statistics of `ppo_clip`, and `clip_ratio_dual`: 1
        where c binds.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative, `clip_dual` is not above 1 or
            `clamp` is not positive.

    Source: arXiv:1912.09729, equation 5.
    """
    above("dual_clip", "clip_dual", clip_dual, 1.0)
    given = clean("dual_clip", log_ratio, advantages, logp, old_logp, mask)
    ratio, loss = clipped_surrogate("dual_clip", given, clip_low, clip_high, clamp)
    negative = given.advantages < 0
    bound = -clip_dual * given.advantages
    stats = clip_stats(given, ratio, 1.0 - clip_low, 1.0 + clip_high, mask)
    stats["clip_ratio_dual"] = indicator(negative & (loss > bound), mask)
    return TokenLoss(jnp.where(negative, jnp.minimum(loss, bound), loss), stats)


def clipped_surrogate(
    block: str, given: Inputs, clip_low: float, clip_high: float, clamp: float
) -> tuple[jax.Array, jax.Array]:
    """The ratio and −min(r A, clip(r) A), both `[N, T]`."""
    at_least(block, "clip_low", clip_low, 0.0)
    at_least(block, "clip_high", clip_high, 0.0)
    above(block, "clamp", clamp)
    ratio = bounded_exp(given.log_ratio, clamp)
    near = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return ratio, -jnp.minimum(ratio * given.advantages, near * given.advantages)
