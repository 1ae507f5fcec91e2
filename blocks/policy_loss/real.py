"""Rewards as labels: a group's completions are classified by how the policy moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import above
from ..masking import count, masked, masked_mean
from ..types import TokenLoss
from .inputs import approx_kl, clean


@register("policy_loss", "real", paper="arXiv:2602.05630", needs=("groups", "whole_batch"))
def real(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    group_ids: jax.Array,
    tau: float = 0.5,
) -> TokenLoss:
    """A group's good completions should rise, its bad ones fall, each the less the more they have.

        s = 1/|y| Σ_t log r_t,   O⁺: completions of A > 0, O⁻: the others
        loss = log(1 + Σ_{O⁺} exp(−s/τ)) + log(1 + Σ_{O⁻} exp(s/τ))

    Every token of a group carries its group's loss, so that `sequence_mean_token_mean` or
    `prompt_mean` average it over prompts. Couples the rows of a group. The gradient of a
    completion is at most 1/τ.

    Args:
        log_ratio: `[N, T]` log importance ratios of tokens.
        advantages: `[N, T]` advantages, of which the sign of a row's mean is the label.
        logp: `[N, T]` log-probabilities under the policy, for the statistics.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the completions of one prompt.
        tau: τ, in nats a token.

    Returns:
        TokenLoss, `[N, T]` float32; statistic `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ or `tau` is not positive.

    Source: REAL, arXiv:2602.05630, equation 10.
    """
    above("real", "tau", tau)
    if group_ids.shape != mask.shape[:1]:
        raise ZootomyError(
            f"real: group_ids must be [N] = {list(mask.shape[:1])}, got {list(group_ids.shape)}."
        )
    given = clean("real", log_ratio, advantages, logp, old_logp, mask)
    score = masked_mean(given.log_ratio, mask, axis=1) / tau
    good = masked_mean(given.advantages, mask, axis=1) > 0
    present = count(mask, axis=1) > 0
    siblings = (group_ids[:, None] == group_ids[None, :]) & present[None, :]
    loss = _log1p_sum_exp(-score, siblings & good) + _log1p_sum_exp(score, siblings & ~good)
    loss = masked(jnp.broadcast_to(loss[:, None], mask.shape), mask)
    return TokenLoss(loss, {"approx_kl": approx_kl(given)})


def _log1p_sum_exp(x: jax.Array, which: jax.Array) -> jax.Array:
    """log(1 + Σ_j exp x_j) for each row, over the columns that count; `[N]`."""
    terms = jnp.broadcast_to(x[None, :], which.shape)
    terms = jnp.concatenate([jnp.zeros_like(terms[:, :1]), terms], axis=1)
    counted = jnp.concatenate([jnp.ones_like(which[:, :1]), which], axis=1)
    return jax.nn.logsumexp(terms, axis=1, b=counted.astype(jnp.float32))
