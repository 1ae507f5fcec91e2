"""What blocks take and return beyond plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax


class RewardInfo(NamedTuple):
    """What a reward shaping may know beside the rewards; absent entries are None.

    Attributes:
        valid: `[P, G]` bool, false where a rollout failed or was dropped.
        lengths: `[P, G]` int, actions in the completion.
        truncated: `[P, G]` bool, true where the completion ran into the length limit.
        components: `[F, P, G]` float, one reward a reward function, NaN where it does not apply.
        baseline: `[P]` float, a reward to compare with: that of the greedy completion, or a
            value that a tracker carries from step to step.
        scale: `[P]` float, a deviation to divide by, carried by a tracker.
        weights: `[F]` float, the weights of the reward functions; 1 each where absent.
    """

    valid: jax.Array
    lengths: jax.Array | None = None
    truncated: jax.Array | None = None
    components: jax.Array | None = None
    baseline: jax.Array | None = None
    scale: jax.Array | None = None
    weights: jax.Array | None = None


class TokenLoss(NamedTuple):
    """A policy loss per token, before any correction, masking of the sum, or aggregation.

    Attributes:
        loss: `[N, T]` float32; 0 where the mask is 0.
        stats: name -> `[N, T]`, each to be averaged over the actions and logged, e.g.
            `clip_ratio` (1 where the clip binds).
    """

    loss: jax.Array
    stats: dict[str, jax.Array]


class Controller(NamedTuple):
    """How a coefficient moves from step to step, on the host.

    Attributes:
        init: `() -> state`, a dict of floats; its entry `coefficient` is the one to start with.
        update: `(state, metrics) -> (state, coefficient)`, called after each step with that
            step's metrics.
    """

    init: Callable[[], dict[str, float]]
    update: Callable[[dict[str, float], Mapping[str, Any]], tuple[dict[str, float], float]]
