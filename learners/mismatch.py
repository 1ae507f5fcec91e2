"""How far the engine's log-probabilities are from the trainer's, and what is done about it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rollout import RolloutConfig
from .algorithm import Algorithm

RECOMMENDED = "tis"
CORRECTED = 0.01  # a weight further from 1 than this corrects its token


def recommend_correction(algorithm: Algorithm, rollout: RolloutConfig) -> tuple[Algorithm, str]:
    """The algorithm with a correction for the engine's drift, where it should have one.

    Args:
        algorithm: as it was chosen.
        rollout: names the engine; `recommended_correction` switches this off.

    Returns:
        The algorithm, and a line that says what was changed; empty where nothing was.
    """
    if rollout.exact or not rollout.recommended_correction or algorithm.correction is not None:
        return algorithm, ""
    if not rollout.reports_logp:
        return algorithm, (
            f"rollout engine {rollout.engine!r} reports no log-probabilities, so its drift from "
            "the trainer is neither measured nor corrected"
        )
    return algorithm.override({"correction": RECOMMENDED}), (
        f"rollout engine {rollout.engine!r} does not compute as the trainer does: correction "
        f"{RECOMMENDED!r} is switched on (--rollout.recommended_correction False leaves it off)"
    )


def mismatch_metrics(
    old_logp: Any, rollout_logp: Any, mask: Any, correction: Any = None
) -> dict[str, float]:
    """The drift of a batch in numbers.

        d = old_logp − rollout_logp,   ρ = exp(d),   effective sample size = (Σρ)² / (n Σρ²)

    Args:
        old_logp: `[N, T]` log-probabilities in the trainer, before the update, in nats.
        rollout_logp: `[N, T]` those that the engine sampled with.
        mask: `[N, T]` 1 on actions.
        correction: `[N, T]` weights of the algorithm's correction; None without one.

    Returns:
        `mismatch/abs_mean`, `mismatch/abs_max` (nats), `mismatch/ratio_min`, `mismatch/ratio_max`,
        `mismatch/effective_sample_size` (a share of the actions), and with a correction
        `mismatch/corrected` (weight further than 1% from 1) and `mismatch/rejected` (weight 0),
        shares of the actions. Empty without an action.
    """
    actions = np.asarray(mask) > 0
    if not actions.any():
        return {}
    d = (np.asarray(old_logp, np.float64) - np.asarray(rollout_logp, np.float64))[actions]
    ratio = np.exp(d)
    found = {
        "mismatch/abs_mean": np.abs(d).mean(),
        "mismatch/abs_max": np.abs(d).max(),
        "mismatch/ratio_min": ratio.min(),
        "mismatch/ratio_max": ratio.max(),
        "mismatch/effective_sample_size": ratio.sum() ** 2 / (len(d) * (ratio**2).sum()),
    }
    if correction is not None:
        weights = np.asarray(correction, np.float64)[actions]
        found["mismatch/rejected"] = (weights == 0).mean()
        found["mismatch/corrected"] = ((weights != 0) & (np.abs(weights - 1) > CORRECTED)).mean()
    return {name: float(value) for name, value in found.items()}
