"""Corrections that look at the policy itself, and the one that hands its part to the ratio."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import at_least, same_shape
from ..masking import masked
from ..quantile import masked_quantile
from .inputs import result, row_mean


@register("correction", "bypass", needs=("rollout_logp",))
def bypass(
    old_logp: jax.Array, rollout_logp: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """No weights: the engine's probabilities stand in for the old policy's.

        π_old := π_rollout,   w = 1

    The assembly passes the engine's log-probabilities as `old_logp` to the ratio and the policy
    loss, which saves the pass that would compute them; the ratio then corrects policy and
    engine at once.

    Args:
        old_logp: `[N, T]`, not used.
        rollout_logp: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.

    Returns:
        weights `[N, T]` float32, 1 on actions; kept `[N, T]` bool, every action.

    Source: the bypass mode of verl; the usual choice of asynchronous trainers.
    """
    return result(jnp.ones(mask.shape, jnp.float32), mask > 0, mask)


@register(
    "correction",
    "off_policy_sequence_mask",
    paper="arXiv:2512.02556",
    needs=("rollout_logp",),
)
def off_policy_sequence_mask(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    logp: jax.Array,
    advantages: jax.Array,
    threshold: float = 0.5,
) -> tuple[jax.Array, jax.Array]:
    """Drop the bad sequences that the policy would hardly sample any more.

        kl = 1/|y| Σ_t (logπ_rollout − sg(logπ))
        kept where mean A ≥ 0 or kl ≤ threshold;   w = 1 where kept

    Args:
        old_logp: `[N, T]`, not used.
        rollout_logp: `[N, T]` log-probabilities that the engine sampled with, in nats.
        mask: `[N, T]` 1 on actions.
        logp: `[N, T]` those under the policy now.
        advantages: `[N, T]` advantages; a sequence is judged by their mean.
        threshold: the largest kl of a bad sequence, in nats a token.

    Returns:
        weights `[N, T]` float32, 1 where kept; kept `[N, T]` bool.

    Raises:
        ZootomyError: if the shapes differ.

    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1.
    """
    block = "off_policy_sequence_mask"
    same_shape(block, rollout_logp=rollout_logp, mask=mask, logp=logp, advantages=advantages)
    moved = masked(rollout_logp, mask) - masked(jax.lax.stop_gradient(logp), mask)
    good = row_mean(masked(advantages, mask), mask) >= 0
    kept = good | (row_mean(moved, mask) <= threshold)
    return result(jnp.ones(mask.shape, jnp.float32), kept, mask)


@register("correction", "top_entropy", paper="arXiv:2506.01939", needs=("entropy", "whole_batch"))
def top_entropy(
    old_logp: jax.Array,
    rollout_logp: jax.Array | None,
    mask: jax.Array,
    *,
    entropy: jax.Array,
    fraction: float = 0.2,
) -> tuple[jax.Array, jax.Array]:
    """Only the undecided tokens teach: those of the highest entropy in the mini-batch.

        kept where H_t ≥ quantile(1 − fraction) of the actions' entropies;   w = 1 where kept

    The quantile interpolates linearly and is taken over actions alone: padding counted as
    entropy 0 would lower it. Couples all rows of the mini-batch.

    Args:
        old_logp: `[N, T]`, not used.
        rollout_logp: `[N, T]` or None, not used.
        mask: `[N, T]` 1 on actions.
        entropy: `[N, T]` entropy of the policy at each token, in nats.
        fraction: the share of tokens that teach; 1 for all.

    Returns:
        weights `[N, T]` float32, 1 where kept; kept `[N, T]` bool.

    Raises:
        ZootomyError: if the shapes differ, or `fraction` is not in (0, 1].

    Source: Wang et al. 2025, Beyond the 80/20 rule, arXiv:2506.01939.
    """
    at_least("top_entropy", "fraction", fraction, 0.0)
    if not 0 < fraction <= 1:
        raise ZootomyError(f"top_entropy: fraction must be in (0, 1], got {fraction!r}.")
    same_shape("top_entropy", entropy=entropy, mask=mask)
    entropy = jax.lax.stop_gradient(masked(entropy, mask))
    kept = entropy >= masked_quantile(entropy, mask, 1.0 - fraction)
    return result(jnp.ones(mask.shape, jnp.float32), kept, mask)
