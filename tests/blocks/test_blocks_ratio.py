"""Log importance ratios against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.blocks import ratio
from zootomy.registry import ZootomyError, get, names

LOGP = jnp.array([[-1.0, -2.0, -3.0], [-0.5, 9.0, 9.0]])
OLD = jnp.array([[-1.5, -1.8, -3.6], [-0.75, 7.0, 7.0]])
MASK = jnp.array([[1, 1, 1], [1, 0, 0]])
# log-ratios: 0.5, -0.2, 0.6 (mean 0.3, sum 0.9) and 0.25


@pytest.mark.parametrize(
    "block, expected",
    [
        (ratio.token, [[0.5, -0.2, 0.6], [0.25, 0, 0]]),
        (ratio.sequence, [[0.3, 0.3, 0.3], [0.25, 0, 0]]),
        (ratio.sequence_token, [[0.3, 0.3, 0.3], [0.25, 0, 0]]),
        (ratio.none, [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_hand_computed(block, expected):
    np.testing.assert_allclose(block(LOGP, OLD, MASK), expected, atol=1e-6)


def test_sequence_takes_the_mean_and_not_the_sum():
    # 100 tokens of -0.012 each: exp(mean) = 0.988; exp(sum) = exp(-1.2) = 0.301 collapses
    mask = jnp.ones((1, 100))
    got = jnp.exp(ratio.sequence(-0.012 * mask, 0 * mask, mask))[0, 0]
    assert float(got) == pytest.approx(0.98807, abs=1e-4)
    whole = jnp.exp(ratio.sequence(-0.012 * mask, 0 * mask, mask, reduce="sum"))[0, 0]
    assert float(whole) == pytest.approx(0.30119, abs=1e-4)


@pytest.mark.parametrize(
    "block, expected",
    # d(sum over the first row with weights 1, 2, 3)/d logp
    [
        (ratio.token, [1, 2, 3]),
        (ratio.sequence, [2, 2, 2]),  # (1 + 2 + 3) / 3 for every token
        (ratio.sequence_token, [1, 2, 3]),
        (ratio.none, [1, 2, 3]),
    ],
)
def test_gradients(block, expected):
    weights = jnp.array([[1.0, 2, 3], [0, 0, 0]])
    slope = jax.grad(lambda x: (weights * block(x, OLD, MASK)).sum())(LOGP)
    np.testing.assert_allclose(slope, [expected, [0, 0, 0]], atol=1e-6)


def test_the_policy_that_sampled_is_used_off_policy():
    # new -1, behaviour -2: ratio e = 2.718; a ratio built as logp - sg(logp) would be 1
    one = jnp.ones((1, 1))
    assert float(jnp.exp(ratio.token(-1 * one, -2 * one, one))[0, 0]) == pytest.approx(2.71828)
    assert float(jnp.exp(ratio.none(-1 * one, -2 * one, one))[0, 0]) == 1.0


@pytest.mark.parametrize("name", ["token", "sequence", "sequence_token", "none"])
def test_first_update_has_a_ratio_of_exactly_one(name):
    logp = jax.random.normal(jax.random.key(0), (3, 5)) * 7 - 20
    got = get("ratio", name)(logp, jax.lax.stop_gradient(logp), jnp.ones((3, 5)))
    assert bool((got == 0).all())


@pytest.mark.parametrize("name", ["token", "sequence", "sequence_token", "none"])
def test_masked_tokens_change_nothing(name):
    # a masked log-ratio of -2 or -6, NaN or inf: the same values, and no gradient there
    def loss(logp):
        return jnp.exp(get("ratio", name)(logp, OLD, MASK)).sum()

    want, slope = jax.value_and_grad(loss)(LOGP)
    for bad in (-2.0, -6.0, jnp.nan, jnp.inf):
        got, other = jax.value_and_grad(loss)(LOGP.at[1, 1].set(bad))
        assert float(got) == float(want)
        np.testing.assert_array_equal(other, slope)
        assert float(other[1, 1]) == 0


def test_sequence_token_bounds():
    # one token of +30 and one of -2: clamped to 20 the mean is 9, capped at 5; unbounded 14
    logp, old, mask = jnp.array([[30.0, -2.0]]), jnp.zeros((1, 2)), jnp.ones((1, 2))
    got = [
        float(ratio.sequence_token(logp, old, mask, **hyper)[0, 0])
        for hyper in ({}, {"clamp_token": 20.0}, {"cap": 5.0})
    ]
    assert got == [14.0, 9.0, 5.0]


@given(st.integers(0, 10**6))
def test_rows_do_not_see_each_other(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    logp, old = jax.random.normal(keys[0], (4, 3)), jax.random.normal(keys[1], (4, 3))
    mask = jax.random.bernoulli(keys[2], 0.7, (4, 3))
    for name in names("ratio"):
        block = get("ratio", name)
        whole = block(logp, old, mask)
        np.testing.assert_allclose(whole[::-1], block(logp[::-1], old[::-1], mask[::-1]))
        np.testing.assert_allclose(whole[:1], block(logp[:1], old[:1], mask[:1]))


def test_wrong_shapes_are_refused():
    with pytest.raises(ZootomyError, match="mask has shape"):
        ratio.token(jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.ones((2,)))
