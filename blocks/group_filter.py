"""Which prompts still teach: one decision a group, from its rewards before shaping."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..registry import ZootomyError, register
from .checks import in_order, rank, same_shape
from .masking import masked
from .statistics import Spread, spread


def _spread(block: str, rewards: jax.Array, valid: jax.Array) -> Spread:
    """Mean and deviation (of the population) of each group's valid rewards, `[P, 1]`."""
    rank(block, "rewards", rewards, "P, G")
    same_shape(block, rewards=rewards, valid=valid)
    return spread(rewards, valid, 1, ddof=0)


@register(
    "group_filter", "zero_std", aliases=("dapo",), paper="arXiv:2503.14476", needs=("groups",)
)
def zero_std(rewards: jax.Array, valid: jax.Array, *, tol: float = 0.0) -> jax.Array:
    """Keeps the groups whose valid rewards differ.

    A group with fewer than two valid members is dropped; verl keeps groups of one.

        keep_p = σ_p > tol,   σ_p of the population (ddof 0)

    Args:
        rewards: `[P, G]` one reward a completion, before shaping.
        valid: `[P, G]` bool; invalid members are no part of σ.
        tol: the deviation up to which rewards count as equal, in reward units.

    Returns:
        `[P]` bool, true on the groups that are kept.

    Source: Yu et al. 2025, DAPO's dynamic sampling, arXiv:2503.14476.
    """
    return _spread("zero_std", rewards, valid).std[:, 0] > tol


@register("group_filter", "score_range", paper="arXiv:2503.14476", needs=("groups",))
def score_range(
    rewards: jax.Array,
    valid: jax.Array,
    *,
    low: float = 0.0,
    high: float = 1.0,
    margin: float = 0.0,
) -> jax.Array:
    """Keeps the groups whose mean reward lies strictly between two bounds.

    OpenRLHF keeps a `margin` of 1e-6 from both bounds.

        keep_p = low + margin < μ_p < high − margin

    Args:
        rewards: `[P, G]` one reward a completion, before shaping.
        valid: `[P, G]` bool; invalid members are no part of μ. A group without any is dropped.
        low: lower bound, in reward units.
        high: upper bound, in reward units.
        margin: distance to keep from both bounds, in reward units.

    Returns:
        `[P]` bool, true on the groups that are kept.

    Raises:
        ZootomyError: if no mean can lie between the bounds.

    Source: Yu et al. 2025, DAPO's 0 < accuracy < 1, arXiv:2503.14476; Cui et al. 2025, PRIME,
    arXiv:2502.01456.
    """
    if low + margin >= high - margin:
        raise ZootomyError(
            f"score_range keeps nothing: low + margin = {low + margin} is not below "
            f"high - margin = {high - margin}."
        )
    group = _spread("score_range", rewards, valid)
    mean = group.mean[:, 0]
    return (group.count[:, 0] > 0) & (mean > low + margin) & (mean < high - margin)


@register("group_filter", "pass_rate", needs=("groups",))
def pass_rate(
    rewards: jax.Array,
    valid: jax.Array,
    *,
    threshold: float = 0.5,
    low: float = 0.2,
    high: float = 0.8,
) -> jax.Array:
    """Keeps the groups in which neither too few nor too many completions pass.

        keep_p = low ≤ share of valid completions with R ≥ threshold ≤ high

    Args:
        rewards: `[P, G]` one reward a completion, before shaping.
        valid: `[P, G]` bool; invalid members are no part of the share. A group without any is
            dropped.
        threshold: the reward from which on a completion passes, in reward units.
        low: the least share that is kept.
        high: the greatest share that is kept.

    Returns:
        `[P]` bool, true on the groups that are kept.

    Raises:
        ZootomyError: for a window upside down.

    Source: Bae et al. 2025, Online difficulty filtering, arXiv:2504.03380.
    """
    in_order("pass_rate", ("low", "high"), low, high)
    passed = (masked(rewards, valid) >= threshold).astype(jnp.float32)
    group = _spread("pass_rate", passed, valid)
    # A share of 1/5 in float32 is not Python's 0.2; no share of a group is this close to another.
    share = group.mean[:, 0]
    return (group.count[:, 0] > 0) & (share > low - 1e-6) & (share < high + 1e-6)
