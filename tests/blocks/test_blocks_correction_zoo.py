"""Sequence, rejecting and normalised corrections against numbers worked out by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import correction
from zootomy.registry import ZootomyError

# drifts ρ: row 0: 2, 4, 0.5 (product 4, geometric mean 4^(1/3)); row 1: 3, masked (3)
RHO = np.array([[2.0, 4.0, 0.5], [3.0, np.nan, np.nan]])
ROLLOUT = jnp.full((2, 3), -3.0)
OLD = jnp.array(np.log(RHO) - 3.0, jnp.float32)
MASK = jnp.array([[1, 1, 1], [1, 0, 0]])
GEO = 4 ** (1 / 3)


@pytest.mark.parametrize(
    "block, hyper, weights, kept",
    [
        (correction.sequence_tis, {"high": 3.5}, [[3.5, 3.5, 3.5], [3, 0, 0]], MASK),
        (correction.sequence_tis, {"reduce": "mean"}, [[GEO] * 3, [2, 0, 0]], MASK),
        (
            correction.mis,
            {"low": 1.0, "high": 2.0},
            [[1, 1, 1], [0, 0, 0]],
            [[1, 1, 1], [0, 0, 0]],
        ),
        (
            correction.mis,
            {"low": None, "high": 3.5, "reduce": "sum", "weight": "sequence"},
            [[0, 0, 0], [3, 0, 0]],
            [[0, 0, 0], [1, 0, 0]],
        ),
        (
            correction.mis,
            {"low": 1.0, "high": 2.0, "weight": "token"},
            [[2, 4, 0.5], [0, 0, 0]],
            [[1, 1, 1], [0, 0, 0]],
        ),
        (correction.veto, {"low": 0.6}, [[0, 0, 0], [1, 0, 0]], [[0, 0, 0], [1, 0, 0]]),
        (correction.veto, {}, [[1, 1, 1], [1, 0, 0]], MASK),
        (correction.bypass, {}, [[1, 1, 1], [1, 0, 0]], MASK),
        # weights 2, 2, .5, 2: mean 1.625
        (correction.normalized, {}, np.array([[2, 2, 0.5], [2, 0, 0]]) / 1.625, MASK),
        # rows 2 and 2 (4 and 3, capped): mean 2
        (correction.normalized, {"level": "sequence"}, [[1, 1, 1], [1, 0, 0]], MASK),
        # windowed to [0, 2]: 2, -, .5, -; the mean counts the dropped: 2.5 / 4
        (
            correction.normalized,
            {"outside": "zero"},
            np.array([[2, 0, 0.5], [0, 0, 0]]) / 0.625,
            [[1, 0, 1], [0, 0, 0]],
        ),
    ],
)
def test_hand_computed(block, hyper, weights, kept):
    got, keep = block(OLD, ROLLOUT, MASK, **hyper)
    np.testing.assert_allclose(got, weights, rtol=1e-5)
    np.testing.assert_array_equal(keep, np.asarray(kept, bool))


@pytest.mark.parametrize(
    "hyper, first, second",
    # log ρ = .693, 1.386, -.693 | 1.099
    # k1 = -log ρ; its mean over the first row -.462
    [
        ({"statistic": "k1", "low": -1.2, "high": 0.5}, [1, 0, 0], 1),
        ({"statistic": "k1", "low": -1.2, "high": 0.5, "reverse": True}, [0, 0, 1], 0),
        ({"statistic": "k1", "level": "sequence_mean", "low": -0.5, "high": None}, [1, 1, 1], 0),
        # k2 = .240, .961, .240 | .603; sum 1.441, max .961
        ({"statistic": "k2", "high": 0.7}, [1, 0, 1], 1),
        ({"statistic": "k2", "level": "sequence_sum", "high": 1.4}, [0, 0, 0], 1),
        ({"statistic": "k2", "level": "sequence_max", "high": 1.0}, [1, 1, 1], 1),
        # k3 = 2 - 1 - .693 = .307, 1.614, .193 | .901; mean .705
        ({"statistic": "k3", "high": 0.25}, [0, 0, 1], 0),
        ({"statistic": "k3", "level": "sequence_mean", "high": 0.8}, [1, 1, 1], 0),
        # reversed: .5 - 1 + .693 = .193, .636, .307 | .432
        ({"statistic": "k3", "high": 0.5, "reverse": True}, [1, 0, 1], 1),
        ({"statistic": "ratio", "level": "sequence_max", "low": 0.5, "high": 3.5}, [0, 0, 0], 1),
    ],
)
def test_rejection_statistics(hyper, first, second):
    _, kept = correction.rejection(OLD, ROLLOUT, MASK, **hyper)
    np.testing.assert_array_equal(kept, np.array([first, [second, 0, 0]], bool))


def test_rejection_weights():
    weights, _ = correction.rejection(
        OLD, ROLLOUT, MASK, statistic="ratio", high=3.5, weight="token", weight_high=2.5
    )
    np.testing.assert_allclose(weights, [[2, 0, 0.5], [2.5, 0, 0]], rtol=1e-5)


def test_divergence_masks():
    # p = exp(-3) = .0498; q = .0996, .1991, .0249: |p - q| = .0498, .1494, .0249
    weights, kept = correction.divergence_mask(OLD, ROLLOUT, MASK, divergence="tv", high=0.1)
    np.testing.assert_array_equal(kept[0], [True, False, True])
    np.testing.assert_allclose(weights[0], [2, 0, 0.5], rtol=1e-5)
    # row mean .0747
    for high, keep in ((0.074, False), (0.076, True)):
        _, kept = correction.divergence_mask(
            OLD, ROLLOUT, MASK, divergence="tv", level="sequence", high=high
        )
        assert bool(kept[0, 0]) is keep
    # kl of the first token: .0498 log .5 + .9502 log(.9502/.9004) = .01661
    for high, keep in ((0.0165, False), (0.0167, True)):
        _, kept = correction.divergence_mask(OLD, ROLLOUT, MASK, high=high)
        assert bool(kept[0, 0]) is keep


def test_off_policy_sequence_mask_spares_the_good():
    # rollout - logp = 1 on every token: beyond .5, but only the bad row goes
    logp, mask = jnp.full((2, 3), -2.0), jnp.ones((2, 3))
    advantages = jnp.array([[1.0] * 3, [-1.0] * 3])
    _, kept = correction.off_policy_sequence_mask(
        logp, logp + 1.0, mask, logp=logp, advantages=advantages
    )
    np.testing.assert_array_equal(kept, [[True] * 3, [False] * 3])
    _, kept = correction.off_policy_sequence_mask(
        logp, logp + 1.0, mask, logp=logp, advantages=advantages, threshold=1.5
    )
    assert bool(kept.all())


def test_the_entropy_quantile_is_of_actions_alone():
    # entropies 1, 2, 3, 4 and four of padding: the median is 2.5; with the padding's 0 it is .5
    entropy = jnp.array([[1.0, 2, 3, 4, 0, 0, 0, 0]])
    mask = jnp.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    _, kept = correction.top_entropy(entropy, None, mask, entropy=entropy, fraction=0.5)
    np.testing.assert_array_equal(kept, [[False, False, True, True, False, False, False, False]])


def test_combined_corrections():
    first = correction.tis(OLD, ROLLOUT, MASK, high=3.0)
    second = correction.veto(OLD, ROLLOUT, MASK, low=0.6)
    weights, kept = correction.combine(first, second)
    np.testing.assert_allclose(weights, [[0, 0, 0], [3, 0, 0]], rtol=1e-5)
    np.testing.assert_array_equal(kept, [[False] * 3, [True, False, False]])


def test_drift_metrics():
    # one row of two tokens: q = .5 and -.1
    old, rollout = jnp.array([[-1.0, -2.1]]), jnp.array([[-1.5, -2.0]])
    got = correction.drift_metrics(old, rollout, jnp.ones((1, 2)))
    assert float(got["kl"]) == pytest.approx(-0.2)
    k3 = (math.exp(0.5) - 1.5 + math.exp(-0.1) - 0.9) / 2
    assert float(got["k3_kl"]) == pytest.approx(k3, rel=1e-5)
    assert float(got["training_ppl"]) == pytest.approx(math.exp(1.55), rel=1e-5)
    assert float(got["chi2_seq"]) == pytest.approx(math.exp(0.8) - 1, rel=1e-5)


def test_nothing_to_reject_is_refused():
    with pytest.raises(ZootomyError, match="low and high are both None"):
        correction.rejection(OLD, ROLLOUT, MASK, high=None)
    with pytest.raises(ZootomyError, match=r"fraction must be in \(0, 1\], got 1\.5"):
        correction.top_entropy(OLD, None, MASK, entropy=OLD, fraction=1.5)
