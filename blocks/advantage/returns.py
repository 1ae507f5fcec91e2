"""Advantages without a critic: what is still to come."""

from __future__ import annotations

import jax

from ...registry import register
from ..whitening import EpsPlace, batch
from .scan import Holes, discounted_sum, enter


@register("advantage", "cumulative_return", aliases=("return", "reinforce"))
def cumulative_return(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    gamma: float = 1.0,
    holes: Holes = "skip",
) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of the rewards from each action on.

    γ counts actions: tokens of tools between two actions cost nothing, and what a masked entry
    holds (a reward, a KL) is dropped. In OpenRLHF they cost one γ each (`holes="step"`), in
    SkyRL they cut the return (`holes="reset"`).

        G_t = Σ_{k ≥ t} γ^{k−t} r_k,   k and t counted in actions

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        gamma: discount an action.
        holes: what a token between two actions does: `"skip"` nothing, `"step"` costs one γ,
            `"reset"` cuts the return.

    Returns:
        `(advantages [N, T], returns [N, T])`, both G in float32, 0 where the mask is 0.

    Source: Williams 1992, REINFORCE; Sutton and Barto 2018, section 13.3.
    """
    rewards, actions = enter("cumulative_return", token_rewards, mask)
    returns = discounted_sum(rewards, actions, gamma, holes)
    return returns, returns


@register("advantage", "reinforce_pp", paper="arXiv:2501.03262")
def reinforce_pp(
    token_rewards: jax.Array,
    values: jax.Array | None,
    mask: jax.Array,
    *,
    gamma: float = 1.0,
    holes: Holes = "skip",
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-8,
    eps_place: EpsPlace = "variance",
) -> tuple[jax.Array, jax.Array]:
    """The discounted return (with the KL in it, if placed there), whitened over the batch.

    The same as `cumulative_return` with whitening `batch`, in one block. The defaults are verl's;
    OpenRLHF: `holes="step", ddof=0, eps_place="floor"`; SkyRL: `holes="reset"`.

        G_t = r_t + γ G_{next action},   A_t = (G_t − μ) / sqrt(σ² + eps) over all actions

    Args:
        token_rewards: `[N, T]` a reward a token.
        values: not used.
        mask: `[N, T]` 1 on actions.
        gamma: discount an action.
        holes: what a token between two actions does: `"skip"` nothing, `"step"` costs one γ,
            `"reset"` cuts the return.
        use_std: whether to divide, or only to subtract the mean.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: what keeps the divisor from 0.
        eps_place: where it stands, as in whitening `batch`.

    Returns:
        `(advantages [N, T], returns [N, T])`, float32, 0 where the mask is 0; the returns are G.

    Source: Hu et al. 2025, REINFORCE++, arXiv:2501.03262.
    """
    rewards, actions = enter("reinforce_pp", token_rewards, mask)
    returns = discounted_sum(rewards, actions, gamma, holes)
    advantages = batch(returns, mask, use_std=use_std, ddof=ddof, eps=eps, eps_place=eps_place)
    return advantages, returns
