"""Named algorithms that differ in what a completion is worth beside others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import block

GROUPS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {
        "summary": "Rewards normalised within the group instead of a critic; KL in the loss.",
        "paper": "arXiv:2402.03300",
        "reward_shaping": "group_norm",
        "kl_estimator": "k3",
        "kl_placement": "loss",
        "controller": block("constant", coef=0.04),
        "aggregation": "sequence_mean_token_mean",
    },
    "dr_grpo": {
        "summary": "GRPO without its two biases: no division by the std, none by the length.",
        "paper": "arXiv:2503.20783",
        "reward_shaping": "group_mean",
        "aggregation": "constant_length",
    },
    "dapo": {
        "summary": "Clip higher, resample groups without signal, count tokens, punish overlength.",
        "paper": "arXiv:2503.14476",
        "reward_shaping": ("overlong_penalty", "group_norm"),
        "group_filter": block("zero_std", strategy="refill"),
        "policy_loss": block("ppo_clip", clip_low=0.2, clip_high=0.28),
        "aggregation": "token_mean",
    },
    "maxrl": {
        "deviations": (
            "Clipped ratios, which on the first update are 1, and a mean over tokens; the paper's "
            "estimator is the plain gradient of whole sequences.",
        ),
        "summary": "Advantages in units of the success rate: maximum likelihood of success.",
        "paper": "arXiv:2602.02710",
        "reward_shaping": "maxrl",
        "aggregation": "token_mean",
    },
    "pass_at_k": {
        "deviations": (
            "Clipped ratios, as in verl; the paper's estimator is the plain policy gradient.",
        ),
        "summary": "Only a group's best completion is rewarded, by its lead over the second.",
        "paper": "arXiv:2503.19595",
        "reward_shaping": "pass_at_k",
        "aggregation": "token_mean",
    },
    "gdpo": {
        "deviations": ("No KL: the paper takes what its base recipe has.",),
        "summary": "GRPO for several rewards: each is normalised by itself before the sum.",
        "paper": "arXiv:2601.05242",
        "reward_shaping": "gdpo",
        "aggregation": "sequence_mean_token_mean",
    },
    "spo": {
        "deviations": (
            "Every prompt's value starts at 0.5; the paper estimates it from samples beforehand.",
            "The drift since a prompt was last seen is the sum of the steps' own KLs.",
            "Prompts come in turn; the paper prefers those whose outcome is uncertain.",
            "The clip's bounds are PPO's; the paper's were not found stated.",
        ),
        "summary": "No groups: each prompt has a tracked value, advantages a batch-wide scale.",
        "paper": "arXiv:2509.13232",
        "reward_shaping": ("spo", "batch_norm"),
        "aggregation": "token_mean",
    },
    "prpo": {
        "deviations": (
            "The name stands for its shaping alone; several methods bear it, and none of their "
            "further parts is here.",
        ),
        "summary": "Rewards in standard deviations from the mean of the batch, without groups.",
        "reward_shaping": "batch_norm",
        "aggregation": "token_mean",
    },
    "bnpo": {
        "deviations": (
            "TRL's loss of that name: the Beta distribution that the paper normalises with is not "
            "here.",
        ),
        "summary": "GRPO whose loss is a mean over all tokens of the mini-batch, without KL.",
        "paper": "arXiv:2506.02864",
        "reward_shaping": "group_norm",
        "aggregation": "token_mean",
    },
    "async_grpo": {
        "deviations": (
            "The reference stays as it was; the source renews it every few batches.",
            "Synchronous: whether samples may be stale is the run's matter.",
        ),
        "summary": "GRPO without a ratio: a k3 a token, and a constant in place of the length.",
        "paper": "https://github.com/Red-Hat-AI-Innovation-Team/async-grpo",
        "reward_shaping": "group_norm",
        "kl_estimator": "k3",
        "kl_placement": "loss",
        "controller": block("constant", coef=0.01),
        "ratio": "none",
        "policy_loss": block("reinforce", form="ratio"),
        "aggregation": "constant_length",
    },
}
