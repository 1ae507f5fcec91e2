"""Scores of reward models on a scale of their own: running mean and deviation, and a clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..blocks.reward_shaping import RunningMoments
from ..registry import ZootomyError
from .algorithm import Algorithm
from .collect import Collected, Group


class Scaling(NamedTuple):
    """What becomes of one reward model's scores before they count.

    Attributes:
        component: its place among the components.
        weight: its factor in the reward.
        normalize: take away the running mean of all its scores, and divide by their deviation.
        clip: what is then cut off on both sides; None for nothing.
    """

    component: int
    weight: float
    normalize: bool
    clip: float | None


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
        if scaling.normalize:
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
    scores = (raw - mean) / std if scaling.normalize else raw
    if scaling.clip is not None:
        scores = np.clip(scores, -scaling.clip, scaling.clip)
    components = group.components.copy()
    components[scaling.component] = scores
    change = np.where(group.valid, scaling.weight * (scores - raw), 0.0)
    return replace(
        group, rewards=(group.rewards + change).astype(np.float32), components=components
    )


def check_scalings(algorithm: Algorithm, scalings: Sequence[Scaling]) -> None:
    """Refuse a scale that what it is compared with would not have.

    Raises:
        ZootomyError: for an algorithm that compares with the reward of a greedy completion.
    """
    if "greedy_baseline" in algorithm.needs and scalings:
        raise ZootomyError(
            f"Algorithm {algorithm.name!r} subtracts the reward of a greedy completion, which has "
            "the reward model's raw score. Set reward_model.normalize to false and "
            "reward_model.clip to null, or use another reward_shaping."
        )
