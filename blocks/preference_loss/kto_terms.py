"""KTO's loss of a completion by itself, for data without pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def kto_terms(
    log_ratio: jax.Array,
    desirable: jax.Array,
    kl: jax.Array | float,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> jax.Array:
    """What each completion adds, wanted or not; without `kl` it is APO-zero for unpaired data.

        kl ← sg(max(kl, 0))
        wanted:    λ_D (1 − σ(β (d − kl)))        unwanted:  λ_U (1 − σ(β (kl − d)))

    Args:
        log_ratio: `[M]` d = log π/π_ref of each completion, summed over its tokens.
        desirable: `[M]` bool, whether it is wanted.
        kl: `[]` the reference point, in nats, e.g. the mean log π/π_ref of mismatched pairs.
        beta: β.
        desirable_weight: λ_D.
        undesirable_weight: λ_U.

    Returns:
        `[M]` float32.

    Source: Ethayarajh et al. 2024, KTO, arXiv:2402.01306, equation 8.
    """
    point = jax.lax.stop_gradient(jnp.maximum(jnp.asarray(kl, jnp.float32), 0.0))
    z = beta * (log_ratio.astype(jnp.float32) - point)
    gain = desirable_weight * jax.nn.sigmoid(-z)
    return jnp.where(desirable, gain, undesirable_weight * jax.nn.sigmoid(z))
