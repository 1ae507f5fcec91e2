"""On what scale the advantages stand: shift and scale over actions."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ..registry import register
from .checks import one_of, rank, same_shape
from .masking import masked
from .statistics import Spread, safe_divide, safe_sqrt, spread

EpsPlace = Literal["variance", "floor", "std"]


def enter(block: str, advantages: jax.Array, mask: jax.Array) -> None:
    """Refuse what is not `[N, T]`, or a mask of another shape."""
    rank(block, "advantages", advantages, "N, T")
    same_shape(block, advantages=advantages, mask=mask)


def scaled(
    values: Spread,
    mask: jax.Array,
    *,
    shift_mean: bool,
    use_std: bool,
    eps: float,
    eps_place: EpsPlace,
) -> jax.Array:
    """Deviations over their spread, 0 where the mask is 0; arguments as in `batch`."""
    one_of("whitening", "eps_place", eps_place, ("variance", "floor", "std"))
    result = values.deviation
    if use_std:
        variance = values.std**2
        if eps_place == "std":
            scale = values.std + eps
        elif eps_place == "floor":
            scale = safe_sqrt(jnp.maximum(variance, eps))
        else:
            scale = safe_sqrt(variance + eps)
        result = safe_divide(result, scale)
    if not shift_mean:
        result = result + values.mean
    return jnp.where(mask > 0, result, 0.0)


@register("whitening", "none", aliases=("identity",))
def none(advantages: jax.Array, mask: jax.Array) -> jax.Array:
    """The advantages as they are.

        A'_t = A_t

    Args:
        advantages: `[N, T]`.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Source: none needed.
    """
    enter("none", advantages, mask)
    return masked(advantages, mask)


@register("whitening", "batch", aliases=("masked_whiten",), paper="arXiv:2005.12729")
def batch(
    advantages: jax.Array,
    mask: jax.Array,
    *,
    shift_mean: bool = True,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-8,
    eps_place: EpsPlace = "variance",
) -> jax.Array:
    """Mean 0 and deviation 1 over all actions of the batch; a long row weighs more.

    The defaults are those of verl, SkyRL and Tunix. OpenRLHF: `ddof=0, eps_place="floor"`, and
    `use_std=False` for its no_std_norm; AReaL: `eps=1e-5, eps_place="std"`. SkyRL's batch
    normalisation takes the mean over padding too: that is not offered.

        A'_t = (A_t − μ) / sqrt(σ² + eps),   σ² = Σ (A − μ)² / (n − ddof), over n actions

    Args:
        advantages: `[N, T]`.
        mask: `[N, T]` 1 on actions.
        shift_mean: whether the mean becomes 0; else it is added back after the scaling.
        use_std: whether to scale at all.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: what keeps the divisor from 0.
        eps_place: where it stands: `"variance"` sqrt(σ² + eps), `"floor"` sqrt(max(σ², eps)),
            `"std"` σ + eps.

    Returns:
        `[N, T]` float32, 0 where the mask is 0; exactly 0 where all advantages are equal and
        the mean is shifted.

    Source: Engstrom et al. 2020, Implementation matters, arXiv:2005.12729.
    """
    enter("batch", advantages, mask)
    return scaled(
        spread(advantages, mask, ddof=ddof),
        mask,
        shift_mean=shift_mean,
        use_std=use_std,
        eps=eps,
        eps_place=eps_place,
    )
