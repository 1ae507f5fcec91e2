"""Corrections that drop what has drifted too far, by a statistic of the drift."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import at_least, in_order
from .inputs import Weight, drift, inside, log_drift, result, row_statistic, weights_of

Level = Literal["token", "sequence_mean", "sequence_sum", "sequence_max"]


@register("correction", "rejection", needs=("rollout_logp",))
def rejection(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    statistic: Literal["k1", "k2", "k3", "ratio"] = "k3",
    level: Level = "token",
    low: float | None = None,
    high: float | None = 0.1,
    reverse: bool = False,
    weight: Weight = "one",
    weight_low: float = 0.0,
    weight_high: float | None = None,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """Keep a token, or a sequence, whose statistic of the drift lies between two bounds.

        q = clip(log ρ, ±clamp);   k1 = −q,   k2 = q²/2,   k3 = exp(q) − 1 − q
        statistic of a sequence: mean, sum or maximum of its tokens'
        "ratio": ρ, and for a sequence exp of the mean, sum or maximum of log ρ
        w = 1 ("one"), ρ_t ("token") or the sequence's geometric mean ("sequence"), where kept

    Written for tokens sampled by the engine, so that k1 and k3 estimate KL(π_rollout ‖ π_old),
    as in verl, which gives the bounds of k1 as ratios (take their logarithms). AReaL's k1 and
    k3 have the other sign of q (`reverse=True`), and its weights are ρ_t, or the geometric
    mean with a sequence's "ratio".

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        statistic: which statistic.
        level: whether tokens are judged, or sequences by mean, sum or maximum.
        low: lower bound, included; None for none.
        high: upper bound, included; None for none.
        reverse: whether k1 and k3 take −q in place of q.
        weight: what a kept token weighs.
        weight_low: floor of the weights.
        weight_high: cap of the weights; None for none.
        clamp: bound on log ρ (AReaL none).

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool.

    Raises:
        ZootomyError: if the shapes differ, no bound is given, or bounds are out of order.

    Source: Liu et al. 2025, https://richardli.xyz/rl-collapse; the options of verl and AReaL.
    """
    if low is None and high is None:
        raise ZootomyError("rejection: low and high are both None, so nothing is rejected.")
    in_order("rejection", ("low", "high"), low, high)
    at_least("rejection", "weight_low", weight_low, 0.0)
    in_order("rejection", ("weight_low", "weight_high"), weight_low, weight_high)
    log_rho = log_drift("rejection", old_logp, rollout_logp, mask)
    judged = _statistic(log_rho, mask, statistic, level, reverse, clamp)
    weights = weights_of("rejection", weight, log_rho, mask, "mean", clamp)
    weights = jnp.clip(weights, weight_low, weight_high)
    return result(weights, inside(judged, low, high), mask)


@register("correction", "veto", aliases=("outlier",), needs=("rollout_logp",))
def veto(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    low: float | None = 1e-4,
    high: float | None = None,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """One impossible token condemns its sequence.

        kept where low ≤ ρ_t ≤ high for every action of the sequence;   w = 1 where kept

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        low: lower bound of a token's ratio, included; None for none.
        high: upper bound of a token's ratio, included; None for none (SkyRL 100).
        clamp: bound on log ρ before exp; a bound beyond exp(±clamp) never vetoes.

    Returns:
        weights `[N, T]` float32, 1 where kept; kept `[N, T]` bool.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are out of order.

    Source: Liu et al. 2025, https://richardli.xyz/rl-collapse; SkyRL's outlier mask.
    """
    in_order("veto", ("low", "high"), low, high)
    rho = drift("veto", log_drift("veto", old_logp, rollout_logp, mask), clamp)
    bad = (mask > 0) & ~inside(rho, low, high)
    kept = ~bad.any(axis=1, keepdims=True)
    return result(jnp.ones(mask.shape, jnp.float32), kept, mask)


def _statistic(
    log_rho: jax.Array, mask: jax.Array, statistic: str, level: Level, reverse: bool, clamp: float
) -> jax.Array:
    """The statistic of each token `[N, T]`, or of each sequence `[N, 1]`."""
    q = jnp.clip(log_rho, -clamp, clamp)
    reduce = None if level == "token" else level.removeprefix("sequence_")
    if statistic == "ratio":
        x = q if reduce is None else row_statistic(q, mask, reduce)  # type: ignore[arg-type]
        return drift("rejection", x, clamp)
    toward = -q if reverse else q
    x = {
        "k1": -toward,
        "k2": 0.5 * jnp.square(q),
        "k3": jnp.exp(toward) - 1.0 - toward,
    }[statistic]
    return x if reduce is None else row_statistic(x, mask, reduce)  # type: ignore[arg-type]
