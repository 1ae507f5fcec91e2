"""Log importance ratios of the policy to the one that the update started from."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ..registry import register
from .checks import above, same_shape
from .masking import count, masked, masked_mean, masked_sum


@register("ratio", "token", paper="arXiv:1707.06347")
def token(logp: jax.Array, old_logp: jax.Array, mask: jax.Array) -> jax.Array:
    """One log-ratio a token (PPO, GRPO).

        log r_t = logπ_t − logπ_old,t

    On the first update, where `old_logp` equals `logp`, it is exactly 0. The bound before exp
    belongs to the policy loss, where the exponential is taken.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those under the weights before the update; on-policy, the same
            numbers without a gradient.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ.

    Source: PPO, arXiv:1707.06347.

    >>> one = jnp.ones((1, 1))
    >>> token(-1 * one, -2 * one, one).tolist()
    [[1.0]]
    """
    return _token_log_ratio("ratio token", logp, old_logp, mask)


@register("ratio", "sequence", paper="arXiv:2507.18071")
def sequence(
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    reduce: Literal["mean", "sum"] = "mean",
) -> jax.Array:
    """One log-ratio a sequence, given to each of its tokens, with its full gradient (GSPO).

        log s = 1/|y| Σ_t (logπ_t − logπ_old,t)

    The gradient flows through the mean to every token (TRL, OpenRLHF, AReaL, NeMo-RL); verl,
    SkyRL and Tunix use `sequence_token` under this name.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those under the weights before the update.
        mask: `[N, T]` 1 on actions.
        reduce: "mean" over the actions (GSPO), or "sum": the true ratio of the sequence's
            probabilities (TRL's RLOO), which collapses or explodes with the length.

    Returns:
        `[N, T]` float32, equal along a row; 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ.

    Source: GSPO, arXiv:2507.18071, equation 7.

    >>> logp, old, mask = jnp.array([[0.5, 0.1]]), jnp.zeros((1, 2)), jnp.ones((1, 2))
    >>> [[round(x, 4) for x in row] for row in sequence(logp, old, mask).tolist()]
    [[0.3, 0.3]]
    """
    log_ratio = _token_log_ratio("ratio sequence", logp, old_logp, mask)
    total = masked_sum(log_ratio, mask, axis=1)
    if reduce == "mean":
        total = total / jnp.maximum(count(mask, axis=1), 1.0)
    return masked(jnp.broadcast_to(total[:, None], log_ratio.shape), mask)


@register("ratio", "sequence_token", paper="arXiv:2507.18071")
def sequence_token(
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    clamp_token: float | None = None,
    cap: float | None = None,
) -> jax.Array:
    """The sequence's ratio as value, each token's own gradient (GSPO-token).

        log s_t = sg(1/|y| Σ_k (logπ_k − logπ_old,k)) + logπ_t − sg(logπ_t)

    With advantages that differ along the sequence each token answers for its own; with equal
    ones and a mean over the sequence it is the same as `sequence`.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those under the weights before the update.
        mask: `[N, T]` 1 on actions.
        clamp_token: bound on each token's log-ratio before the mean (Tunix 20, others none).
        cap: upper bound on the result, without a gradient beyond it (verl, SkyRL, Tunix 10).

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the shapes differ, or `clamp_token` or `cap` is not positive.

    Source: GSPO, arXiv:2507.18071, equation 14.
    """
    above("ratio sequence_token", "clamp_token", clamp_token)
    above("ratio sequence_token", "cap", cap)
    log_ratio = _token_log_ratio("ratio sequence_token", logp, old_logp, mask)
    if clamp_token is not None:
        log_ratio = jnp.clip(log_ratio, -clamp_token, clamp_token)
    mean = jax.lax.stop_gradient(masked_mean(log_ratio, mask, axis=1))
    own = masked(logp, mask)
    result = mean[:, None] + (own - jax.lax.stop_gradient(own))
    if cap is not None:
        result = jnp.minimum(result, cap)
    return masked(result, mask)


@register("ratio", "none")
def none(logp: jax.Array, old_logp: jax.Array, mask: jax.Array) -> jax.Array:
    """No ratio: value 1, and the gradient of REINFORCE.

        log r_t = logπ_t − sg(logπ_t) = 0

    The policy that sampled has no part in it: right for on-policy data only. Data of older
    weights need `token` or `sequence`, or a correction.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]`, not used.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32 zeros that carry the gradient of `logp`.

    Raises:
        ZootomyError: if the shapes differ.

    Source: REINFORCE, Williams 1992, doi:10.1007/BF00992696.
    """
    same_shape("ratio none", logp=logp, old_logp=old_logp, mask=mask)
    own = masked(logp, mask)
    return own - jax.lax.stop_gradient(own)


def _token_log_ratio(
    block: str, logp: jax.Array, old_logp: jax.Array, mask: jax.Array
) -> jax.Array:
    same_shape(block, logp=logp, old_logp=old_logp, mask=mask)
    return masked(logp, mask) - masked(old_logp, mask)
