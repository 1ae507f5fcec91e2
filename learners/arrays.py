"""What goes into the assembled functions and what comes out of the first: arrays by name."""

from __future__ import annotations

from typing import NamedTuple

import jax

from ..blocks.checks import rank
from ..registry import ZootomyError

# name -> (weighted sum, weight): metrics that add up over any split of a batch.
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class Rollouts(NamedTuple):
    """What was sampled and what is known of it; row `p * G + g` is completion g of prompt p.

    Attributes:
        rewards: `[P, G]` float, one scalar a completion.
        valid: `[P, G]` bool, false where the rollout failed or was dropped.
        mask: `[N, T]` 1 on actions.
        truncated: `[P, G]` bool, true where the length limit cut the completion.
        components: `[F, P, G]` float, the rewards by function, NaN where one does not apply.
        component_weights: `[F]` float, the weights of the functions; None: 1 each.
        baseline: `[P]` float, a reward to compare with: the greedy completion's, or a tracker's.
        scale: `[P]` float, a deviation to divide rewards by, from a tracker.
        old_logp: `[N, T]` log-probability at the trainer's weights before the update; None where
            the update is exactly on-policy.
        rollout_logp: `[N, T]` log-probability as the engine sampled.
        ref_logp: `[N, T]` log-probability under the reference.
        values: `[N, T]` the critic's value of the state before each action.
        next_values: `[N]` the critic's value of the state behind the last action.
        sum_pi_squared: `[N, T]` sum of the squared probabilities at each action.
        entropy: `[N, T]` the policy's entropy at each action before the update, in nats.
        turn_ids: `[N, T]` int, the turn of each action.
        token_rewards: `[N, T]` float, the part of `rewards` that stands on single actions; what is
            left of the completion's reward (all of it where this is None) stands on the last.
        kl: `[N, T]` the distance to the reference before the update, where the estimator needs
            whole distributions; `assemble(...).distance` measures it.
    """

    rewards: jax.Array
    valid: jax.Array
    mask: jax.Array
    truncated: jax.Array | None = None
    components: jax.Array | None = None
    component_weights: jax.Array | None = None
    baseline: jax.Array | None = None
    scale: jax.Array | None = None
    old_logp: jax.Array | None = None
    rollout_logp: jax.Array | None = None
    ref_logp: jax.Array | None = None
    values: jax.Array | None = None
    next_values: jax.Array | None = None
    sum_pi_squared: jax.Array | None = None
    turn_ids: jax.Array | None = None
    entropy: jax.Array | None = None
    token_rewards: jax.Array | None = None
    kl: jax.Array | None = None


class Experience(NamedTuple):
    """What an update learns from; every entry is aligned to the sequences of the batch.

    Attributes:
        mask: `[N, T]` float32, 1 on the actions of valid completions.
        counted: `[N, T]` float32, 1 on the actions that the loss's denominators count.
        group_ids: `[N]` int32, the prompt of each sequence.
        advantages: `[N, T]` float32.
        returns: `[N, T]` float32, what a critic should predict.
        correction: `[N, T]` float32, weight for the sampler's drift; 0 on rejected actions.
        old_logp: `[N, T]` what the ratio is taken against: the trainer's before the update, the
            engine's under the correction `bypass`, or None.
        rollout_logp, ref_logp, old_values, turn_ids: `[N, T]` or None, as in `Rollouts`.
        truncated: `[N]` bool or None.
        next_values: `[N]` float32 or None.
    """

    mask: jax.Array
    counted: jax.Array
    group_ids: jax.Array
    advantages: jax.Array
    returns: jax.Array
    correction: jax.Array | None
    old_logp: jax.Array | None
    rollout_logp: jax.Array | None
    ref_logp: jax.Array | None
    old_values: jax.Array | None
    turn_ids: jax.Array | None = None
    truncated: jax.Array | None = None
    next_values: jax.Array | None = None


def check_shapes(rollouts: Rollouts) -> None:
    """Refuse arrays that do not fit each other, which would otherwise be broadcast silently.

    Raises:
        ZootomyError: naming the array, its shape and the one expected.
    """
    rank("experience", "rewards", rollouts.rewards, "P, G")
    rank("experience", "mask", rollouts.mask, "N, T")
    prompts, group = rollouts.rewards.shape
    rows, width = prompts * group, rollouts.mask.shape[1]
    functions = 0 if rollouts.components is None else len(rollouts.components)
    for axes, shape, names in (
        ("P, G", (prompts, group), ("valid", "truncated")),
        ("F, P, G", (functions, prompts, group), ("components",)),
        ("F", (functions,), ("component_weights",)),
        ("P", (prompts,), ("baseline", "scale")),
        ("N", (rows,), ("next_values",)),
        ("N, T", (rows, width), ("mask", "old_logp", "rollout_logp", "ref_logp")),
        ("N, T", (rows, width), ("values", "sum_pi_squared", "turn_ids", "entropy", "kl")),
        ("N, T", (rows, width), ("token_rewards",)),
    ):
        for name in names:
            array = rollouts._asdict()[name]
            if array is not None and array.shape != shape:
                raise ZootomyError(
                    f"experience: {name} must be [{axes}] = {list(shape)}, got shape "
                    f"{list(array.shape)}; rewards are [P, G] and N = P * G."
                )
