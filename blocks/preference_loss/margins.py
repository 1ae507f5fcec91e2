"""Losses of the margin between chosen and rejected, other than DPO's."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above
from .inputs import check, enter, hinged, log_sigmoid, smoothed, to_target


@register(
    "preference_loss", "hinge", aliases=("slic",), paper="arXiv:2309.06657", needs=("reference",)
)
def hinge(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
) -> jax.Array:
    """No loss once the margin is large enough.

        loss = max(0, 1 − β u)

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: SLiC, arXiv:2305.10425; on DPO's margin: Liu et al. 2023, RSO, arXiv:2309.06657.
    """
    check("hinge", beta)
    pair = enter("hinge", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    return hinged(beta * pair.margin)


@register("preference_loss", "ipo", paper="arXiv:2310.12036", needs=("reference",))
def ipo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    length_normalized: bool = False,
) -> jax.Array:
    """The margin should be a number, not as large as can be.

        loss = (u − 1/(2β))²

    TRL divides c and j by their lengths (`length_normalized=True`); OpenRLHF and oat-llm do not,
    as the paper.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        length_normalized: whether c and j are means over tokens.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Azar et al. 2023, IPO, arXiv:2310.12036, equation 17.
    """
    check("ipo", beta)
    pair = enter("ipo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    return to_target((pair.per_token if length_normalized else pair).margin, beta)


@register("preference_loss", "robust", paper="arXiv:2403.00409", needs=("reference",))
def robust(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> jax.Array:
    """DPO's loss, unbiased under a known share of wrong labels.

        loss = (−(1 − ε) log σ(β u) + ε log σ(−β u)) / (1 − 2ε)

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        label_smoothing: ε, the share of labels that are wrong, below ½.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in [0, ½).

    Source: Chowdhury et al. 2024, robust DPO, arXiv:2403.00409, equation 12.
    """
    check("robust", beta, label_smoothing)
    pair = enter("robust", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    z, e = beta * pair.margin, label_smoothing
    return (-(1.0 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / (1.0 - 2.0 * e)


@register(
    "preference_loss", "exo", aliases=("exo_pair",), paper="arXiv:2402.00856", needs=("reference",)
)
def exo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.001,
) -> jax.Array:
    """The reverse KL from the policy's own preference to the label.

        p = σ(β u),   loss = p log(p / (1 − ε)) + (1 − p) log((1 − p) / ε)

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        label_smoothing: ε, above 0 and below ½.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in (0, ½).

    Source: Ji et al. 2024, EXO, arXiv:2402.00856, equation 20.
    """
    check("exo", beta, label_smoothing)
    above("exo", "label_smoothing", label_smoothing)
    pair = enter("exo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    z, e = beta * pair.margin, label_smoothing
    chosen = jax.nn.sigmoid(z) * (log_sigmoid(z) - jnp.log(1.0 - e))
    return chosen + jax.nn.sigmoid(-z) * (log_sigmoid(-z) - jnp.log(e))


@register("preference_loss", "aot", paper="arXiv:2406.05882", needs=("reference", "whole_batch"))
def aot(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    paired: bool = True,
) -> jax.Array:
    """DPO on the distributions of the batch: sorted margins against sorted margins.

        paired:    d = sort(log π ratio of chosen to rejected) − sort(log π_ref ratio)
        unpaired:  d = sort(c) − sort(j)
        loss = −(1 − ε) log σ(β d) − ε log σ(−β d)

    Each pair carries the loss of its own place in the order. Couples all rows of the batch.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        label_smoothing: ε, the share of labels taken to be wrong, below ½.
        paired: which of the two.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in [0, ½).

    Source: Melnyk et al. 2024, AOT, arXiv:2406.05882.
    """
    check("aot", beta, label_smoothing)
    pair = enter("aot", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    if paired:
        own = pair.chosen - pair.rejected
        other = jax.lax.stop_gradient(own - pair.margin)
    else:
        own, other = pair.up, pair.down
    places = jnp.argsort(jnp.argsort(own))
    return smoothed(beta * (own - jnp.sort(other)[places]), label_smoothing)
