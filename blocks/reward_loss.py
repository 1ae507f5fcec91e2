"""Which of two completions scores higher: losses for reward models, one a pair."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..registry import ZootomyError, register
from .checks import at_least, rank, same_shape

# Nodes and weights for the mean of a function of a standard normal number.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


@register("reward_loss", "bradley_terry", paper="doi:10.2307/2334029")
def bradley_terry(
    chosen: jax.Array,
    rejected: jax.Array,
    margin: jax.Array | None,
    *,
    center: float = 0.0,
) -> jax.Array:
    """The chosen completion's score should be the higher one.

        loss = −log σ(r_c − r_j − m) + center · (r_c + r_j)²

    Args:
        chosen: `[B]` scores of the chosen completions.
        rejected: `[B]` scores of the rejected ones.
        margin: `[B]` m, by how much better the chosen one is; None for 0.
        center: weight of the term that keeps scores near 0 (TRL's
            `center_rewards_coefficient`, 0.01 there).

    Returns:
        `[B]` float32.

    Raises:
        ZootomyError: if the shapes differ or `center` is negative.

    Source: Bradley and Terry 1952, doi:10.2307/2334029; margin: Llama 2, arXiv:2307.09288;
    centering: Eisenstein et al. 2023, arXiv:2312.09244.
    """
    at_least("bradley_terry", "center", center, 0.0)
    chosen, rejected, gap = _enter("bradley_terry", chosen, rejected, margin)
    return -jax.nn.log_sigmoid(gap) + center * jnp.square(chosen + rejected)


@register("reward_loss", "log_exp", paper="arXiv:2204.05862")
def log_exp(chosen: jax.Array, rejected: jax.Array, margin: jax.Array | None) -> jax.Array:
    """The logistic loss as first written, without a margin.

        loss = log(1 + exp(r_j − r_c))

    Computed without overflow; OpenRLHF computes it literally, inf for gaps beyond 88.

    Args:
        chosen: `[B]` scores of the chosen completions.
        rejected: `[B]` scores of the rejected ones.
        margin: `[B]` or None, not used.

    Returns:
        `[B]` float32.

    Raises:
        ZootomyError: if the shapes differ.

    Source: Bai et al. 2022, arXiv:2204.05862.
    """
    _, _, gap = _enter("log_exp", chosen, rejected, None)
    return jax.nn.softplus(-gap)


@register(
    "reward_loss", "sum_to_zero", aliases=("bsr",), paper="arXiv:2505.07271", needs=("whole_batch",)
)
def sum_to_zero(
    chosen: jax.Array, rejected: jax.Array, margin: jax.Array | None, *, coef: float = 0.001
) -> jax.Array:
    """Bradley-Terry with scores that sum to zero over the batch.

        loss = −log σ(r_c − r_j − m) + coef · (Σ over the batch of r_c + r_j)²

    Keeps the scale of the scores without pulling each of them to 0. Couples all rows of the
    batch.

    Args:
        chosen: `[B]` scores of the chosen completions.
        rejected: `[B]` scores of the rejected ones.
        margin: `[B]` m; None for 0.
        coef: weight of the squared sum.

    Returns:
        `[B]` float32; the second term is the same for all pairs.

    Raises:
        ZootomyError: if the shapes differ or `coef` is negative.

    Source: batch-wise sum-to-zero regularisation, arXiv:2505.07271.
    """
    at_least("sum_to_zero", "coef", coef, 0.0)
    chosen, rejected, gap = _enter("sum_to_zero", chosen, rejected, margin)
    return -jax.nn.log_sigmoid(gap) + coef * jnp.square((chosen + rejected).sum())


@register("reward_loss", "purm", paper="arXiv:2503.22480")
def purm(chosen: jax.Array, rejected: jax.Array, margin: jax.Array | None) -> jax.Array:
    """Bradley-Terry between two scores that are distributions: the model says how sure it is.

        r ~ N(μ, exp(2 log σ)),   loss = −log E[σ(r_c − r_j − m)]

    The expectation is taken over the difference, which is normal, by Gauss-Hermite quadrature
    with 32 nodes; the paper samples.

    Args:
        chosen: `[B, 2]` μ and log σ of the chosen completions.
        rejected: `[B, 2]` those of the rejected ones.
        margin: `[B]` m; None for 0.

    Returns:
        `[B]` float32.

    Raises:
        ZootomyError: if the shapes differ or are not `[B, 2]`.

    Source: PURM, arXiv:2503.22480.
    """
    rank("purm", "chosen", chosen, "B, 2")
    same_shape("purm", chosen=chosen, rejected=rejected)
    if chosen.shape[1] != 2:
        raise ZootomyError(f"purm: chosen must be [B, 2], got shape {list(chosen.shape)}.")
    _, _, gap = _enter("purm", chosen[:, 0], rejected[:, 0], margin)
    # a bound that no score model needs, and that keeps exp finite
    log_scales = [jnp.clip(x[:, 1].astype(jnp.float32), -20.0, 20.0) for x in (chosen, rejected)]
    spread = jnp.sqrt(jnp.exp(2.0 * log_scales[0]) + jnp.exp(2.0 * log_scales[1]))
    nodes = jnp.asarray(_NODES, jnp.float32)
    weights = jnp.asarray(np.log(_WEIGHTS / _WEIGHTS.sum()), jnp.float32)
    logits = gap[:, None] + spread[:, None] * nodes
    return -jax.nn.logsumexp(jax.nn.log_sigmoid(logits) + weights, axis=1)


def calibrate_temperature(chosen: jax.Array, rejected: jax.Array, *, steps: int = 60) -> jax.Array:
    """The temperature by which trained scores should be divided to mean what they say.

        T = argmin mean −log σ((r_c − r_j)/T), on pairs that were not trained on

    By bisection on the derivative in 1/T, which the loss is convex in.

    Args:
        chosen: `[B]` scores of the chosen completions.
        rejected: `[B]` scores of the rejected ones.
        steps: halvings of the interval [1e-4, 1e4] of 1/T, in the logarithm.

    Returns:
        `[]` float32. At the end of the interval where the scores never, or only, err.

    Source: temperature scaling, Guo et al. 2017, arXiv:1706.04599.
    """
    _, _, gap = _enter("calibrate_temperature", chosen, rejected, None)

    def halve(_: int, interval: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = interval
        middle = 0.5 * (low + high)
        slope = -(gap * jax.nn.sigmoid(-jnp.exp(middle) * gap)).mean()
        return jnp.where(slope < 0, middle, low), jnp.where(slope < 0, high, middle)

    ends = (jnp.float32(np.log(1e-4)), jnp.float32(np.log(1e4)))
    low, high = jax.lax.fori_loop(0, steps, halve, ends)
    return jnp.exp(-0.5 * (low + high))


def _enter(
    block: str, chosen: jax.Array, rejected: jax.Array, margin: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores in float32, and r_c − r_j − m; shapes checked."""
    rank(block, "chosen", chosen, "B")
    same_shape(block, chosen=chosen, rejected=rejected, margin=margin)
    chosen, rejected = chosen.astype(jnp.float32), rejected.astype(jnp.float32)
    gap = chosen - rejected
    return chosen, rejected, gap if margin is None else gap - margin.astype(jnp.float32)
