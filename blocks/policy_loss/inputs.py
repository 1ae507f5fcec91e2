"""What every policy loss does with its inputs first, and the statistics they share."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..checks import same_shape
from ..masking import masked


class Inputs(NamedTuple):
    """A policy loss's arrays in float32, 0 where masked; advantages carry no gradient."""

    log_ratio: jax.Array
    advantages: jax.Array
    logp: jax.Array
    old_logp: jax.Array


def clean(
    block: str,
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
) -> Inputs:
    """The inputs in float32 with every masked entry 0.

    Args:
        block: the block's name, for the message.
        log_ratio: `[N, T]` log importance ratios.
        advantages: `[N, T]` advantages.
        logp: `[N, T]` log-probabilities under the policy.
        old_logp: `[N, T]` those before the update.
        mask: `[N, T]` 1 on actions.

    Raises:
        ZootomyError: if the shapes differ.
    """
    same_shape(
        block,
        log_ratio=log_ratio,
        advantages=advantages,
        logp=logp,
        old_logp=old_logp,
        mask=mask,
    )
    return Inputs(
        masked(log_ratio, mask),
        jax.lax.stop_gradient(masked(advantages, mask)),
        masked(logp, mask),
        jax.lax.stop_gradient(masked(old_logp, mask)),
    )


def indicator(condition: jax.Array, mask: jax.Array) -> jax.Array:
    """1 where the condition holds on an action, else 0; float32, to be averaged."""
    return masked(condition, mask)


def approx_kl(given: Inputs) -> jax.Array:
    """logπ_old − logπ per token: its mean estimates KL(π_old ‖ π), how far the update has gone."""
    return jax.lax.stop_gradient(given.old_logp - given.logp)


def clip_stats(
    given: Inputs,
    ratio: jax.Array,
    low: jax.Array | float,
    high: jax.Array | float,
    mask: jax.Array,
) -> dict[str, jax.Array]:
    """Where a clip to [low, high] stops the gradient: by side, and in all.

    Args:
        given: the cleaned inputs.
        ratio: `[N, T]` importance ratios.
        low: lower bound of the ratio; binds where A < 0.
        high: upper bound of the ratio; binds where A > 0.
        mask: `[N, T]` 1 on actions.

    Returns:
        `clip_ratio`, `clip_ratio_low`, `clip_ratio_high`, `approx_kl`, each `[N, T]` float32.
    """
    at_low = indicator((ratio < low) & (given.advantages < 0), mask)
    at_high = indicator((ratio > high) & (given.advantages > 0), mask)
    return {
        "clip_ratio": jnp.maximum(at_low, at_high),
        "clip_ratio_low": at_low,
        "clip_ratio_high": at_high,
        "approx_kl": approx_kl(given),
    }
