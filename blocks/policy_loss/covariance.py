"""Losses that hold back the few tokens whose covariance with the advantage costs entropy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, at_least, in_order
from ..masking import count, masked, masked_mean
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import Inputs, approx_kl, clean, indicator
from .ppo import clipped_surrogate


@register("policy_loss", "clip_cov", paper="arXiv:2505.22617", needs=("whole_batch",))
def clip_cov(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    fraction: float = 0.0002,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """PPO's clip without the gradient of a few tokens of high covariance.

        cov_t = (A_t − mean A) (logπ_t − mean logπ)
        loss = −min(r A, clip(r) A), and 0 on max(⌊fraction · n⌋, 1) of the tokens that no clip
        stops and that have cov_low < cov < cov_high

    Where more tokens qualify than may be taken, the paper and the peers draw them at random;
    here they are those of the highest covariance, so that the block stays a function of its
    inputs. Couples all rows of the mini-batch.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        clip_low: lo.
        clip_high: hi.
        fraction: share of the n actions that may be taken out.
        cov_low: lower bound of the covariance, not included.
        cov_high: upper bound of the covariance, not included.
        clamp: bound on the log-ratio before exp; no gradient beyond it.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 on the tokens taken out) and
        `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, a clip is negative, the bounds are out of order, or
            `fraction` or `clamp` is not positive.

    Source: Cui et al. 2025, arXiv:2505.22617, equations 10 and 11.
    """
    above("clip_cov", "fraction", fraction)
    in_order("clip_cov", ("cov_low", "cov_high"), cov_low, cov_high)
    given = clean("clip_cov", log_ratio, advantages, logp, old_logp, mask)
    ratio, loss = clipped_surrogate("clip_cov", given, clip_low, clip_high, clamp)
    near = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    stopped = near * given.advantages < ratio * given.advantages
    cov = _covariance(given, mask)
    candidates = (mask > 0) & ~stopped & (cov > cov_low) & (cov < cov_high)
    taken = candidates & (_rank(jnp.where(candidates, cov, -jnp.inf)) < _budget(fraction, mask))
    stats = {"clip_ratio": indicator(taken, mask), "approx_kl": approx_kl(given)}
    return TokenLoss(jnp.where(taken, 0.0, loss), stats)


@register("policy_loss", "kl_cov", paper="arXiv:2505.22617", needs=("whole_batch",))
def kl_cov(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    fraction: float = 0.0002,
    coef: float = 1.0,
    clamp: float = 20.0,
) -> TokenLoss:
    """The policy gradient with a pull on the tokens of the highest covariance.

        cov_t = (A_t − mean A) (logπ_t − mean logπ)
        loss = −r A, and + coef |log r| on the max(⌊fraction · n⌋, 1) tokens of highest cov

    verl does not clamp the log-ratio (`clamp=inf`). Couples all rows of the mini-batch.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        fraction: share of the n actions that are pulled back.
        coef: the strength of the pull.
        clamp: bound on the log-ratio before exp; the pull is not clamped.

    Returns:
        TokenLoss, `[N, T]` float32; statistics `clip_ratio` (1 on the tokens pulled back) and
        `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ, `coef` is negative, or `fraction` or `clamp` is not
            positive.

    Source: Cui et al. 2025, arXiv:2505.22617, equations 12 and 13.
    """
    above("kl_cov", "fraction", fraction)
    at_least("kl_cov", "coef", coef, 0.0)
    above("kl_cov", "clamp", clamp)
    given = clean("kl_cov", log_ratio, advantages, logp, old_logp, mask)
    cov = jnp.where(mask > 0, _covariance(given, mask), -jnp.inf)
    pulled = (mask > 0) & (_rank(cov) < _budget(fraction, mask))
    loss = -given.advantages * bounded_exp(given.log_ratio, clamp)
    loss = loss + jnp.where(pulled, coef * jnp.abs(given.log_ratio), 0.0)
    stats = {"clip_ratio": indicator(pulled, mask), "approx_kl": approx_kl(given)}
    return TokenLoss(loss, stats)


def _covariance(given: Inputs, mask: jax.Array) -> jax.Array:
    """Each token's part in the covariance of A and logπ, without a gradient; 0 where masked."""
    logp = jax.lax.stop_gradient(given.logp)
    a = given.advantages - masked_mean(given.advantages, mask)
    return masked(a * (logp - masked_mean(logp, mask)), mask)


def _budget(fraction: float, mask: jax.Array) -> jax.Array:
    """max(⌊fraction · n⌋, 1); the small number undoes float32's rounding of whole results."""
    return jnp.maximum(jnp.floor(fraction * count(mask) + 1e-4), 1.0)


def _rank(x: jax.Array) -> jax.Array:
    """The place of each entry, 0 for the largest of all."""
    order = jnp.argsort(-x.reshape(-1))
    places = jnp.zeros(order.shape, jnp.int32).at[order].set(jnp.arange(order.size))
    return places.reshape(x.shape)
