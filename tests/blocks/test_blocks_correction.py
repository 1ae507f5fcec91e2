"""Corrections of the sampler's drift against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import correction
from zootomy.registry import ZootomyError

# drifts ρ: row 0: 1, 4, 0.25 (geometric mean 1); row 1: 3, 3, masked (geometric mean 3)
RHO = np.array([[1.0, 4.0, 0.25], [3.0, 3.0, np.nan]])
OLD = jnp.array(np.log(RHO) - 2.0, jnp.float32)
ROLLOUT = jnp.full((2, 3), -2.0)
MASK = jnp.array([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    "block, hyper, weights, kept",
    [
        (correction.tis, {}, [[1, 2, 0.25], [2, 2, 0]], MASK),
        (correction.tis, {"high": 3.5, "low": 0.5}, [[1, 3.5, 0.5], [3, 3, 0]], MASK),
        (correction.icepop, {}, [[1, 4, 0], [3, 3, 0]], [[1, 1, 0], [1, 1, 0]]),
        (correction.icepop, {"high": 3.5}, [[1, 0, 0], [3, 3, 0]], [[1, 0, 0], [1, 1, 0]]),
        (correction.seq_mask_tis, {}, [[1, 2, 0.25], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]]),
        (
            correction.seq_mask_tis,
            {"low": 2.0, "high": 3.5, "token_high": None},
            [[0, 0, 0], [3, 3, 0]],
            [[0, 0, 0], [1, 1, 0]],
        ),
    ],
)
def test_hand_computed(block, hyper, weights, kept):
    got, keep = block(OLD, ROLLOUT, MASK, **hyper)
    np.testing.assert_allclose(got, weights, rtol=1e-5)
    np.testing.assert_array_equal(keep, np.asarray(kept, bool))


def test_a_long_sequence_is_judged_by_its_mean():
    # 100 tokens of log ρ = 0.005: exp(mean) = 1.005 is kept; exp(sum) = 1.65 would be dropped
    mask = jnp.ones((1, 100))
    weights, kept = correction.seq_mask_tis(0.005 * mask, 0 * mask, mask)
    assert bool(kept.all())
    np.testing.assert_allclose(weights, 1.005, rtol=1e-3)


@pytest.mark.parametrize("block", [correction.tis, correction.icepop, correction.seq_mask_tis])
def test_weights_carry_no_gradient(block):
    slope = jax.grad(lambda x: block(x, ROLLOUT, MASK)[0].sum())(OLD)
    np.testing.assert_array_equal(slope, jnp.zeros((2, 3)))


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ZootomyError, match=r"^tis: low must be below high, got 3\.0 and 2\.0\.$"):
        correction.tis(OLD, ROLLOUT, MASK, low=3.0)
