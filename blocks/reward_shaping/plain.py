"""Shapings that look at one completion alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, in_order
from ..masking import masked
from ..types import RewardInfo
from .entry import enter


@register("reward_shaping", "identity", aliases=("none",))
def identity(rewards: jax.Array, info: RewardInfo) -> jax.Array:
    """The reward as it is.

        A_i = R_i

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used.

    Returns:
        `[P, G]` float32, in reward units; 0 on invalid completions.

    Source: Williams 1992, REINFORCE without a baseline.
    """
    return enter("identity", rewards, info)[0]


@register("reward_shaping", "clip", aliases=("reward_clip",))
def clip(
    rewards: jax.Array, info: RewardInfo, *, low: float = -10.0, high: float = 10.0
) -> jax.Array:
    """The reward held between two bounds, at its place in the list.

    OpenRLHF clips after the group baseline, TRL's RLOO before it and before the KL: here it is
    done where the block stands in the list.

        A_i = min(max(R_i, low), high)

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used.
        low: the least value, in reward units.
        high: the greatest value, in reward units.

    Returns:
        `[P, G]` float32, in reward units; 0 on invalid completions.

    Raises:
        ZootomyError: if `low` is not below `high`.

    Source: Ziegler et al. 2019, arXiv:1909.08593; bounds as in OpenRLHF.
    """
    in_order("clip", ("low", "high"), low, high)
    rewards, valid = enter("clip", rewards, info)
    return masked(jnp.clip(rewards, low, high), valid)


@register("reward_shaping", "scale", aliases=("temperature",))
def scale(rewards: jax.Array, info: RewardInfo, *, temperature: float = 1.0) -> jax.Array:
    """The reward over a temperature, as reward models are calibrated after their training.

        A_i = R_i / temperature

    Args:
        rewards: `[P, G]` one reward a completion.
        info: `valid` is used.
        temperature: the divisor; above 1 rewards count for less beside a KL.

    Returns:
        `[P, G]` float32; 0 on invalid completions.

    Raises:
        ZootomyError: if `temperature` is not positive.

    Source: Guo et al. 2017, On calibration of modern neural networks, arXiv:1706.04599.
    """
    above("scale", "temperature", temperature)
    return enter("scale", rewards, info)[0] / temperature
