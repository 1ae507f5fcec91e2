"""Named recipes of large runs, put together from several papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import block

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "scale_rl": {
        "deviations": (
            "The upper bound 5 is TRL's reproduction of the report, which compares several.",
            "Left to the run: its asynchronous pipeline, float32 heads, interrupted long answers "
            "and prompts retired once solved.",
        ),
        "summary": "CISPO, a batch-wide scale, prompts that count the same, no idle groups.",
        "paper": "arXiv:2510.13786",
        "reward_shaping": block("normalize", mean="group", std="batch"),
        "group_filter": block("zero_std", strategy="drop"),
        "policy_loss": block("cispo", low=0.0, high=5.0),
        "aggregation": "prompt_mean",
    },
    "prorl_v2": {
        "deviations": (
            "The reference is never reset, as it is in the report from time to time.",
            "Without the length penalty that the report switches on by a schedule.",
        ),
        "summary": "REINFORCE++ with a group baseline, made for long runs: wide clip, KL, IcePop.",
        "paper": "https://developer.nvidia.com/blog/"
        "scaling-llm-reinforcement-learning-with-prolonged-training-using-prorl-v2",
        "reward_shaping": (block("stop_properly", coef=0.0), "group_mean"),
        "group_filter": block("score_range", low=0.0, high=1.0, strategy="refill"),
        "kl_estimator": "k2",
        "kl_placement": "loss",
        "controller": block("constant", coef=1e-4),
        "whitening": "batch",
        "policy_loss": block("ppo_clip", clip_low=0.2, clip_high=0.27),
        "correction": block("icepop", low=0.5, high=5.0),
        "aggregation": "token_mean",
    },
}
