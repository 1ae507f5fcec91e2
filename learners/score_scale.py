"""Scores of reward models on a scale of their own: running mean and deviation, and a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..blocks.reward_shaping import RunningMoments
from ..registry import ZootomyError
from .algorithm import Algorithm
from .collect import Collected, Group


@dataclass(frozen=True, kw_only=True)
class ScoreScale:
    """What becomes of a reward model's scores before they count.

        s' = clip((s − running mean) / running deviation, ±clip)      reward + weight · s'

    Attributes:
        weight: its factor in the reward.
        normalize: take away the running mean of all its scores, and divide by their deviation.
        clip: what is then cut off on both sides; None for nothing.
    """

    weight: float = 1.0
    normalize: bool = False
    clip: float | None = None

    @property
    def changes(self) -> bool:
        """Whether a score counts as anything but itself."""
        return self.normalize or self.clip is not None


class Scaling(NamedTuple):
    """A `ScoreScale` that changes scores, and whose they are.

    Attributes:
        name: of the reward model.
        component: its place among the components.
        scale: what becomes of its scores.
    """

    name: str
    component: int
    scale: ScoreScale


def see_scores(
    collected: Collected, scalings: Sequence[Scaling], moments: Sequence[RunningMoments]
) -> tuple[RunningMoments, ...]:
    """The moments with a batch's raw scores in them: it is part of its own scale.

    Args:
        collected: with raw scores among its components.
        scalings: one a reward model.
        moments: of all raw scores seen before, one a reward model.
    """
    kept = []
    for scaling, before in zip(scalings, moments, strict=True):
        if scaling.scale.normalize:
            scores = np.stack([group.components[scaling.component] for group in collected.sampled])
            valid = np.stack([group.valid for group in collected.sampled]) & np.isfinite(scores)
            before = before.observe(jnp.asarray(scores), jnp.asarray(valid))
        kept.append(before)
    return tuple(kept)


def scale_scores(
    collected: Collected, scalings: Sequence[Scaling], moments: Sequence[RunningMoments]
) -> Collected:
    """The batch with the models' scores scaled.

        s' = clip((s − mean) / std, ±c)      R' = R + weight · (s' − s)

    Args:
        collected: with raw scores among its components.
        scalings: one a reward model.
        moments: of all raw scores, this batch's too.
    """
    for scaling, seen in zip(scalings, moments, strict=True):
        collected = _scaled(collected, scaling, float(seen.mean), float(seen.std))
    return collected


def _scaled(collected: Collected, scaling: Scaling, mean: float, std: float) -> Collected:
    # Groups may stand in the batch and among the sampled, as one object.
    done: dict[int, Group] = {}
    for group in [*collected.sampled, *collected.groups]:
        if id(group) not in done:
            done[id(group)] = _scaled_group(group, scaling, mean, std)
    return replace(
        collected,
        groups=[done[id(group)] for group in collected.groups],
        sampled=[done[id(group)] for group in collected.sampled],
    )


def _scaled_group(group: Group, scaling: Scaling, mean: float, std: float) -> Group:
    raw = group.components[scaling.component]
    scale = scaling.scale
    scores = (raw - mean) / std if scale.normalize else raw
    if scale.clip is not None:
        scores = np.clip(scores, -scale.clip, scale.clip)
    components = group.components.copy()
    components[scaling.component] = scores
    change = np.where(group.valid, scale.weight * (scores - raw), 0.0)
    return replace(
        group, rewards=(group.rewards + change).astype(np.float32), components=components
    )


def scalings_of(names: Sequence[str], scales: Mapping[str, ScoreScale]) -> tuple[Scaling, ...]:
    """The scales that change scores.

    Args:
        names: of all components.
        scales: by reward model.
    """
    return tuple(
        Scaling(name, names.index(name), scale) for name, scale in scales.items() if scale.changes
    )


def score_metrics(
    collected: Collected, scalings: Sequence[Scaling], moments: Sequence[RunningMoments]
) -> dict[str, float]:
    """What a batch's scores were before they were scaled, and the running statistics.

    Args:
        collected: with raw scores among its components.
        scalings: one a reward model.
        moments: of all raw scores, this batch's too.

    Returns:
        `reward/NAME/raw_mean`, and where scores are normalised `reward/NAME/running_mean` and
        `reward/NAME/running_std`.
    """
    metrics = {}
    for scaling, seen in zip(scalings, moments, strict=True):
        scores = np.concatenate(
            [group.components[scaling.component] for group in collected.sampled]
        )
        name, finite = f"reward/{scaling.name}", np.isfinite(scores)
        if finite.any():
            metrics[f"{name}/raw_mean"] = float(scores[finite].mean())
        if scaling.scale.normalize:
            metrics[f"{name}/running_mean"] = float(seen.mean)
            metrics[f"{name}/running_std"] = float(seen.std)
    return metrics


def check_scales(algorithm: Algorithm, scales: Mapping[str, ScoreScale]) -> None:
    """Refuse a scale that what it is compared with would not have.

    Args:
        algorithm: it may compare with the reward of a greedy completion.
        scales: by reward model.

    Raises:
        ZootomyError: for an algorithm that compares with the reward of a greedy completion.
    """
    changing = [name for name, scale in scales.items() if scale.changes]
    if "greedy_baseline" in algorithm.needs and changing:
        raise ZootomyError(
            f"Algorithm {algorithm.name!r} subtracts the reward of a greedy completion, which has "
            f"the raw score of {changing[0]}. Set its normalize to false and its clip to "
            "null, or use another reward_shaping."
        )
