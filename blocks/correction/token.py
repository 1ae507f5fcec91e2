"""Corrections that weigh each token by its own drift."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import at_least, in_order
from ..masking import masked
from .inputs import drift, inside, log_drift, result, row_mean


@register(
    "correction", "tis", paper="https://fengyao.notion.site/off-policy-rl", needs=("rollout_logp",)
)
def tis(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    high: float = 2.0,
    low: float = 0.0,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """Truncated importance sampling: the drift as a weight, with a cap.

        ρ = exp(clip(logπ_old − logπ_rollout, ±clamp)),   w = clip(ρ, low, high)

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        high: the cap.
        low: the floor (OpenRLHF, TRL; others 0).
        clamp: bound on log ρ before exp (TRL, OpenRLHF none).

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool,
        every action.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are negative or out of order.

    Source: Yao et al. 2025, https://fengyao.notion.site/off-policy-rl.

    >>> old, rollout = jnp.array([[-1.0, -1.0]]), jnp.array([[-1.0, -3.0]])
    >>> tis(old, rollout, jnp.ones((1, 2)))[0].tolist()  # ρ is 1 and exp(2) = 7.39
    [[1.0, 2.0]]
    """
    at_least("tis", "low", low, 0.0)
    in_order("tis", ("low", "high"), low, high)
    rho = drift("tis", log_drift("tis", old_logp, rollout_logp, mask), clamp)
    return result(jnp.clip(rho, low, high), mask > 0, mask)


@register("correction", "icepop", paper="arXiv:2510.18855", needs=("rollout_logp",))
def icepop(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    low: float = 0.5,
    high: float = 5.0,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """The drift as a weight inside a window; a token outside teaches nothing.

        ρ = exp(clip(logπ_old − logπ_rollout, ±clamp)),   w = ρ where low ≤ ρ ≤ high, else 0

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        low: lower bound of the window, included.
        high: upper bound of the window, included.
        clamp: bound on log ρ before exp (TRL, OpenRLHF none).

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool,
        the actions inside the window.

    Raises:
        ZootomyError: if the shapes differ, or the bounds are negative or out of order.

    Source: IcePop, Every Step Evolves (Ring-1T), arXiv:2510.18855; window as published, 0.5 to 5.
    """
    at_least("icepop", "low", low, 0.0)
    in_order("icepop", ("low", "high"), low, high)
    rho = drift("icepop", log_drift("icepop", old_logp, rollout_logp, mask), clamp)
    return result(rho, inside(rho, low, high), mask)


# The peers' bound on probabilities, which keeps the divergence finite.
EDGE = 1e-6


@register("correction", "divergence_mask", needs=("rollout_logp",))
def divergence_mask(
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    mask: jax.Array,
    *,
    divergence: Literal["kl", "tv"] = "kl",
    level: Literal["token", "sequence"] = "token",
    high: float = 0.05,
    clamp: float = 20.0,
) -> tuple[jax.Array, jax.Array]:
    """The drift as a weight, where engine and trainer agree on the token's probability.

        p = π_rollout, q = π_old, both held in [1e-6, 1 − 1e-6]
        D = p log(p/q) + (1 − p) log((1 − p)/(1 − q)) (kl)   or   |p − q| (tv)
        w = ρ where D (token) or its mean over the sequence is ≤ high, else 0

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        divergence: D, on the two outcomes "this token" and "another".
        level: whether a token or its sequence is judged.
        high: the largest D that is kept.
        clamp: bound on log ρ before exp (OpenRLHF none).

    Returns:
        weights `[N, T]` float32 without a gradient, 0 where the mask is 0; kept `[N, T]` bool.

    Raises:
        ZootomyError: if the shapes differ, or `high` is negative.

    Source: OpenRLHF's binary-KL and TV gates; the divergences of DPPO, arXiv:2602.04879.
    """
    at_least("divergence_mask", "high", high, 0.0)
    log_rho = log_drift("divergence_mask", old_logp, rollout_logp, mask)
    p = jnp.clip(jnp.exp(masked(rollout_logp, mask)), EDGE, 1.0 - EDGE)
    q = jnp.clip(jnp.exp(masked(old_logp, mask)), EDGE, 1.0 - EDGE)
    if divergence == "kl":
        distance = p * jnp.log(p / q) + (1.0 - p) * jnp.log((1.0 - p) / (1.0 - q))
    else:
        distance = jnp.abs(p - q)
    distance = jax.lax.stop_gradient(distance)
    judged = row_mean(distance, mask) if level == "sequence" else distance
    return result(drift("divergence_mask", log_rho, clamp), judged <= high, mask)
