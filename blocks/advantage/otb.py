"""The optimal token baseline: per prompt and step, weighted by how much the gradient varies."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, one_of, same_shape
from ..masking import masked
from ..statistics import dense_ids, group_sum, safe_divide
from .scan import discounted_sum, enter

Steps = Literal["actions", "positions"]
Singleton = Literal["zero", "reward"]


@partial(jax.jit, static_argnames=("block", "steps", "zero_tail", "singleton"))
def optimal_advantages(
    block: str,
    returns: jax.Array,
    actions: jax.Array,
    group_ids: jax.Array,
    energy: jax.Array,
    *,
    steps: Steps,
    zero_tail: bool,
    singleton: Singleton,
    eps: float,
) -> jax.Array:
    """Returns less the baseline of their prompt and step; arguments as in `otb`.

    Args:
        block: the block's name, for errors.
        returns: `[N, T]` return-to-go, 0 where no action.
        actions: `[N, T]` bool.
        group_ids: `[N]` int.
        energy: `[N, T]` squared norm of the gradient of each action, up to a common factor.
        steps: what is compared between siblings.
        zero_tail: whether the end of the longest row has no baseline.
        singleton: what a row without siblings is worth.
        eps: added to the sum of the weights.

    Returns:
        `[N, T]` float32, 0 where no action.
    """
    one_of(block, "steps", steps, ("actions", "positions"))
    one_of(block, "singleton", singleton, ("zero", "reward"))
    height, width = actions.shape
    step = jnp.broadcast_to(jnp.arange(width), actions.shape)
    if steps == "actions":
        step = jnp.cumsum(actions, axis=1) - 1
    # Observations go to a column of their own, which is cut off again.
    step = jnp.where(actions, step, width)
    rows = jnp.arange(height)[:, None]

    def by_step(x: jax.Array) -> jax.Array:
        return jnp.zeros((height, width + 1)).at[rows, step].set(x)[:, :width]

    ids = dense_ids(group_ids)
    weight = by_step(jnp.cumsum(jnp.where(actions, energy, 0.0), axis=1))
    total = group_sum(weight, ids) + eps
    baseline = safe_divide(group_sum(by_step(returns) * weight, ids), total)[ids]
    if zero_tail:
        cut = _second_longest(actions.sum(1), ids)[:, None]
        baseline = jnp.where(jnp.arange(width) < cut, baseline, 0.0)
    baseline = jnp.take_along_axis(jnp.pad(baseline, ((0, 0), (0, 1))), step, axis=1)
    alone = (group_sum(actions.any(1).astype(jnp.float32), ids) == 1)[ids][:, None]
    advantages = jnp.where(alone, returns if singleton == "reward" else 0.0, returns - baseline)
    return jnp.where(actions, advantages, 0.0)


def _second_longest(lengths: jax.Array, ids: jax.Array) -> jax.Array:
    """`[N]` on the only longest row of a group the length of the second, else a row's own."""
    longest = jax.ops.segment_max(lengths, ids, num_segments=ids.shape[0])[ids]
    is_longest = lengths == longest
    is_only = is_longest & (group_sum(is_longest.astype(jnp.int32), ids)[ids] == 1)
    others = jnp.where(is_longest, 0, lengths)
    second = jax.ops.segment_max(others, ids, num_segments=ids.shape[0])[ids]
    return jnp.where(is_only, second, jnp.iinfo(jnp.int32).max)


