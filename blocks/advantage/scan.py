"""Backward recursions over the actions of a row, and what happens at the tokens between them.

The recursions are jitted here, so that a call outside of any jit does not compile its loop anew.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from ..checks import one_of, rank, same_shape
from ..masking import masked

# What an observation inside a row does to a recursion that runs backwards over it:
# "skip"   nothing: the recursion goes from action to action, time counts actions;
# "step"   it is a step with reward 0 and value 0: it costs one more factor;
# "reset"  nothing from behind it reaches the actions before it.
Holes = Literal["skip", "step", "reset"]


def enter(block: str, token_rewards: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rewards in float32, 0 where the mask is 0, and the mask as bool; shapes checked."""
    rank(block, "token_rewards", token_rewards, "N, T")
    same_shape(block, token_rewards=token_rewards, mask=mask)
    return masked(token_rewards, mask), mask > 0


@partial(jax.jit, static_argnames="holes")
def discounted_sum(
    x: jax.Array, mask: jax.Array, factor: float | jax.Array, holes: Holes = "skip"
) -> jax.Array:
    """The sum of `x` from each action on, with one factor a step.

        S_t = x_t + factor_t · S_{next action}

    Args:
        x: `[N, T]` float32, 0 where the mask is 0.
        mask: `[N, T]` bool, true on actions.
        factor: the factor of a step; a number, or `[N, T]` one a token.
        holes: what a token that is no action does; see `Holes`.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.
    """
    one_of("advantage", "holes", holes, ("skip", "step", "reset"))
    factors = jnp.broadcast_to(jnp.asarray(factor, jnp.float32), x.shape)

    def step(behind: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x_t, acts, factor_t = now
        here = x_t + factor_t * behind
        if holes == "skip":
            return jnp.where(acts, here, behind), here
        if holes == "step":
            return here, here
        return jnp.where(acts, here, 0.0), here

    columns = (x.T, mask.T, factors.T)
    start = jnp.zeros(x.shape[0], jnp.float32)
    sums = jax.lax.scan(step, start, columns, reverse=True)[1].T
    return jnp.where(mask, sums, 0.0)


@jax.jit
def next_action(x: jax.Array, mask: jax.Array, last: jax.Array) -> jax.Array:
    """The value of `x` at the next action of the row, `last` behind the last one.

    Args:
        x: `[N, T]` float32.
        mask: `[N, T]` bool, true on actions.
        last: `[N]` what follows the last action of a row.

    Returns:
        `[N, T]` float32.
    """

    def step(behind: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_t, acts = now
        return jnp.where(acts, x_t, behind), behind

    return jax.lax.scan(step, last.astype(jnp.float32), (x.T, mask.T), reverse=True)[1].T


def last_action(mask: jax.Array) -> jax.Array:
    """`[N, T]` bool, true on the last action of each row that has one."""
    actions = mask > 0
    behind = jnp.cumsum(actions[:, ::-1], axis=1)[:, ::-1]
    return actions & (behind == 1)
