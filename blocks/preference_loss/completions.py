"""A completion's log-probability from its tokens', as the preference losses take it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..checks import same_shape
from ..masking import count, masked, masked_mean, masked_sum


def completion_logp(
    logp: jax.Array,
    mask: jax.Array,
    other_mask: jax.Array | None = None,
    *,
    desensitisation: float = 1.0,
) -> jax.Array:
    """The sum over tokens, in which tokens beyond the shorter one's length can count less.

        Σ_{t ≤ l} logπ_t + α Σ_{t > l} logπ_t,   l = the shorter length of the pair

    Args:
        logp: `[B, T]` log-probabilities of tokens.
        mask: `[B, T]` 1 on the completion's tokens.
        other_mask: `[B, T']` the mask of the pair's other completion; needed if α is not 1.
        desensitisation: α; 1 for the plain sum, 0 to forget the longer one's tail (LD-DPO).

    Returns:
        `[B]` float32.

    Source: Liu et al. 2024, LD-DPO, arXiv:2409.06411, equation 10.
    """
    same_shape("completion_logp", logp=logp, mask=mask)
    total = masked_sum(logp, mask, axis=1)
    if other_mask is None:
        return total
    common = jnp.minimum(count(mask, axis=1), count(other_mask, axis=1))
    place = jnp.cumsum(mask > 0, axis=1)
    shared = masked_sum(logp, (mask > 0) & (place <= common[:, None]), axis=1)
    return shared + desensitisation * (total - shared)


def wpo_weights(logp: jax.Array, sum_pi_squared: jax.Array, mask: jax.Array) -> jax.Array:
    """How probable a completion is to the policy, to weigh its pair by (WPO).

        w = sg(exp(1/|y| Σ_t (logπ_t − log Σ_v π_t(v)²)))

    Args:
        logp: `[B, T]` log-probabilities of the tokens, in nats.
        sum_pi_squared: `[B, T]` Σ_v π_t(v)², the expected probability of a token sampled.
        mask: `[B, T]` 1 on the completion's tokens.

    Returns:
        `[B]` float32 without a gradient; a pair's loss is multiplied by both of its weights.

    Source: Zhou et al. 2024, WPO, arXiv:2406.11827, equation 5.
    """
    same_shape("wpo_weights", logp=logp, sum_pi_squared=sum_pi_squared, mask=mask)
    expected = jnp.log(masked(sum_pi_squared, mask, fill=1.0))
    mean = masked_mean(masked(logp, mask) - expected, mask, axis=1)
    return jax.lax.stop_gradient(jnp.exp(mean))
