"""Losses without a reference model."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from .inputs import CLAMP, check, enter, hinged, log_sigmoid, smoothed, to_target


@register("preference_loss", "simpo", paper="arXiv:2405.14734")
def simpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
    label_smoothing: float = 0.0,
    alpha: float = 0.0,
    form: Literal["sigmoid", "hinge"] = "sigmoid",
) -> jax.Array:
    """The mean log-probability should prefer the chosen completion, by a margin.

        a = logπ(y)/|y|;   with α ≠ 0:  a ← (1 − exp(−α a))/α  (AlphaPO)
        z = a_c − a_j − γ/β
        sigmoid: −(1 − ε) log σ(β z) − ε log σ(−β z)      hinge: max(0, 1 − β z)

    oat-llm gives the ratio γ/β itself.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference, not used.
        ref_rejected_logp: `[B]` that of the rejected one under the reference, not used.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β.
        gamma: γ, the margin times β.
        label_smoothing: ε, the share of labels taken to be wrong, below ½.
        alpha: α of AlphaPO; 0 for SimPO.
        form: which of the two.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in [0, ½).

    Source: Meng et al. 2024, SimPO, arXiv:2405.14734, equation 6; AlphaPO, arXiv:2501.03884.
    """
    check("simpo", beta, label_smoothing)
    pair = enter("simpo", chosen_logp, rejected_logp, None, None, lengths).per_token
    chosen, rejected = pair.chosen, pair.rejected
    if alpha != 0.0:
        chosen, rejected = (
            (1.0 - jnp.exp(jnp.minimum(-alpha * mean, CLAMP))) / alpha
            for mean in (chosen, rejected)
        )
    z = beta * (chosen - rejected) - gamma
    if form == "hinge":
        return hinged(z)
    return smoothed(z, label_smoothing)


@register("preference_loss", "cpo", paper="arXiv:2401.08417")
def cpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    form: Literal["sigmoid", "hinge", "ipo"] = "sigmoid",
    nll: float = 1.0,
) -> jax.Array:
    """DPO with a uniform reference, and imitation of the chosen completion.

        u = logπ(y_c) − logπ(y_j)
        sigmoid: −(1 − ε) log σ(β u) − ε log σ(−β u)   hinge: max(0, 1 − β u)   ipo: (u − 1/(2β))²
        loss = that − w logπ(y_c)/|y_c|

    The paper's imitation term has w = 1; TRL adds it outside of this loss.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference, not used.
        ref_rejected_logp: `[B]` that of the rejected one under the reference, not used.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        label_smoothing: ε, the share of labels taken to be wrong, below ½.
        form: which of the three.
        nll: w, the weight of the imitation.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in [0, ½).

    Source: Xu et al. 2024, CPO, arXiv:2401.08417, equation 4.
    """
    check("cpo", beta, label_smoothing)
    pair = enter("cpo", chosen_logp, rejected_logp, None, None, lengths)
    if form == "sigmoid":
        loss = smoothed(beta * pair.margin, label_smoothing)
    elif form == "hinge":
        loss = hinged(beta * pair.margin)
    else:
        loss = to_target(pair.margin, beta)
    return loss - nll * pair.per_token.chosen


@register("preference_loss", "orpo", paper="arXiv:2403.07691")
def orpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    nll: float = 1.0,
) -> jax.Array:
    """Imitation of the chosen completion, and a better odds ratio than the rejected one's.

        a = logπ(y)/|y|,   odds = exp(a)/(1 − exp(a))
        loss = −w a_c − β log σ(log odds_c − log odds_j)

    The paper's λ is β.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference, not used.
        ref_rejected_logp: `[B]` that of the rejected one under the reference, not used.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, the weight of the odds ratio.
        nll: w, the weight of the imitation.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Hong et al. 2024, ORPO, arXiv:2403.07691, equations 6 and 7.
    """
    check("orpo", beta)
    pair = enter("orpo", chosen_logp, rejected_logp, None, None, lengths).per_token
    chosen, rejected = pair.chosen, pair.rejected
    odds = chosen - rejected - (_log1mexp(chosen) - _log1mexp(rejected))
    return -nll * chosen - beta * log_sigmoid(odds)


@register("preference_loss", "sft", needs=("whole_batch",))
def sft(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    average: Literal["tokens", "sequences"] = "tokens",
) -> jax.Array:
    """Imitation of the chosen completion alone.

        tokens:  loss = −logπ(y_c) · B / Σ |y_c|      sequences:  loss = −logπ(y_c)/|y_c|

    Averaged over the batch, "tokens" counts each token the same (TRL), "sequences" each
    completion. With "tokens" it couples all rows of the batch.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference, not used.
        ref_rejected_logp: `[B]` that of the rejected one under the reference, not used.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        average: what counts the same.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ.

    Source: maximum likelihood, as TRL's "sft" term of DPO.
    """
    pair = enter("sft", chosen_logp, rejected_logp, None, None, lengths)
    if average == "sequences":
        return -pair.per_token.chosen
    return -pair.chosen / pair.chosen_length.mean()


def _log1mexp(x: jax.Array) -> jax.Array:
    """log(1 − exp x) for x < 0; x is held a little below 0, where it would be −inf."""
    return jnp.log(-jnp.expm1(jnp.minimum(x, -1e-7)))
