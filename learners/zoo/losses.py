"""Named algorithms that differ in how an action is pushed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import block

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "gspo": {
        "summary": "One importance ratio a sequence, clipped as a whole.",
        "paper": "arXiv:2507.18071",
        "reward_shaping": "group_norm",
        "ratio": "sequence",
        "policy_loss": block("ppo_clip", clip_low=3e-4, clip_high=4e-4),
        "aggregation": "sequence_mean_token_mean",
    },
    "gspo_token": {
        "summary": "GSPO whose gradient goes through each token's own log-probability.",
        "paper": "arXiv:2507.18071",
        "reward_shaping": "group_norm",
        "ratio": "sequence_token",
        "policy_loss": block("ppo_clip", clip_low=3e-4, clip_high=4e-4),
        "aggregation": "sequence_mean_token_mean",
    },
    "luspo": {
        "summary": "GSPO whose sequences count by their length, so that short ones win nothing.",
        "paper": "arXiv:2602.05261",
        "reward_shaping": "group_norm",
        "ratio": "sequence",
        "policy_loss": block("luspo", clip_low=2e-3, clip_high=2.5e-3),
        "aggregation": "sequence_mean_token_mean",
    },
    "cispo": {
        "deviations": (
            "The paper gives no number for its upper bound; 5 is the one of later studies.",
            "Without the dynamic sampling and the length penalty that the paper takes from DAPO.",
        ),
        "summary": "The weight is clipped and not the update: every token keeps its gradient.",
        "paper": "arXiv:2506.13585",
        "reward_shaping": "group_norm",
        "policy_loss": block("cispo", low=0.0, high=5.0),
        "aggregation": "token_mean",
    },
    "sapo": {
        "summary": "A smooth gate in place of the clip, narrower for bad actions.",
        "paper": "arXiv:2511.20347",
        "reward_shaping": "group_norm",
        "policy_loss": block("sapo", tau_positive=1.0, tau_negative=1.05),
        "aggregation": "sequence_mean_token_mean",
    },
    "gmpo": {
        "summary": "The geometric mean of a sequence's ratios, clipped token by token and wider.",
        "paper": "arXiv:2507.20673",
        "reward_shaping": "group_norm",
        "policy_loss": block("gmpo", clip_low=0.4, clip_high=0.4),
        "aggregation": "sequence_mean_token_mean",
    },
    "vespo": {
        "deviations": (
            "A mean over sequences of a sum over tokens; the paper's own divisor is not stated.",
        ),
        "summary": "The whole sequence's ratio through a kernel that fades on both sides.",
        "paper": "arXiv:2602.10693",
        "reward_shaping": "group_norm",
        "policy_loss": block(
            "vespo", k_positive=2.0, lambda_positive=3.0, k_negative=3.0, lambda_negative=2.0
        ),
        "correction": "bypass",
        "aggregation": "sequence_mean_token_sum",
    },
    "dppo": {
        "deviations": (
            "Advantages and the mean over tokens are GRPO's and DAPO's; the paper's subject is the "
            "mask.",
        ),
        "summary": "A trust region in probabilities around the engine's policy, not in ratios.",
        "paper": "arXiv:2602.04879",
        "reward_shaping": "group_norm",
        "policy_loss": block("dppo", divergence="tv", delta_low=0.15, delta_high=0.15),
        "correction": "bypass",
        "aggregation": "token_mean",
    },
    "m2po": {
        "deviations": (
            "The bound holds in each mini-batch, and its mean over tokens is the mini-batch's; "
            "the paper writes both for a group.",
        ),
        "summary": "Drops the fewest tokens that keep the second moment of the log-ratio small.",
        "paper": "arXiv:2510.01161",
        "reward_shaping": "group_norm",
        "policy_loss": block("m2po", threshold=0.04),
        "correction": "bypass",
        "aggregation": "token_mean",
    },
    "ipo_mask": {
        "deviations": (
            "No paper: an early default loss of prime-rl; later versions look at the sign of the "
            "advantage (`policy_loss.by_sign`).",
            "The mean is over the mini-batch's tokens.",
        ),
        "summary": "Tokens whose probability moved far are dropped; all are pulled back a little.",
        "paper": "https://github.com/PrimeIntellect-ai/prime-rl",
        "reward_shaping": "group_mean",
        "policy_loss": block("ipo_mask", mask_low=0.2, mask_high=0.2, kl_tau=1e-3),
        "correction": "bypass",
        "aggregation": "token_mean",
    },
    "clip_cov": {
        "deviations": (
            "The tokens taken out are those of the highest covariance; the paper draws them.",
        ),
        "summary": "A few tokens whose covariance costs entropy get no gradient.",
        "paper": "arXiv:2505.22617",
        "reward_shaping": "group_norm",
        "policy_loss": block(
            "clip_cov", clip_low=1.0, clip_high=1.0, fraction=2e-4, cov_low=1.0, cov_high=5.0
        ),
        "aggregation": "token_mean",
    },
    "kl_cov": {
        "deviations": ("The fraction is that of the 7B runs; for 32B it is 2e-4.",),
        "summary": "A few tokens whose covariance costs entropy are held back by a KL.",
        "paper": "arXiv:2505.22617",
        "reward_shaping": "group_norm",
        "policy_loss": block("kl_cov", fraction=2e-3, coef=1.0),
        "aggregation": "token_mean",
    },
    "fipo": {
        "deviations": ("The discount counts actions; the published code counts positions.",),
        "summary": "DAPO whose tokens count by how the policy moves on what follows them.",
        "paper": "arXiv:2603.19835",
        "reward_shaping": ("overlong_penalty", "group_norm"),
        "group_filter": block("zero_std", strategy="refill"),
        "policy_loss": block(
            "fipo", clip_low=0.2, clip_high=0.28, clip_dual=10.0, half_life=32.0, influence_clip=0.2
        ),
        "aggregation": "token_mean",
    },
    "real": {
        "deviations": (
            "A reward above 0 is the label of a good completion; there is no other use of it.",
            "Every prompt counts the same; the settings of the paper's runs are not reproduced.",
        ),
        "summary": "Rewards as labels: a group is classified by how the policy moves on it.",
        "paper": "arXiv:2602.05630",
        "reward_shaping": "identity",
        "policy_loss": block("real", tau=0.5),
        "aggregation": "prompt_mean",
    },
}
