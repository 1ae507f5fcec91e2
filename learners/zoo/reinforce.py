"""Named algorithms of the REINFORCE family: a baseline, and little else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import block

REINFORCE: Mapping[str, Mapping[str, Any]] = {
    "reinforce": {
        "summary": "The plain policy gradient: reward times the gradient of the log-probability.",
        "paper": "doi:10.1007/BF00992696",
        "reward_shaping": "identity",
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "token_mean",
    },
    "reinforce_pp": {
        "summary": "REINFORCE with PPO's clip, a token-level KL in the return, batch whitening.",
        "paper": "arXiv:2501.03262",
        "reward_shaping": "identity",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.01),
        "whitening": "batch",
        "aggregation": "token_mean",
    },
    "reinforce_pp_baseline": {
        "deviations": ("The KL sits in the return (k1); the paper's text puts a k2 in the loss.",),
        "summary": "REINFORCE++ on rewards less their group's mean, whitened over the batch.",
        "paper": "arXiv:2501.03262",
        "reward_shaping": "group_mean",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.01),
        "whitening": "batch",
        "aggregation": "token_mean",
    },
    "rloo": {
        "deviations": (
            "The KL is spread over the tokens' returns and is not part of the baseline; the paper "
            "subtracts it from the sequence's reward before the baseline.",
            "Tokens have clipped ratios, which on the first update are 1; the paper has none.",
        ),
        "summary": "The baseline of a completion is the mean reward of its siblings.",
        "paper": "arXiv:2402.14740",
        "reward_shaping": "leave_one_out",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.03),
        "aggregation": "token_mean",
    },
    "remax": {
        "deviations": (
            "The KL coefficient is verl's; the paper tunes one for each of its models.",
            "All completions of a prompt share one greedy baseline; the paper samples one.",
        ),
        "summary": "REINFORCE against the reward of the prompt's own greedy completion.",
        "paper": "arXiv:2310.10505",
        "reward_shaping": "remax",
        "kl_estimator": "k1",
        "kl_placement": "reward",
        "controller": block("constant", coef=0.001),
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "sequence_mean_token_sum",
    },
    "opo": {
        "deviations": ("Being exactly on-policy is left to the run: one optimizer step a batch.",),
        "summary": "Exactly on-policy, against the group's mean weighted by length.",
        "paper": "arXiv:2505.23585",
        "reward_shaping": "opo",
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "token_mean",
    },
    "gpg": {
        "deviations": (
            "Nothing is sampled again where few groups are valid; the paper sets a threshold.",
        ),
        "summary": "The bare group policy gradient, scaled up for groups that teach nothing.",
        "paper": "arXiv:2504.02546",
        "reward_shaping": block("gpg", count="advantages"),
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "token_mean",
    },
    "flash_reinforce": {
        "deviations": ("Only the baseline is OpenRLHF's; it has no paper, and no KL is set here.",),
        "summary": "The mean of the whole batch as the baseline: no groups, no critic.",
        "paper": "https://github.com/OpenRLHF/OpenRLHF",
        "reward_shaping": "batch_mean",
        "aggregation": "token_mean",
    },
    "topr": {
        "deviations": (
            "The baseline is the group's mean, so that rewards of 0 and 1 have a sign; the paper's "
            "rewards are -1 and 1, with a constant baseline.",
        ),
        "summary": "Good answers count fully, bad ones by a sequence ratio of at most 1.",
        "paper": "arXiv:2503.14286",
        "reward_shaping": "group_mean",
        "ratio": block("sequence", reduce="sum"),
        "policy_loss": block("topr", positive_low=1.0, positive_high=1.0, negative_high=1.0),
        "aggregation": "sequence_mean_token_sum",
    },
    "kimi": {
        "deviations": (
            "The square is taken a token and added up; the paper squares the sequence's sum.",
            "The paper gives no number for τ.",
        ),
        "summary": "Mirror descent: the policy gradient, with a squared pull to where it started.",
        "paper": "arXiv:2501.12599",
        "reward_shaping": "group_mean",
        "policy_loss": block("kimi", tau=0.1),
        "aggregation": "sequence_mean_token_sum",
    },
    "pico": {
        "summary": "The least that works on-policy: no clip, no KL, no ratio, no division.",
        "reward_shaping": "group_mean",
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "sequence_mean_token_sum",
    },
}
