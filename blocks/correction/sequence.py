"""Corrections that judge or weigh a sequence as a whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import at_least, in_order
from .inputs import drift, inside, log_drift, result, row_mean


@register(
    "correction",
    "seq_mask_tis",
    paper="https://yingru.notion.site/mismatch",
    needs=("rollout_logp",),
)
def seq_mask_tis(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    low: float = 0.99,
    high: float = 1.01,
    token_high: float | None = 2.0,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """Keep a sequence whose mean drift is near 1, then weigh its tokens.

        g = exp(1/|y| Σ_t log ρ_t),   w_t = min(ρ_t, token_high) where low ≤ g ≤ high, else 0

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        low: lower bound of the sequence's geometric mean, included.
        high: upper bound of the sequence's geometric mean, included.
        token_high: cap of a token's weight; None for no cap (OpenRLHF).
        clamp: bound on log ρ, and on its mean, before exp.

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool,
        the actions of the kept sequences.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are negative or out of order.

    Source: the geometric-mean mask of Liu et al. 2025 with token weights, as OpenRLHF's
    "seq-mask-tis".
    """
    at_least("seq_mask_tis", "low", low, 0.0)
    in_order("seq_mask_tis", ("low", "high"), low, high)
    log_rho = log_drift("seq_mask_tis", old_logp, rollout_logp, mask)
    geometric = drift("seq_mask_tis", row_mean(log_rho, mask), clamp)
    weights = drift("seq_mask_tis", log_rho, clamp)
    if token_high is not None:
        weights = jnp.minimum(weights, token_high)
    return result(weights, inside(geometric, low, high), mask)
