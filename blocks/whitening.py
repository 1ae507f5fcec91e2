"""On what scale the advantages stand: shift and scale over actions."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ..registry import register
from .checks import one_of, rank, same_shape
from .masking import count, masked
from .statistics import (
    Spread,
    dense_ids,
    group_spread,
    safe_divide,
    safe_sqrt,
    spread,
    weighted_mean,
)

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


@register("whitening", "sequence", paper="arXiv:2601.05242")
def sequence(
    advantages: jax.Array,
    mask: jax.Array,
    *,
    shift_mean: bool = True,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-8,
    eps_place: EpsPlace = "variance",
) -> jax.Array:
    """Mean 0 and deviation 1 over the completions of the batch, each counted once.

    Under `batch` a completion of 1000 tokens counts a thousand times; here its tokens share one
    vote. Where all tokens of a row have one advantage, this is the whitening of those N numbers.

        μ = 1/N Σ_n mean_t A,   σ² = 1/(N − ddof) Σ_n mean_t (A − μ)²
        A'_t = (A_t − μ) / sqrt(σ² + eps),   N rows with an action

    Args:
        advantages: `[N, T]`.
        mask: `[N, T]` 1 on actions.
        shift_mean: whether the mean becomes 0; else it is added back after the scaling.
        use_std: whether to scale at all.
        ddof: 1 for the unbiased variance of N rows, 0 for that of the population.
        eps: what keeps the divisor from 0.
        eps_place: where it stands, as in `batch`.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Source: Liu et al. 2026, GDPO's batch-wise normalisation, arXiv:2601.05242.
    """
    enter("sequence", advantages, mask)
    actions = mask > 0
    lengths = count(mask, axis=1)[:, None]
    votes = safe_divide(actions.astype(jnp.float32), lengths)
    x = masked(advantages, mask)
    mean = weighted_mean(x.reshape(-1), votes.reshape(-1), 0)
    deviation = jnp.where(actions, x - mean, 0.0)
    rows = (lengths > 0).astype(jnp.float32).sum()
    variance = (votes * deviation**2).sum() / jnp.maximum(rows - ddof, 1.0)
    return scaled(
        Spread(mean, safe_sqrt(variance), deviation, rows),
        mask,
        shift_mean=shift_mean,
        use_std=use_std,
        eps=eps,
        eps_place=eps_place,
    )


@register("whitening", "group", needs=("groups",))
def group(
    advantages: jax.Array,
    mask: jax.Array,
    *,
    group_ids: jax.Array,
    shift_mean: bool = True,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-8,
    eps_place: EpsPlace = "variance",
) -> jax.Array:
    """Mean 0 and deviation 1 over the actions of each prompt's group.

        A'_t = (A_t − μ_group) / sqrt(σ_group² + eps),   over the actions of the group

    Args:
        advantages: `[N, T]`.
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the completions of one prompt; any numbers, in any order.
        shift_mean: whether the mean becomes 0; else it is added back after the scaling.
        use_std: whether to scale at all.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: what keeps the divisor from 0.
        eps_place: where it stands, as in `batch`.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Source: Fu et al. 2025, AReaL's group level of advantage normalisation, arXiv:2505.24298.
    """
    enter("group", advantages, mask)
    return scaled(
        group_spread(advantages, mask, dense_ids(group_ids), ddof=ddof),
        mask,
        shift_mean=shift_mean,
        use_std=use_std,
        eps=eps,
        eps_place=eps_place,
    )


@register("whitening", "row")
def row(
    advantages: jax.Array,
    mask: jax.Array,
    *,
    shift_mean: bool = True,
    use_std: bool = True,
    ddof: int = 0,
    eps: float = 1e-8,
    eps_place: EpsPlace = "floor",
) -> jax.Array:
    """Mean 0 and deviation 1 within each row.

    What all tokens of a row share is lost: for advantages that differ from token to token. The
    defaults are those of OpenRLHF's masked_normalize.

        A'_t = (A_t − μ_row) / sqrt(max(σ_row², eps)),   over the actions of the row

    Args:
        advantages: `[N, T]`.
        mask: `[N, T]` 1 on actions.
        shift_mean: whether the mean becomes 0; else it is added back after the scaling.
        use_std: whether to scale at all.
        ddof: 1 for the unbiased variance, 0 for that of the population.
        eps: what keeps the divisor from 0.
        eps_place: where it stands, as in `batch`.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Source: Hu et al. 2024, OpenRLHF, arXiv:2405.11143.
    """
    enter("row", advantages, mask)
    return scaled(
        spread(advantages, mask, 1, ddof=ddof),
        mask,
        shift_mean=shift_mean,
        use_std=use_std,
        eps=eps,
        eps_place=eps_place,
    )
