"""Generalised advantage estimation: advantages with a critic."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, required, same_shape
from ..masking import count, masked
from .scan import Holes, discounted_sum, enter, last_action, next_action

CRITIC = "give a critic's values [N, T]"

ValueHoles = Literal["skip", "step"]


def advantages_of(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    block: str,
    gamma: float,
    decay: float | jax.Array,
    holes: Holes = "skip",
    next_values: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The recursion that all of the family share; arguments as in `gae`.

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: `[N, T]` the critic's value before each token.
        mask: `[N, T]` 1 on actions.
        block: the block's name, for errors.
        gamma: discount an action.
        decay: γλ; a number, or `[N, T]` one a token.
        holes: as in `discounted_sum`; with `"step"` the value of a hole is 0.
        next_values: `[N]` value of the state behind the last action; 0 by default.

    Returns:
        `(advantages [N, T], values [N, T])`, float32, 0 where the mask is 0.
    """
    rewards, actions = enter(block, token_rewards, mask)
    values = required(block, "values", values, CRITIC)
    same_shape(block, token_rewards=token_rewards, values=values)
    values = masked(values, mask)
    end = jnp.zeros(mask.shape[0], jnp.float32) if next_values is None else next_values
    if holes == "step":
        following = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], axis=1)
        following = jnp.where(last_action(mask), end[:, None], following)
        deltas = rewards + gamma * following - values
    else:
        deltas = rewards + gamma * next_action(values, actions, end) - values
        deltas = jnp.where(actions, deltas, 0.0)
    return discounted_sum(deltas, actions, decay, holes), values


@register("advantage", "gae", paper="arXiv:1506.02438", needs=("critic",))
def gae(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    holes: ValueHoles = "skip",
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation from action to action.

    Tokens between two actions are passed over, as in verl and Tunix. OpenRLHF takes them as
    steps with reward and value 0 (`holes="step"`). SkyRL runs over every token, padding
    included: pass a mask of ones for that. Nothing is whitened here.

        δ_t = r_t + γ V_{next action} − V_t
        A_t = δ_t + γλ A_{next action},   return_t = A_t + V_t

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: `[N, T]` the critic's value of the state before each token, in reward units.
        mask: `[N, T]` 1 on actions.
        gamma: discount an action.
        lam: λ, from one-step differences (0) to Monte Carlo (1).
        holes: what a token between two actions does: `"skip"` nothing, `"step"` is a step of
            value 0.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0.

    Raises:
        ZootomyError: without values, or for shapes that differ.

    Source: Schulman et al. 2015, arXiv:1506.02438, equations 11, 12 and 16.
    """
    advantages, values = advantages_of(
        token_rewards, values, mask, block="gae", gamma=gamma, decay=gamma * lam, holes=holes
    )
    return advantages, advantages + values


@register("advantage", "gae_bootstrap", paper="arXiv:1712.00378", needs=("critic",))
def gae_bootstrap(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    truncated: jax.Array,
    next_values: jax.Array,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[jax.Array, jax.Array]:
    """GAE in which a row cut by the length limit goes on being worth something.

    `gae` takes the state behind the last action for worth 0, which is right for a completion
    that stopped, and punishes one that was only cut.

        as `gae`, with V_{next action} = V(state behind the cut) for the last action of a
        truncated row

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: `[N, T]` the critic's value of the state before each token, in reward units.
        mask: `[N, T]` 1 on actions.
        truncated: `[N]` bool, true where the row ran into the length limit.
        next_values: `[N]` the critic's value of the state behind the last action, in reward
            units; read where the row is truncated.
        gamma: discount an action.
        lam: λ, from one-step differences (0) to Monte Carlo (1).

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0.

    Raises:
        ZootomyError: without values, or for shapes that differ.

    Source: Pardo et al. 2017, Time limits in reinforcement learning, arXiv:1712.00378.
    """
    advantages, values = advantages_of(
        token_rewards,
        values,
        mask,
        block="gae_bootstrap",
        gamma=gamma,
        decay=gamma * lam,
        next_values=masked(next_values, truncated),
    )
    return advantages, advantages + values


def bootstrap_truncated(
    token_rewards: jax.Array,
    next_values: jax.Array,
    truncated: jax.Array,
    mask: jax.Array,
    *,
    gamma: float = 1.0,
) -> jax.Array:
    """Token rewards in which the last action of a truncated row also earns what follows the cut.

    With these rewards every advantage block bootstraps: for `gae`, r + γV_next − V is the same
    with V_next in the reward as in the recursion.

        r_last += γ V_next   where the row is truncated

    Args:
        token_rewards: `[N, T]` a reward a token.
        next_values: `[N]` the critic's value of the state behind the last action.
        truncated: `[N]` bool, true where the row ran into the length limit.
        mask: `[N, T]` 1 on actions.
        gamma: discount an action.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.
    """
    rewards, _ = enter("bootstrap_truncated", token_rewards, mask)
    bonus = gamma * masked(next_values, truncated)
    return rewards + jnp.where(last_action(mask), bonus[:, None], 0.0)


@register("advantage", "vapo_gae", paper="arXiv:2504.05118", needs=("critic",))
def vapo_gae(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    gamma: float = 1.0,
    alpha: float | None = 0.05,
    lam: float = 0.95,
    lam_critic: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """GAE with one λ for the policy, adapted to the length of the row, and another for the critic.

    For rows so short that 1 − 1/(α·len) is below 0 it is taken as 0 (the paper's rows are long).

        A with λ = max(1 − 1/(α · len), 0),   return = V + A with λ = lam_critic

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: `[N, T]` the critic's value of the state before each token, in reward units.
        mask: `[N, T]` 1 on actions; len counts them.
        gamma: discount an action.
        alpha: how fast λ approaches 1 with the length; None takes `lam` for all rows, which is
            the decoupled GAE of VC-PPO.
        lam: the policy's λ where `alpha` is None.
        lam_critic: the critic's λ; 1 is Monte Carlo.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0.

    Raises:
        ZootomyError: without values, for shapes that differ, or `alpha` that is not positive.

    Source: Yue et al. 2025, VAPO, arXiv:2504.05118, section 4.1; Yuan et al. 2025, VC-PPO,
    arXiv:2503.01491.
    """
    above("vapo_gae", "alpha", alpha)
    policy_lam: float | jax.Array = lam
    if alpha is not None:
        lengths = count(mask, axis=1)[:, None]
        policy_lam = jnp.maximum(1.0 - 1.0 / (alpha * jnp.maximum(lengths, 1.0)), 0.0)
    advantages, _ = advantages_of(
        token_rewards, values, mask, block="vapo_gae", gamma=gamma, decay=gamma * policy_lam
    )
    critic, values = advantages_of(
        token_rewards, values, mask, block="vapo_gae", gamma=gamma, decay=gamma * lam_critic
    )
    return advantages, critic + values
