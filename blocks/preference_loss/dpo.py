"""DPO, and what has been added to its margin."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, at_least
from .inputs import CLAMP, check, enter, log_sigmoid, smoothed


@register(
    "preference_loss", "dpo", aliases=("sigmoid",), paper="arXiv:2305.18290", needs=("reference",)
)
def dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    length_normalized: bool = False,
) -> jax.Array:
    """The policy's own reward should prefer the chosen completion.

        c, j = log π/π_ref of the chosen and the rejected one,   u = c − j
        loss = −(1 − ε) log σ(β u) − ε log σ(−β u)

    With ε > 0 it is conservative DPO (OpenRLHF); TRL's "sigmoid" ignores ε. With
    `length_normalized`, c and j are divided by their lengths (TRL's "sigmoid_norm").

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        label_smoothing: ε, the share of labels taken to be wrong, below ½.
        length_normalized: whether c and j are means over tokens.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or ε is not in [0, ½).

    Source: DPO, arXiv:2305.18290, equation 7; ε: Mitchell 2023, https://ericmitchell.ai/cdpo.pdf.
    """
    check("dpo", beta, label_smoothing)
    pair = enter("dpo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    margin = (pair.per_token if length_normalized else pair).margin
    return smoothed(beta * margin, label_smoothing)


@register("preference_loss", "f_dpo", paper="arXiv:2309.16240", needs=("reference",))
def f_dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    divergence: Literal["forward_kl", "js", "alpha"] = "js",
    alpha: float = 0.5,
) -> jax.Array:
    """DPO with another divergence from the reference than the reverse KL.

        loss = −log σ(β (s(c) − s(j)))
        forward_kl: s(t) = 1 − exp(−t)      js: s(t) = log 2 + log σ(t)
        alpha: s(t) = (exp((α − 1) t) − 1)/(α − 1), t itself at α = 1

    Exponents are bounded at 80, as in TRL for "alpha".

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        divergence: which divergence.
        alpha: α, of the divergence "alpha".

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Wang et al. 2023, f-DPO, arXiv:2309.16240.
    """
    check("f_dpo", beta)
    pair = enter("f_dpo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)

    def score(t: jax.Array) -> jax.Array:
        if divergence == "forward_kl":
            return 1.0 - jnp.exp(jnp.minimum(-t, CLAMP))
        if divergence == "js":
            return jnp.log(2.0) + log_sigmoid(t)
        if alpha == 1.0:
            return t
        return (jnp.exp(jnp.minimum((alpha - 1.0) * t, CLAMP)) - 1.0) / (alpha - 1.0)

    return -log_sigmoid(beta * (score(pair.up) - score(pair.down)))


@register(
    "preference_loss",
    "r_dpo",
    aliases=("length_regularised_dpo",),
    paper="arXiv:2403.19159",
    needs=("reference",),
)
def r_dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    alpha: float = 0.01,
) -> jax.Array:
    """DPO under a reward that pays α less for every token.

        loss = −log σ(β u + α (|y_c| − |y_j|))

    A pair whose chosen completion is the longer one needs less margin, the other way round more:
    the policy is not taught to be long for its own sake.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        alpha: α, per token of difference.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Park et al. 2024, R-DPO, arXiv:2403.19159, equation 9.
    """
    check("r_dpo", beta)
    pair = enter("r_dpo", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    longer = pair.chosen_length - pair.rejected_length
    return -log_sigmoid(beta * pair.margin + alpha * longer)


@register(
    "preference_loss",
    "dpo_positive",
    aliases=("dpop",),
    paper="arXiv:2402.13228",
    needs=("reference",),
)
def dpo_positive(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.3,
    penalty: float = 50.0,
) -> jax.Array:
    """DPO that refuses to make the chosen completion less probable.

        loss = −log σ(β (u − λ max(0, log π_ref/π of the chosen one)))

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward is read.
        penalty: λ.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, β is not positive or λ is negative.

    Source: Pal et al. 2024, Smaug (DPOP), arXiv:2402.13228, equation 3.
    """
    check("dpo_positive", beta)
    at_least("dpo_positive", "penalty", penalty, 0.0)
    pair = enter(
        "dpo_positive", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths
    )
    lost = jnp.maximum(-pair.up, 0.0)
    return -log_sigmoid(beta * (pair.margin - penalty * lost))


@register(
    "preference_loss", "dpo_sft", aliases=("rpo",), paper="arXiv:2404.19733", needs=("reference",)
)
def dpo_sft(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.1,
    coef: float = 1.0,
) -> jax.Array:
    """DPO with imitation of the chosen completion beside it.

        loss = −log σ(β u) − w logπ(y_c)/|y_c|

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion.
        beta: β, how sharply the policy's own reward β log π/π_ref is read.
        coef: w, the weight of the imitation.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ or β is not positive.

    Source: Pang et al. 2024, Iterative reasoning preference optimization, arXiv:2404.19733.
    """
    check("dpo_sft", beta)
    pair = enter("dpo_sft", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths)
    return -log_sigmoid(beta * pair.margin) - coef * pair.per_token.chosen


@register("preference_loss", "discopop", paper="arXiv:2406.08414", needs=("reference",))
def discopop(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array,
    ref_rejected_logp: jax.Array,
    lengths: jax.Array,
    *,
    beta: float = 0.05,
    tau: float = 0.05,
) -> jax.Array:
    """A mixture of the logistic and the exponential loss, found by search.

        z = β u,   w = σ(z/τ),   loss = −(1 − w) log σ(z) + w exp(−z)

    Exponents are bounded at 80.

    Args:
        chosen_logp: `[B]` log-probability of the chosen completion, summed over its tokens.
        rejected_logp: `[B]` that of the rejected one.
        ref_chosen_logp: `[B]` that of the chosen one under the reference.
        ref_rejected_logp: `[B]` that of the rejected one under the reference.
        lengths: `[B, 2]` tokens of the chosen and of the rejected completion, not used.
        beta: β, how sharply the policy's own reward is read.
        tau: τ, how soon the mixture turns.

    Returns:
        `[B]` float32, a loss a pair.

    Raises:
        ZootomyError: if the shapes differ, or β or τ is not positive.

    Source: Lu et al. 2024, DiscoPOP, arXiv:2406.08414, equation 5.
    """
    check("discopop", beta)
    above("discopop", "tau", tau)
    pair = enter(
        "discopop", chosen_logp, rejected_logp, ref_chosen_logp, ref_rejected_logp, lengths
    )
    z = beta * pair.margin
    mix = jax.nn.sigmoid(z / tau)
    return -(1.0 - mix) * log_sigmoid(z) + mix * jnp.exp(jnp.minimum(-z, CLAMP))
