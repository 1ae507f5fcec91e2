"""The plain policy gradient."""

from __future__ import annotations

from typing import Literal

import jax

from ...registry import register
from ..checks import above
from ..numerics import bounded_exp
from ..types import TokenLoss
from .inputs import approx_kl, clean


@register("policy_loss", "reinforce", aliases=("gpg",), paper="doi:10.1007/BF00992696")
def reinforce(
    log_ratio: jax.Array,
    advantages: jax.Array,
    logp: jax.Array,
    old_logp: jax.Array,
    mask: jax.Array,
    *,
    form: Literal["logp", "ratio"] = "logp",
    clamp: float = 20.0,
) -> TokenLoss:
    """The policy gradient itself: no clip, no bound.

        form "logp":    loss = −A logπ            (the ratio has no part in it)
        form "ratio":   loss = −A r,  r = exp(clip(log r, ±clamp))

    With the ratio `none` both have the same gradient, −A ∇logπ, and differ in the value alone
    (−A logπ, or −A). With the ratio `token` or `sequence` the form "ratio" is the
    importance-weighted policy gradient; the form "logp" ignores the ratio.

    Args:
        log_ratio: `[N, T]` log importance ratios, from the slot `ratio`.
        advantages: `[N, T]` advantages; carry no gradient.
        logp: `[N, T]` log-probabilities under the policy, in nats.
        old_logp: `[N, T]` those before the update, for the statistics.
        mask: `[N, T]` 1 on actions.
        form: which of the two.
        clamp: bound on the log-ratio before exp, in the form "ratio".

    Returns:
        TokenLoss, `[N, T]` float32; statistic `approx_kl`.

    Raises:
        ZootomyError: if the shapes differ or `clamp` is not positive.

    Source: REINFORCE, Williams 1992, doi:10.1007/BF00992696; the loss of GPG, arXiv:2504.02546.
    """
    above("reinforce", "clamp", clamp)
    given = clean("reinforce", log_ratio, advantages, logp, old_logp, mask)
    pushed = given.logp if form == "logp" else bounded_exp(given.log_ratio, clamp)
    return TokenLoss(-given.advantages * pushed, {"approx_kl": approx_kl(given)})
