"""Shapings against other baselines than the group's, by hand, and what they remember."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import RewardInfo
from zootomy.blocks.reward_shaping import BetaTracker, RunningMoments
from zootomy.registry import ZootomyError, get, names

NAN = float("nan")


def shape(name, rewards, valid=None, hyperparameters=None, **info):
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    info = RewardInfo(valid, **{key: jnp.asarray(value) for key, value in info.items()})
    block = get("reward_shaping", name)
    return np.asarray(block(rewards, info, **(hyperparameters or {})))


def test_batch_mean_and_norm():
    # mean 4; σ² = (9 + 1 + 1 + 9)/3, σ = 2.581989; the group's mean would give ∓1
    rewards = [[1, 3], [5, 7]]
    np.testing.assert_allclose(shape("batch_mean", rewards), [[-3, -1], [1, 3]])
    got = shape("batch_norm", rewards, hyperparameters={"eps": 0.0})
    np.testing.assert_allclose(got, np.array([[-3, -1], [1, 3]]) / 2.581989, rtol=1e-6)
    got = shape("batch_mean", [[1, NAN], [5, NAN]], [[1, 0], [1, 0]])
    np.testing.assert_allclose(got, [[-2, 0], [2, 0]])


@pytest.mark.parametrize(
    "hyperparameters, expected",
    [
        # raw rewards: mean 2.5, σ² = (2.25 + 6.25 + 6.25 + 2.25)/3, σ 2.380476: .5/(σ + 1e-4)
        ({}, 0.21003),
        # around the groups' means: σ² = 4·.25/3, σ .57735: .5/(σ + 1e-5)
        ({"std_of": "deviations", "eps": 1e-5}, 0.86601),
        ({"std": "none"}, 0.5),
        # within the group σ² = 2·.25/1
        ({"std": "group", "eps": 0.0}, 0.5 / 0.707107),
        # 1 − 0 against the other member; around it s² = 2·1/1: 1/√2
        ({"mean": "leave_one_out", "std": "none"}, 1.0),
        ({"mean": "leave_one_out", "std": "group", "std_of": "deviations", "eps": 0.0}, 0.707107),
        ({"mean": "batch", "std": "none"}, 1 - 2.5),
        ({"mean": "none", "std": "batch", "eps": 0.0}, 1 / 2.380476),
    ],
)
def test_mean_and_deviation_over_separate_scopes(hyperparameters, expected):
    got = shape("normalize", [[1, 0], [5, 4]], hyperparameters=hyperparameters)
    np.testing.assert_allclose(got[0, 0], expected, rtol=1e-4)


def test_maxrl():
    # μ = 1/4: (1 − .25)/.25 = 3 and −1; no success: 0, where 0/eps is 0 but −1/eps is not
    rewards = [[1, 0, 0, 0], [0, 0, 0, 0], [0.5, -1, -1, -1]]
    got = shape("maxrl", rewards, hyperparameters={"eps": 0.0})
    np.testing.assert_allclose(got, [[3, -1, -1, -1], [0] * 4, [0] * 4], rtol=1e-6)
    # μ = −.625: (.5 + .625)/−.625 = −1.8: the best of the group is pushed down
    options = {"eps": 0.0, "nonpositive": "divide"}
    got = shape("maxrl", rewards, hyperparameters=options)
    np.testing.assert_allclose(got[2], [-1.8, 0.6, 0.6, 0.6], rtol=1e-6)


def test_pass_at_k():
    rewards, valid = [[3, 1, 2], [2, 2, 0], [5, NAN, 9]], [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    # 3 − 2; a tie; a single valid member, of which nothing is second
    np.testing.assert_allclose(shape("pass_at_k", rewards, valid), [[1, 0, 0], [0] * 3, [0] * 3])
    got = shape("pass_at_k", rewards, valid, {"norm": True, "eps": 1.0})
    np.testing.assert_allclose(got[0], [0.5, 0, 0])  # σ = 1


def test_gpg():
    # N = 4; one reward is not 0: α = 4. Two advantages are not 0: α = 2.
    rewards = [[1, 0], [0, 0]]
    np.testing.assert_allclose(shape("gpg", rewards), [[2, -2], [0, 0]])
    got = shape("gpg", rewards, hyperparameters={"count": "advantages", "norm": 4.0})
    np.testing.assert_allclose(got, [[0.25, -0.25], [0, 0]])
    np.testing.assert_array_equal(shape("gpg", [[0, 0]]), [[0, 0]])


def test_opo():
    # lengths 1 and 3: the baseline is 1/4, not 1/2; equal rewards are worth exactly 0
    rewards, lengths = [[1, 0], [0.1, 0.1]], [[1, 3], [3, 7]]
    got = shape("opo", rewards, lengths=lengths)
    np.testing.assert_allclose(got[0], [0.75, -0.25])
    np.testing.assert_array_equal(got[1], [0, 0])
    # no action at all: a plain mean, and no 0/0
    np.testing.assert_allclose(shape("opo", [[1, 0]], lengths=[[0, 0]]), [[0.5, -0.5]])


@pytest.mark.parametrize("name", ["remax", "spo"])
def test_a_baseline_a_prompt(name):
    # The second prompt's greedy rollout failed: nothing to compare with.
    got = shape(name, [[1, 0], [1, 0]], [[1, 1], [1, 1]], baseline=[0.25, NAN])
    np.testing.assert_allclose(got, [[0.75, -0.25], [0, 0]])


def test_running_norm():
    got = shape("running_norm", [[1, 3], [5, NAN]], [[1, 1], [1, 0]], baseline=[2, 2], scale=[4, 4])
    np.testing.assert_allclose(got, [[-0.25, 0.25], [0.75, 0]])
    got = shape("running_norm", [[1, 3]], None, {"shift_mean": False}, scale=[4])
    np.testing.assert_allclose(got, [[0.25, 0.75]])


def test_scale():
    np.testing.assert_allclose(
        shape("scale", [[1, NAN]], [[1, 0]], {"temperature": 4.0}), [[0.25, 0]]
    )


def test_gdpo_with_a_function_that_does_not_apply():
    # [1, –, 0, 0]: μ = 1/3, σ² = (4/9 + 2/9)/2 = 1/3. As NaN it spreads to the whole batch.
    components = [[[1, NAN, 0, 0]], [[0, 4, 2, NAN]]]
    valid = [[1, 1, 1, 0]]
    options = {"eps": 0.0, "whiten": False}
    got = shape("gdpo", [[0, 0, 0, 0]], valid, options, components=components[:1])
    # the fourth member is invalid: [1, –, 0]: ±.5/√.5
    np.testing.assert_allclose(got, [[0.707107, 0, -0.707107, 0]], rtol=1e-5)
    # second function [0, 4, 2]: μ = 2, σ = 2: −1, 1, 0; weights 1 and 10
    got = shape("gdpo", [[0] * 4], valid, options, components=components, weights=[1.0, 10.0])
    np.testing.assert_allclose(got, [[0.707107 - 10, 10, -0.707107, 0]], rtol=1e-5)
    # second stage over the three valid completions
    total = got[0, :3]
    options = {"eps": 0.0, "whiten_eps": 0.0}
    got = shape("gdpo", [[0] * 4], valid, options, components=components, weights=[1.0, 10.0])
    want = (total - total.mean()) / total.std(ddof=1)
    np.testing.assert_allclose(got[0], [*want, 0], rtol=1e-5)


def test_per_function():
    # group means .5 and 3: (1 − .5) + 2·(2 − 3); a shaping of the sum cannot weigh them apart
    got = shape("per_function", [[0, 0]], components=[[[1, 0]], [[2, 4]]], weights=[1.0, 2.0])
    np.testing.assert_allclose(got, [[-1.5, 1.5]])
    options = {"shape": "group_norm"}
    got = shape("per_function", [[0, 0]], None, options, components=[[[1, 0]]])
    np.testing.assert_allclose(got, [[0.7070, -0.7070]], atol=1e-4)


def test_running_moments_are_those_of_all_rewards_seen():
    moments = RunningMoments.start()
    assert (float(moments.mean), float(moments.std)) == (0.0, 1.0)
    moments = moments.observe(jnp.array([[1.0, 3.0]]), jnp.ones((1, 2), bool))
    moments = moments.observe(jnp.array([[5.0, NAN, 7.0]]), jnp.array([[True, False, True]]))
    # [1, 3, 5, 7]: mean 4, σ² = 20/3
    np.testing.assert_allclose([moments.mean, moments.std], [4.0, 2.581989], rtol=1e-6)
    # half forgotten: n 2, mean 4; with [8, 8]: mean 6
    later = moments.observe(jnp.full((1, 2), 8.0), jnp.ones((1, 2), bool), retain=0.5)
    np.testing.assert_allclose([later.count, later.mean], [4.0, 6.0], rtol=1e-6)
    nothing = moments.observe(jnp.full((1, 2), NAN), jnp.zeros((1, 2), bool))
    np.testing.assert_allclose(nothing, moments)


def test_beta_tracker():
    # n = 1/(1 − .5) = 2: α = β = 1
    tracker = BetaTracker.start(jnp.full(3, 0.5), retain_min=0.5)
    tracker = tracker.observe(
        jnp.array([2, 0]),
        jnp.array([[1.0, NAN], [NAN, NAN]]),
        jnp.array([[True, False], [False, False]]),
        jnp.array([0.0, NAN]),
        half_drift=0.1,
        retain_min=0.5,
        retain_max=0.75,
    )
    # prompt 2: no drift, at most .75 is kept: α = .75 + 1, β = .75; the others are as they were
    np.testing.assert_allclose(tracker.alpha, [1, 1, 1.75])
    np.testing.assert_allclose(tracker.beta, [1, 1, 0.75])
    np.testing.assert_allclose(tracker.value, [0.5, 0.5, 0.7])
    # a drift of .2 is two half-lives: 1/4, but at least .5 is kept
    one = BetaTracker.start(jnp.array([0.5]), retain_min=0.5).observe(
        jnp.array([0]),
        jnp.array([[0.25]]),
        jnp.array([[True]]),
        jnp.array([0.2]),
        half_drift=0.1,
        retain_min=0.5,
    )
    np.testing.assert_allclose([one.alpha[0], one.beta[0]], [0.75, 1.25])


EVERYTHING = {
    "lengths": jnp.array([[3, 5, 2], [4, 1, 6]]),
    "truncated": jnp.array([[True, False, True], [False, True, False]]),
    "components": jnp.array([[[1.0, 0, 2], [0, 1, 1]], [[0.5, 1, 0], [2, 0, 1]]]),
    "baseline": jnp.array([0.5, 0.25]),
    "scale": jnp.array([2.0, 2.0]),
}


@pytest.mark.parametrize("name", names("reward_shaping"))
def test_every_shaping_lets_invalid_entries_do_nothing(name):
    block = get("reward_shaping", name)
    options = {"length": 6} if name == "overlong_penalty" else {}
    rewards = jnp.array([[1.0, 2.0, 0.5], [0.0, 3.0, 1.0]])
    valid = jnp.array([[True, True, False], [True, False, False]])

    def run(fill):
        def dirty(x):
            return jnp.where(valid, x, fill)

        info = RewardInfo(valid, **{**EVERYTHING, "components": dirty(EVERYTHING["components"])})
        value = block(dirty(rewards), info, **options)
        gradient = jax.grad(lambda r: block(r, info, **options).sum())(dirty(rewards))
        return value, gradient

    clean, _ = run(0.0)
    for fill in (NAN, float("inf"), -1e30):
        value, gradient = run(fill)
        np.testing.assert_array_equal(value, clean)
        assert np.isfinite(np.asarray(gradient)).all()
        assert not np.asarray(gradient)[~np.asarray(valid)].any()
    assert clean.dtype == jnp.float32
    assert not np.asarray(clean)[~np.asarray(valid)].any()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: shape("remax", [[1.0]]),
            "remax needs info.baseline, which is missing; roll out a greedy completion a prompt.",
        ),
        (
            lambda: shape("spo", [[1.0]], baseline=[1.0, 2.0]),
            "spo: info.baseline must be [P] = [1], got shape [2].",
        ),
        (
            lambda: shape("gdpo", [[1.0]]),
            "gdpo needs info.components, which is missing; give the rewards by function [F, P, G].",
        ),
        (
            lambda: shape("gdpo", [[1.0]], components=[[1.0]]),
            "gdpo: info.components must be [F, P, G] = [F, 1, 1], got shape [1, 1].",
        ),
        (
            lambda: shape("per_function", [[1.0]], None, {"shape": "gdpo"}, components=[[[1.0]]]),
            "per_function: shape must be a shaping of one reward, got 'gdpo'.",
        ),
        (
            lambda: shape("normalize", [[1.0]], None, {"mean": "median"}),
            "normalize: mean must be one of 'none', 'group', 'leave_one_out', 'batch'; "
            "got 'median'.",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ZootomyError) as error:
        call()
    assert str(error.value) == message
