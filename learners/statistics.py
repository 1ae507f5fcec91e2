"""What a batch of rollouts says about itself, under the field's metric names."""

from __future__ import annotations

import numpy as np

from .collect import Collected


def rollout_metrics(collected: Collected, reward_names: tuple[str, ...]) -> dict[str, float]:
    """Rewards, lengths and failures of everything that was sampled in a step.

    Filtered groups count: the metrics speak of the policy, not of what was trained on.

    Args:
        collected: the batch.
        reward_names: the F reward functions.

    Returns:
        Name -> value; a name without a valid value is left out.
    """
    groups = collected.sampled
    valid = np.stack([group.valid for group in groups])
    rewards = np.stack([group.rewards for group in groups])
    completions = [one for group in groups for one in group.completions]
    lengths = np.array([len(one.tokens) for one in completions])
    deviations = _deviations(rewards, valid)
    metrics = {
        "reward/mean": float(rewards[valid].mean()),
        "reward/std": float(deviations.mean()),
        "frac_reward_zero_std": float((deviations == 0).mean()),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": _share(completions, "length"),
        "completions/invalid": float(1.0 - valid.mean()),
        "filter/refills": float(collected.refills),
        "filter/dropped_groups": float(sum(not group.teaches for group in groups)),
    }
    components = np.concatenate([group.components for group in groups], axis=1)
    for name, values in zip(reward_names, components, strict=True):
        applies = np.isfinite(values)
        if applies.any() and len(reward_names) > 1:
            metrics[f"reward/{name}/mean"] = float(values[applies].mean())
    metrics |= {f"reward/{name}/failed": float(n) for name, n in collected.failures.items()}
    return metrics


def mean_staleness(collected: Collected, version: int) -> float:
    """Updates between the weights that sampled a batch and those of `version`, on average."""
    versions = [one.version for group in collected.sampled for one in group.completions]
    return version - float(np.mean(versions))


def _deviations(rewards: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Standard deviations (ddof 1) of the groups' valid rewards; 0 for fewer than two.

    Exactly 0 for equal rewards, whose mean need not be equal to them in floating point.

    Args:
        rewards: `[P, G]`.
        valid: `[P, G]`.
    """
    count = valid.sum(axis=1)
    known = np.where(valid, rewards, 0.0).astype(np.float64)
    mean = known.sum(axis=1, keepdims=True) / np.maximum(count, 1)[:, None]
    squares = np.where(valid, (known - mean) ** 2, 0.0).sum(axis=1)
    highest = np.where(valid, rewards, -np.inf).max(axis=1)
    differ = highest > np.where(valid, rewards, np.inf).min(axis=1)
    return np.where(differ, np.sqrt(squares / np.maximum(count - 1, 1)), 0.0)


def _share(completions: list, reason: str) -> float:
    return float(np.mean([one.stop_reason == reason for one in completions]))
