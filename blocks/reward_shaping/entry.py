"""The door every reward shaping shares: shapes checked, rewards in float32."""

from __future__ import annotations

import jax

from ..checks import rank, same_shape
from ..masking import masked
from ..types import RewardInfo


def enter(block: str, rewards: jax.Array, info: RewardInfo) -> tuple[jax.Array, jax.Array]:
    """The rewards in float32, 0 where invalid, and the validity.

    Args:
        block: the block's name, for errors.
        rewards: `[P, G]` one reward a completion.
        info: what is known of the completions; those `[P, G]` of the same shape.

    Returns:
        `(rewards [P, G] float32, valid [P, G] bool)`.

    Raises:
        ZootomyError: if `rewards` is not `[P, G]`, or an entry of `info` of another shape.
    """
    rank(block, "rewards", rewards, "P, G")
    same_shape(
        block,
        rewards=rewards,
        valid=info.valid,
        lengths=info.lengths,
        truncated=info.truncated,
    )
    return masked(rewards, info.valid), info.valid > 0
