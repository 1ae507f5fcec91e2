"""Reward models' scores on a scale of their own, by hand."""

import numpy as np
from zootomy.blocks.reward_shaping import RunningMoments
from zootomy.learners.collect import Collected, Group
from zootomy.learners.score_scale import (
    Scaling,
    ScoreScale,
    scale_scores,
    scalings_of,
    score_metrics,
    see_scores,
)


def group(rewards, scores, valid):
    """Two components: a function's 1s, and a model's scores at a weight of 0.5."""
    rewards = np.asarray(rewards, np.float32)
    components = np.stack([np.ones(len(rewards)), scores]).astype(np.float32)
    return Group(0, (1,), [], rewards, np.asarray(valid), components)


def half(**scale):
    return Scaling("kind", 1, ScoreScale(weight=0.5, **scale))


def collected():
    groups = [
        group([2.0, 3.0], [2.0, 4.0], [True, True]),
        group([4.0, 0.0], [6.0, 9.0], [True, False]),
    ]
    return Collected(groups[:1], 2, groups, 0, {})


def run(batch, scaling, before=None):
    moments = see_scores(batch, [scaling], [before or RunningMoments.start()])
    return scale_scores(batch, [scaling], moments), moments


def test_scores_are_normalised_by_all_that_were_seen():
    scaling = half(normalize=True)
    batch, (moments,) = run(collected(), scaling)
    # Valid scores 2, 4, 6: mean 4, deviation 2; so -1, 0, 1, and rewards change by half of
    # -1 - 2, 0 - 4 and 1 - 6.
    assert (float(moments.mean), float(moments.std)) == (4.0, 2.0)
    assert batch.sampled[0].rewards.tolist() == [2 - 1.5, 3 - 2.0]
    assert batch.sampled[1].rewards.tolist() == [4 - 2.5, 0.0]
    assert batch.sampled[0].components.tolist() == [[1.0, 1.0], [-1.0, 0.0]]
    # A group that is in the batch is the very one that was sampled.
    assert batch.groups[0] is batch.sampled[0]
    # Seen again, the same scores have the same mean: 6 of them, with half the mean's error.
    _, (again,) = run(collected(), scaling, moments)
    assert (float(again.count), float(again.mean)) == (6.0, 4.0)
    np.testing.assert_allclose(float(again.std), (16 / 5) ** 0.5, rtol=1e-6)


def test_a_clip_alone_and_after_the_scale():
    raw = half(clip=3.0)
    batch, (moments,) = run(collected(), raw)
    assert float(moments.count) == 0.0
    assert batch.sampled[0].components[1].tolist() == [2.0, 3.0]
    assert batch.sampled[0].rewards.tolist() == [2.0, 2.5]
    both = half(normalize=True, clip=0.5)
    batch, _ = run(collected(), both)
    assert batch.sampled[0].components[1].tolist() == [-0.5, 0.0]


def test_what_is_logged_is_the_raw_mean_and_the_running_statistics():
    batch, scaling = collected(), half(normalize=True)
    moments = see_scores(batch, [scaling], [RunningMoments.start()])
    # The mean of all scores that are numbers, 2, 4, 6 and 9; the statistics are of the valid ones.
    assert score_metrics(batch, [scaling], moments) == {
        "reward/kind/raw_mean": 5.25,
        "reward/kind/running_mean": 4.0,
        "reward/kind/running_std": 2.0,
    }
    raw = half(clip=3.0)
    assert score_metrics(batch, [raw], [RunningMoments.start()]) == {"reward/kind/raw_mean": 5.25}


def test_scales_that_change_nothing_are_left_out():
    scales = {"kind": ScoreScale(weight=2.0), "safe": ScoreScale(clip=1.0)}
    assert scalings_of(["right", "kind", "safe"], scales) == (Scaling("safe", 2, scales["safe"]),)
