"""How far the engine is from the trainer: numbers to log, whatever the correction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..masking import count, masked, masked_mean
from .inputs import log_drift, row_mean, row_sum


def drift_metrics(
    old_logp: jax.Array, rollout_logp: jax.Array, mask: jax.Array, *, clamp: float = 20.0
) -> dict[str, jax.Array]:
    """Divergences and perplexities of the trainer's and the engine's log-probabilities.

        q = logπ_old − logπ_rollout on the sampled tokens
        kl = mean(−q),   k3_kl = mean(exp(q) − q − 1),   chi2_token = mean(ρ²) − 1,
        chi2_seq = mean over sequences of exp(2 Σ q) − 1,   ppl = mean exp(−mean logπ), ...

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        clamp: bound on q, and on its sum, before exp in the χ² numbers.

    Returns:
        name -> `[]` float32: `kl`, `k3_kl`, `chi2_token`, `chi2_seq`, `training_ppl`,
        `training_log_ppl`, `rollout_ppl`, `rollout_log_ppl`, `log_ppl_diff`,
        `log_ppl_abs_diff`, `log_ppl_diff_max`, `log_ppl_diff_min`, `ppl_ratio`. Sequences
        without an action have no part.

    Source: the mismatch metrics of verl; Liu et al. 2025, https://richardli.xyz/rl-collapse.
    """
    q = log_drift("drift_metrics", old_logp, rollout_logp, mask)
    old, rollout = (masked(jax.lax.stop_gradient(x), mask) for x in (old_logp, rollout_logp))
    present = (count(mask, axis=1) > 0)[:, None]
    old_mean, rollout_mean = row_mean(old, mask), row_mean(rollout, mask)
    difference = rollout_mean - old_mean
    bounded, total = jnp.clip(q, -clamp, clamp), jnp.clip(row_sum(q, mask), -clamp, clamp)

    def over_rows(x: jax.Array) -> jax.Array:
        return masked_mean(x, present)

    return {
        "kl": masked_mean(-q, mask),
        "k3_kl": masked_mean(jnp.exp(q) - q - 1.0, mask),
        "chi2_token": masked_mean(jnp.exp(2.0 * bounded), mask) - 1.0,
        "chi2_seq": over_rows(jnp.exp(2.0 * total)) - 1.0,
        "training_ppl": over_rows(jnp.exp(-old_mean)),
        "training_log_ppl": over_rows(-old_mean),
        "rollout_ppl": over_rows(jnp.exp(-rollout_mean)),
        "rollout_log_ppl": over_rows(-rollout_mean),
        "log_ppl_diff": over_rows(difference),
        "log_ppl_abs_diff": over_rows(jnp.abs(difference)),
        "log_ppl_diff_max": jnp.where(present, difference, -jnp.inf).max(),
        "log_ppl_diff_min": jnp.where(present, difference, jnp.inf).min(),
        "ppl_ratio": over_rows(jnp.exp(difference)),
    }
