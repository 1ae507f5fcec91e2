"""Advantages by turn: what follows a whole turn is credited to every action of it."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import one_of, rank, same_shape
from ..statistics import Spread, dense_ids, group_spread, safe_divide
from .scan import discounted_sum, enter, next_action


def first_of_turn(turn_ids: jax.Array, actions: jax.Array) -> jax.Array:
    """`[N, T]` bool, true on the first action of each turn of a row.

    A turn begins where the id differs from that of the action before.
    """
    reverse = next_action(
        turn_ids[:, ::-1].astype(jnp.float32), actions[:, ::-1], jnp.full(actions.shape[0], jnp.nan)
    )
    return actions & (turn_ids != reverse[:, ::-1])


def turn_returns(
    rewards: jax.Array, actions: jax.Array, turn_ids: jax.Array, gamma: float
) -> tuple[jax.Array, jax.Array]:
    """What each turn and those after it earn, on every action of the turn.

    Args:
        rewards: `[N, T]` float32, 0 where no action.
        actions: `[N, T]` bool.
        turn_ids: `[N, T]` int; equal on the actions of one turn, different from the turn before.
        gamma: discount a turn.

    Returns:
        `(returns [N, T], first [N, T] bool)`; `first` is true on the first action of each turn.
    """
    first = first_of_turn(turn_ids, actions)
    # One factor where the next action opens another turn, none inside a turn.
    opens = next_action(first.astype(jnp.float32), actions, jnp.zeros(actions.shape[0]))
    from_here = discounted_sum(rewards, actions, jnp.where(opens > 0, gamma, 1.0))
    columns = jnp.arange(actions.shape[1])
    start = jax.lax.cummax(jnp.where(first, columns, 0), axis=1)
    returns = jnp.take_along_axis(from_here, start, axis=1)
    return jnp.where(actions, returns, 0.0), first


def enter_turns(
    block: str, token_rewards: jax.Array, mask: jax.Array, turn_ids: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rewards, actions and turn ids (0 where no action), shapes checked."""
    rewards, actions = enter(block, token_rewards, mask)
    rank(block, "turn_ids", turn_ids, "N, T")
    same_shape(block, token_rewards=token_rewards, turn_ids=turn_ids)
    return rewards, actions, jnp.where(actions, turn_ids, 0)


@register("advantage", "turn_level", needs=("turns",))
def turn_level(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    turn_ids: jax.Array,
    gamma: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of the rewards from each turn on, the same for all actions of a turn.

    γ counts turns with an action, and a reward anywhere in a turn belongs to all of it.

        R_k = Σ r_t over turn k,   G_k = R_k + γ G_{k+1},   A_t = G_{turn of t}

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        turn_ids: `[N, T]` int, the turn of each action; a change of the id is a new turn.
        gamma: discount a turn.

    Returns:
        `(advantages [N, T], returns [N, T])`, both G in float32, 0 where the mask is 0.

    Source: Zeng et al. 2025, Turn-level credit assignment, arXiv:2505.11821.
    """
    rewards, actions, ids = enter_turns("turn_level", token_rewards, mask, turn_ids)
    returns, _ = turn_returns(rewards, actions, ids, gamma)
    return returns, returns


@register("advantage", "gigpo", paper="arXiv:2505.10978", needs=("groups", "turns"))
def gigpo(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    group_ids: jax.Array,
    turn_ids: jax.Array,
    gamma: float = 0.95,
    omega: float = 1.0,
    norm: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> tuple[jax.Array, jax.Array]:
    """A group baseline for the whole episode, plus one among the turns that began in one state.

    The turns of a group with the same id are taken to begin in the same (anchor) state: an
    environment gives the ids of its states; with plain turn numbers, turn k is compared with
    turn k of the siblings. The baselines are in here: leave reward_shaping at `identity`. A turn
    whose state no other visited, and a row without siblings, are worth 0 in that part.

        A_t = (R − μ_group) / σ_group + ω (G_turn − μ_state) / σ_state
        R = Σ r over the row,   G_k = R_k + γ G_{k+1} by turn;   σ + eps, or 1 with norm "none"

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the rows of one prompt.
        turn_ids: `[N, T]` int, the state in which the turn of each action began; a change of the
            id is a new turn.
        gamma: discount a turn, in G.
        omega: weight of the part by state.
        norm: whether both parts are divided by their deviation.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: added to the deviations, in reward units.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0; the returns are G.

    Source: Feng et al. 2025, GiGPO, arXiv:2505.10978, equations 3 to 8.
    """
    one_of("gigpo", "norm", norm, ("std", "none"))
    rewards, actions, ids = enter_turns("gigpo", token_rewards, mask, turn_ids)
    returns, first = turn_returns(rewards, actions, ids, gamma)
    has_action = actions.any(1)
    episode = group_spread(rewards.sum(1), has_action, dense_ids(group_ids), ddof=ddof)
    # Every turn counts once, by its first action, among those of its group with its id.
    rows = jnp.broadcast_to(group_ids[:, None], actions.shape)
    states = dense_ids(rows.reshape(-1), ids.reshape(-1))
    by_state = group_spread(returns.reshape(-1), first.reshape(-1), states, ddof=ddof)

    def in_units(values: jax.Array, of: Spread) -> jax.Array:
        left = values - of.mean
        return safe_divide(left, of.std + eps) if norm == "std" else left

    whole = jnp.where(has_action, in_units(rewards.sum(1), episode), 0.0)[:, None]
    turn = in_units(returns.reshape(-1), by_state).reshape(returns.shape)
    return jnp.where(actions, whole + omega * turn, 0.0), returns
