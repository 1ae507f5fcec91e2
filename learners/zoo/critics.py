"""Named algorithms with a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import block

CRITICS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {
        "deviations": (
            "The KL coefficient is constant; the paper's adaptive one is `adaptive_kl`.",
        ),
        "summary": "A critic says what each token was worth; clipped ratios, KL in the reward.",
        "paper": "arXiv:1707.06347",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.05),
        "advantage": block("gae", gamma=1.0, lam=0.95),
        "whitening": "batch",
        "aggregation": "token_mean",
        "value_loss": block("clipped_mse", clip=0.2),
    },
    "dual_clip_ppo": {
        "deviations": ("The KL coefficient is constant.",),
        "summary": "PPO with a second clip that bounds the loss of bad actions.",
        "paper": "arXiv:1912.09729",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.05),
        "advantage": block("gae", gamma=1.0, lam=0.95),
        "whitening": "batch",
        "policy_loss": block("dual_clip", clip_low=0.2, clip_high=0.2, clip_dual=3.0),
        "aggregation": "token_mean",
        "value_loss": block("clipped_mse", clip=0.2),
    },
    "vapo": {
        "deviations": (
            "The NLL term averages over all actions, not over those of right answers alone, and "
            "takes an advantage above 0 for right.",
            "The critic's pretraining is the run's `critic_warmup` (50 steps in the paper).",
        ),
        "summary": "PPO for long answers: λ by length, another for the critic, imitation of hits.",
        "paper": "arXiv:2504.05118",
        "advantage": block("vapo_gae", alpha=0.05, lam_critic=1.0),
        "policy_loss": block("ppo_clip", clip_low=0.2, clip_high=0.28),
        "aggregation": "token_mean",
        "regularizer": block("nll_positives", coef=0.1),
        "value_loss": block("clipped_mse", clip=0.2),
    },
}
