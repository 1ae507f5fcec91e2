"""Corrections that judge or weigh a sequence as a whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import at_least, in_order
from .inputs import (
    Reduce,
    Weight,
    drift,
    inside,
    log_drift,
    result,
    row_mean,
    row_statistic,
    weights_of,
)


@register(
    "correction",
    "seq_mask_tis",
    paper="https://richardli.xyz/rl-collapse",
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

    Source: the geometric-mean mask of Liu et al. 2025, https://richardli.xyz/rl-collapse, with
    token weights, as OpenRLHF's "seq-mask-tis".
    """
    at_least("seq_mask_tis", "low", low, 0.0)
    in_order("seq_mask_tis", ("low", "high"), low, high)
    log_rho = log_drift("seq_mask_tis", old_logp, rollout_logp, mask)
    geometric = drift("seq_mask_tis", row_mean(log_rho, mask), clamp)
    weights = drift("seq_mask_tis", log_rho, clamp)
    if token_high is not None:
        weights = jnp.minimum(weights, token_high)
    return result(weights, inside(geometric, low, high), mask)


@register(
    "correction",
    "sequence_tis",
    aliases=("seq_tis",),
    paper="https://richardli.xyz/rl-collapse",
    needs=("rollout_logp",),
)
def sequence_tis(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    reduce: Reduce = "sum",
    high: float = 2.0,
    low: float = 0.0,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """The drift of the whole sequence as one weight for all of its tokens, with a cap.

        w = clip(exp(clip(Σ_t log ρ_t, ±clamp)), low, high)   or, with the mean in place of Σ

    The product ("sum") is the true ratio of the two policies and grows or collapses with the
    length; the geometric mean ("mean") does not, and is biased.

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        reduce: "sum" (product of ratios) or "mean" (their geometric mean).
        high: the cap.
        low: the floor (TRL; others 0).
        clamp: bound on the sum or mean before exp (TRL none).

    Returns:
        weights `[N, T]` float32 without a gradient, equal along a row, 0 where the mask is 0;
        kept `[N, T]` bool, every action.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are negative or out of order.

    Source: Liu et al. 2025, https://richardli.xyz/rl-collapse.
    """
    at_least("sequence_tis", "low", low, 0.0)
    in_order("sequence_tis", ("low", "high"), low, high)
    log_rho = log_drift("sequence_tis", old_logp, rollout_logp, mask)
    weight = drift("sequence_tis", row_statistic(log_rho, mask, reduce), clamp)
    weight = jnp.broadcast_to(jnp.clip(weight, low, high), mask.shape)
    return result(weight, mask > 0, mask)


@register("correction", "mis", paper="https://richardli.xyz/rl-collapse", needs=("rollout_logp",))
def mis(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    reduce: Reduce = "mean",
    low: float | None = 0.99,
    high: float | None = 1.01,
    weight: Weight = "one",
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """Keep a sequence whose ratio lies in a window, drop the others whole.

        g = exp(clip(mean or Σ of log ρ_t, ±clamp)),   kept where low ≤ g ≤ high
        w = 1 ("one"), ρ_t ("token") or g ("sequence")

    SkyRL masks by the geometric mean or the product and weighs nothing ("one"); verl's and
    TRL's sequence form of IcePop takes the product and weighs by it (`reduce="sum"`,
    `weight="sequence"`); OpenRLHF keeps token weights (`weight="token"`).

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        reduce: "mean" (geometric mean) or "sum" (product).
        low: lower bound of g, included; None for none.
        high: upper bound of g, included; None for none.
        weight: what a kept token weighs.
        clamp: bound on the mean or sum, and on log ρ, before exp (TRL, OpenRLHF none).

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool,
        the actions of the kept sequences.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are out of order.

    Source: masked importance sampling, Liu et al. 2025, https://richardli.xyz/rl-collapse.
    """
    in_order("mis", ("low", "high"), low, high)
    log_rho = log_drift("mis", old_logp, rollout_logp, mask)
    ratio = drift("mis", row_statistic(log_rho, mask, reduce), clamp)
    weights = weights_of("mis", weight, log_rho, mask, reduce, clamp)
    return result(weights, inside(ratio, low, high), mask)
