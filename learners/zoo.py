"""The zoo: every named algorithm, one entry each. An entry lists only what it chooses.

What an entry leaves out is a default of `Algorithm`: no shaping, no filter, no KL, the
undiscounted return, no whitening, a token ratio, `ppo_clip`, no correction, `token_mean`, no
regularizer, no critic. Deviations from the paper come first in each entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import block, describe, unknown_name
from .algorithm import Algorithm

ZOO: Mapping[str, Mapping[str, Any]] = {
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
    "pico": {
        "summary": "The least that works on-policy: no clip, no KL, no ratio, no division.",
        "reward_shaping": "group_mean",
        "ratio": "none",
        "policy_loss": "reinforce",
        "aggregation": "sequence_mean_token_sum",
    },
}

ALIASES: Mapping[str, str] = {
    "drgrpo": "dr_grpo",
    "reinforce++": "reinforce_pp",
    "reinforce++_baseline": "reinforce_pp_baseline",
}


def algorithms() -> list[str]:
    """The names of the zoo, in the order of its file."""
    return list(ZOO)


def algorithm(name: str, /, **overrides: Any) -> Algorithm:
    """An algorithm of the zoo, with some of it changed.

    >>> algorithm("grpo", aggregation="token_mean").aggregation
    block('token_mean')

    Args:
        name: a name of `algorithms()`; `name+correction` adds a sampler correction, as in
            `grpo+tis`.
        **overrides: `slot=block` or, for hyperparameters, `**{"policy_loss.clip_high": 0.28}`.

    Returns:
        The algorithm, checked.

    Raises:
        UnknownNameError: for a name that does not exist.
        ZootomyError: for a change that cannot work.
    """
    base, plus, correction = (name, "", "") if name in ALIASES else name.rpartition("+")
    base = base if plus or name in ALIASES else name
    base = ALIASES.get(base, base)
    if base not in ZOO:
        raise unknown_name("algorithm", name, (*ZOO, *ALIASES))
    entry = Algorithm(name=base, **ZOO[base])
    if plus:
        correction = describe("correction", correction).name
        entry = entry.override({"name": f"{base}+{correction}", "correction": correction})
    return entry.override(overrides) if overrides else entry