@register(
    "advantage",
    "otb",
    aliases=("optimal_token_baseline",),
    paper="arXiv:2602.07078",
    needs=("groups", "sum_pi_squared"),
)
def otb(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    group_ids: jax.Array,
    old_logp: jax.Array,
    sum_pi_squared: jax.Array,
    steps: Steps = "actions",
    zero_tail: bool = False,
    singleton: Singleton = "zero",
    eps: float = 1e-8,
) -> tuple[jax.Array, jax.Array]:
    """The return less the baseline that makes the gradient of a prompt's step vary least.

    Siblings are compared action by action, the k-th with the k-th, as in verl's multi-turn form;
    its single-turn form compares positions (`steps="positions"`), the same where no observation
    stands between actions. verl gives a row without siblings its return (`singleton="reward"`).

        w_t = 1 − 2π_t + Σ_a π_a²,   W_t = Σ_{k ≤ t} w_k,   G_t = Σ_{k ≥ t} r_k
        A_t = G_t − Σ_i G W / (Σ_i W + eps),   over the rows i of the prompt, at the step of t

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the rows of one prompt.
        old_logp: `[N, T]` log-probability of each action, in nats.
        sum_pi_squared: `[N, T]` sum of the squared probabilities at each action.
        steps: whether a step is the number of the `"actions"` so far or the `"positions"`.
        zero_tail: whether the only longest row of a prompt has baseline 0 from the step on where
            the second longest ends; else it is worth about 0 there, being its own baseline.
        singleton: what a row without siblings is worth: `"zero"` or its return (`"reward"`).
        eps: added to the sum of the weights.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0; the returns are G.

    Source: Li et al. 2026, The optimal token baseline, arXiv:2602.07078.
    """
    rewards, actions = enter("otb", token_rewards, mask)
    same_shape("otb", mask=mask, old_logp=old_logp, sum_pi_squared=sum_pi_squared)
    returns = discounted_sum(rewards, actions, 1.0)
    advantages = optimal_advantages(
        "otb",
        returns,
        actions,
        group_ids,
        _energy(old_logp, sum_pi_squared, mask),
        steps=steps,
        zero_tail=zero_tail,
        singleton=singleton,
        eps=eps,
    )
    return advantages, returns


@register(
    "advantage",
    "otb_corrected",
    paper="arXiv:2602.07078",
    needs=("groups", "sum_pi_squared", "rollout_logp"),
)
def otb_corrected(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    group_ids: jax.Array,
    old_logp: jax.Array,
    rollout_logp: jax.Array,
    sum_pi_squared: jax.Array,
    cap: float = 2.0,
    steps: Steps = "actions",
    zero_tail: bool = False,
    singleton: Singleton = "zero",
    eps: float = 1e-8,
) -> tuple[jax.Array, jax.Array]:
    """`otb` where the loss is weighted by a truncated importance ratio: its square enters w.

    verl takes the weights of its own correction; here they are those of `tis`.

        w_t = (1 − 2π_t + Σ_a π_a²) · min(π_old / π_rollout, cap)²,   the rest as `otb`

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the rows of one prompt.
        old_logp: `[N, T]` log-probability of each action before the update, in nats.
        rollout_logp: `[N, T]` log-probability of each action as it was sampled, in nats.
        sum_pi_squared: `[N, T]` sum of the squared probabilities at each action.
        cap: bound of the importance ratio; the same as the correction's.
        steps: whether a step is the number of the `"actions"` so far or the `"positions"`.
        zero_tail: whether the only longest row of a prompt has baseline 0 from the step on where
            the second longest ends.
        singleton: what a row without siblings is worth: `"zero"` or its return (`"reward"`).
        eps: added to the sum of the weights.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0; the returns are G.

    Raises:
        ZootomyError: if `cap` is not positive.

    Source: Li et al. 2026, The optimal token baseline, arXiv:2602.07078.
    """
    above("otb_corrected", "cap", cap)
    rewards, actions = enter("otb_corrected", token_rewards, mask)
    same_shape(
        "otb_corrected",
        mask=mask,
        old_logp=old_logp,
        rollout_logp=rollout_logp,
        sum_pi_squared=sum_pi_squared,
    )
    drift = masked(old_logp, mask) - masked(rollout_logp, mask)
    ratio = jnp.minimum(jnp.exp(jnp.clip(drift, -20.0, 20.0)), cap)
    returns = discounted_sum(rewards, actions, 1.0)
    energy = _energy(old_logp, sum_pi_squared, mask) * ratio**2
    advantages = optimal_advantages(
        "otb_corrected",
        returns,
        actions,
        group_ids,
        energy,
        steps=steps,
        zero_tail=zero_tail,
        singleton=singleton,
        eps=eps,
    )
    return advantages, returns


def _energy(old_logp: jax.Array, sum_pi_squared: jax.Array, mask: jax.Array) -> jax.Array:
    """`[N, T]` 1 − 2π + Σπ²: the squared norm of the gradient of logπ in the logits."""
    return 1.0 - 2.0 * jnp.exp(masked(old_logp, mask)) + masked(sum_pi_squared, mask)
