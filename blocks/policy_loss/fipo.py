"""Advantages weighted by how much the policy moves on the tokens that follow."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ...registry import register
from ..advantage.scan import discounted_sum
from ..checks import above
from ..masking import masked
from ..types import TokenLoss
from .inputs import clean, clip_stats, indicator
from .ppo import clipped_surrogate


@register("policy_loss", "fipo", paper="arXiv:2603.19835")
def fipo(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    clip_dual: float = 10.0,
    half_life: float = 32.0,
    influence_clip: float = 0.2,
    influence_high_only: bool = True,
    safety: float = 4.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """A token counts more if the policy is reinforcing what came after it, less if not.

        F_t = Σ_{k ≥ t} γ^{k−t} log r_k,   γ = 2^(−1/half_life), over actions with r_k ≤ c
        f_t = sg(clip(exp F_t, 1 − ε, 1 + ε)),   A' = f A,   then `dual_clip` on A'

    With `influence_high_only` the lower bound is 1. Where A < 0 and r > `safety`, f is held in
    [1 − ε, 1]. γ counts actions, so that observation tokens cost nothing; the published code
    counts positions.

    Args:
        log_ratio: `[N, T]` log importance ratios of tokens.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo of the clip.
        clip_high: hi of the clip.
        clip_dual: c, the largest ratio that counts where A < 0, and in F.
        half_life: after how many actions the future counts half.
        influence_clip: ε.
        influence_high_only: whether f is at least 1.
        safety: the ratio from which on a token of A < 0 is not punished more.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; the statistics of `ppo_clip`, `clip_ratio_dual`, and
        `influence` (f).

    Raises:
        ZootomyError: if the shapes differ, a clip is negative, `clip_dual` is not above 1, or
            another number is not positive.

    Source: FIPO, arXiv:2603.19835.
    """
    above("fipo", "clip_dual", clip_dual, 1.0)
    for name, value in (
        ("half_life", half_life),
        ("influence_clip", influence_clip),
        ("safety", safety),
    ):
        above("fipo", name, value)
    given = clean("fipo", log_ratio, advantages, logp, old_logp, mask)
    d = jax.lax.stop_gradient(given.log_ratio)
    moved = jnp.where(d > math.log(clip_dual), 0.0, d)
    future = discounted_sum(moved, mask > 0, 2.0 ** (-1.0 / half_life))
    low = 1.0 if influence_high_only else 1.0 - influence_clip
    influence = jnp.exp(jnp.clip(future, -clamp, clamp))
    influence = jnp.clip(influence, low, 1.0 + influence_clip)
    unsafe = (given.advantages < 0) & (d > math.log(safety))
    held = jnp.clip(influence, 1.0 - influence_clip, 1.0)
    influence = masked(jnp.where(unsafe, held, influence), mask)

    given = given._replace(advantages=influence * given.advantages)
    ratio, loss = clipped_surrogate("fipo", given, clip_low, clip_high, clamp)
    negative, bound = given.advantages < 0, -clip_dual * given.advantages
    stats = clip_stats(given, ratio, 1.0 - clip_low, 1.0 + clip_high, mask)
    stats["clip_ratio_dual"] = indicator(negative & (loss > bound), mask)
    stats["influence"] = influence
    return TokenLoss(jnp.where(negative, jnp.minimum(loss, bound), loss), stats)
