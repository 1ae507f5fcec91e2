"""PPO's clip with another bound, or another weight for long sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above
from ..masking import count
from ..types import TokenLoss
from .inputs import clean, clip_stats, indicator
from .ppo import clipped_surrogate


@register("policy_loss", "delta_clip", paper="arXiv:2505.07291")
def delta_clip(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float = 4.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """PPO's clip with a cap on the ratio itself, which bounds the loss where A < 0.

        loss = −min(min(r, δ) A, clip(r, 1 − lo, 1 + hi) A)

    Where A < 0 it is `dual_clip` with c = δ: the two differ for A > 0 alone, and only if δ is
    below 1 + hi. TRL calls δ `delta` and does not clamp the log-ratio (`clamp=inf`).

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo.
        clip_high: hi.
        delta: δ, above 1 + hi in the paper.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; the statistics of `ppo_clip`, and `clip_ratio_delta`: 1
        where δ binds.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative, or `delta` or `clamp` is not
            positive.

    Source: INTELLECT-2, arXiv:2505.07291, section 3.4.
    """
    above("delta_clip", "delta", delta)
    given = clean("delta_clip", log_ratio, advantages, logp, old_logp, mask)
    ratio, _ = clipped_surrogate("delta_clip", given, clip_low, clip_high, clamp)
    near = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    capped = jnp.minimum(ratio, delta)
    loss = -jnp.minimum(capped * given.advantages, near * given.advantages)
    stats = clip_stats(given, ratio, 1.0 - clip_low, 1.0 + clip_high, mask)
    stats["clip_ratio_delta"] = indicator((ratio > delta) & (given.advantages < 0), mask)
    return TokenLoss(loss, stats)


@register("policy_loss", "luspo", paper="arXiv:2602.05261")
def luspo(
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
    """PPO's clip times the length, so that GSPO's mean over tokens does not favour short ones.

        loss_t = −|y| min(r A, clip(r, 1 − lo, 1 + hi) A)

    Made for the ratio `sequence` and the aggregation `sequence_mean_token_mean`, under which a
    sequence counts by the sum over its tokens. TRL leaves the length out and takes that sum in
    the aggregation: the same as `ppo_clip` with `sequence_mean_token_sum`.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo.
        clip_high: hi.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; the statistics of `ppo_clip`.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative or `clamp` is not positive.

    Source: LUSPO, arXiv:2602.05261.
    """
    given = clean("luspo", log_ratio, advantages, logp, old_logp, mask)
    ratio, loss = clipped_surrogate("luspo", given, clip_low, clip_high, clamp)
    stats = clip_stats(given, ratio, 1.0 - clip_low, 1.0 + clip_high, mask)
    return TokenLoss(loss * count(mask, axis=1)[:, None], stats)
