"""Losses that judge the chosen and the rejected completion each by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above
from .inputs import check, enter, log_sigmoid
from .kto_terms import kto_terms


@register(
    "preference_loss", "nca", aliases=("nca_pair",), paper="arXiv:2402.05369", needs=("reference",)
)
def nca(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
) -> jax.Array:
    """Raise the chosen completion, and keep both near the reference.

        loss = −log σ(β c) − ½ log σ(−β c) − ½ log σ(−β j)

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

    Source: Chen et al. 2024, NCA, arXiv:2402.05369, equation 11.
    """
    check("nca", beta)
    pair = enter("nca", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    up, down = beta * pair.up, beta * pair.down
    return -log_sigmoid(up) - 0.5 * log_sigmoid(-up) - 0.5 * log_sigmoid(-down)


@register(
    "preference_loss",
    "sppo",
    aliases=("sppo_hard",),
    paper="arXiv:2405.00675",
    needs=("reference",),
)
def sppo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
) -> jax.Array:
    """Both log-ratios should be numbers: ½/β up, ½/β down.

        loss = (c − 1/(2β))² + (j + 1/(2β))²

    The form for preferences that are certain (TRL's "sppo_hard").

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

    Source: Wu et al. 2024, SPPO, arXiv:2405.00675.
    """
    check("sppo", beta)
    pair = enter("sppo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    aim = 0.5 / beta
    return jnp.square(pair.up - aim) + jnp.square(pair.down + aim)


@register(
    "preference_loss", "bco", aliases=("bco_pair",), paper="arXiv:2404.04656", needs=("reference",)
)
def bco(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    shift: float = 0.0,
) -> jax.Array:
    """A classifier that tells chosen from rejected completions.

        loss = −log σ(β c − δ) − log σ(−(β j − δ))

    δ is the shift of the classifier, in the paper a running mean of the rewards β c and β j; TRL's
    paired form has none (δ = 0).

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        shift: δ.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Jung et al. 2024, BCO, arXiv:2404.04656, equation 9.
    """
    check("bco", beta)
    pair = enter("bco", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    return -log_sigmoid(beta * pair.up - shift) - log_sigmoid(shift - beta * pair.down)


@register("preference_loss", "apo_zero", paper="arXiv:2408.06266", needs=("reference",))
def apo_zero(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
) -> jax.Array:
    """Raise the chosen completion and lower the rejected one, for data better than the policy.

        loss = 1 − σ(β c) + σ(β j)

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

    Source: D'Oosterlinck et al. 2024, APO, arXiv:2408.06266, equation 4.
    """
    check("apo_zero", beta)
    pair = enter(
        "apo_zero", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths
    )
    return jax.nn.sigmoid(-beta * pair.up) + jax.nn.sigmoid(beta * pair.down)


@register("preference_loss", "apo_down", paper="arXiv:2408.06266", needs=("reference",))
def apo_down(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
) -> jax.Array:
    """Lower both, the rejected one more, for a policy better than the data.

        loss = σ(β c) + 1 − σ(β (c − j))

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

    Source: D'Oosterlinck et al. 2024, APO, arXiv:2408.06266, equation 5.
    """
    check("apo_down", beta)
    pair = enter(
        "apo_down", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths
    )
    return jax.nn.sigmoid(beta * pair.up) + jax.nn.sigmoid(-beta * pair.margin)


@register("preference_loss", "kto", paper="arXiv:2402.01306", needs=("reference", "whole_batch"))
def kto(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> jax.Array:
    """Gains and losses against a reference point, as people feel them.

        kl = sg(max(mean of all c and j of the batch, 0))
        loss = λ_D (1 − σ(β (c − kl))) + λ_U (1 − σ(β (kl − j)))

    The paper estimates kl from mismatched prompts and completions; here the batch stands in for
    them. For unpaired data, or an estimate of your own, call `kto_terms`. Couples all rows of the
    batch.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        desirable_weight: λ_D.
        undesirable_weight: λ_U.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, or β or a weight is not positive.

    Source: Ethayarajh et al. 2024, KTO, arXiv:2402.01306, equation 8.
    """
    check("kto", beta)
    above("kto", "desirable_weight", desirable_weight)
    above("kto", "undesirable_weight", undesirable_weight)
    pair = enter("kto", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    kl = 0.5 * (pair.up.mean() + pair.down.mean())
    terms = kto_terms(
        jnp.concatenate([pair.up, pair.down]),
        jnp.arange(2 * pair.up.shape[0]) < pair.up.shape[0],
        kl,
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )
    gain, loss = jnp.split(terms, 2)
    return gain + loss
