"""KL estimators against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.blocks import kl_estimator as kl
from zootomy.registry import ZootomyError, describe, get

ALL = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3, "abs": kl.absolute}


def both(estimator, d, **hyper):
    """Value and derivative at the log-ratio d."""
    value, slope = jax.value_and_grad(
        lambda x: estimator(x[None, None], jnp.zeros((1, 1)), **hyper)[0, 0]
    )(jnp.float32(d))
    return float(value), float(slope)


@pytest.mark.parametrize(
    "name, value, slope",
    [
        ("k1", -0.5, 1.0),
        ("abs", 0.5, -1.0),
        ("k2", 0.125, -0.5),
        # exp(0.5) - 0.5 - 1 = 1.6487 - 1.5 = 0.1487; derivative 1 - exp(0.5) = -0.6487
        ("k3", 0.1487, -0.6487),
    ],
)
def test_hand_computed_at_minus_one_half(name, value, slope):
    assert both(ALL[name], -0.5) == pytest.approx((value, slope), abs=1e-4)


@pytest.mark.parametrize(
    "name, value",
    # the value is the estimator's own, the derivative d = -3 is that of d^2/2
    [("k1", -3.0), ("abs", 3.0), ("k3", math.exp(3) - 4)],
)
def test_gradient_of_k2_under_another_value(name, value):
    assert both(ALL[name], -3.0, gradient="k2") == pytest.approx((value, -3.0), rel=1e-6)


def test_clamp_out_stops_value_and_gradient():
    # k3(-3) = exp(3) - 3 - 1 = 16.0855, bounded to 10; a bound on the exponent alone would not bind
    assert both(kl.k3, -3.0, clamp_out=10.0) == (10.0, 0.0)
    # with the gradient of k2 the value is bounded and the derivative is still d
    assert both(kl.k3, -3.0, clamp_out=10.0, gradient="k2") == (10.0, -3.0)
    assert both(kl.k1, -60.0, clamp_out=10.0) == (-10.0, 0.0)
    assert both(kl.k2, 3.0, clamp_out=4.0) == (4.0, 0.0)  # 9/2 > 4


@pytest.mark.parametrize("d", [-100.0, 100.0])
@pytest.mark.parametrize("name", sorted(ALL))
def test_far_from_the_reference_everything_is_finite_and_pulls_back(name, d):
    value, slope = both(ALL[name], d)
    assert math.isfinite(value)
    assert math.isfinite(slope)
    if name != "k1":  # k1's own derivative is 1 whatever the reference
        assert np.sign(slope) == np.sign(d)


def test_k3_beyond_its_clamp_keeps_the_slope_of_the_clamp():
    # exp(20) - 100 - 1 = 485165094, slope 1 - exp(20); unbounded: inf and -inf (float32);
    # a clip with derivative 0 would leave the slope +1, which pushes the token further away
    value, slope = both(kl.k3, -100.0)
    assert value == pytest.approx(math.exp(20) - 101, rel=1e-6)
    assert slope == pytest.approx(1 - math.exp(20), rel=1e-6)
    assert both(kl.k3, -4.0, clamp=2.0) == pytest.approx(
        (math.exp(2) - 5, 1 - math.exp(2)), rel=1e-6
    )
    assert both(kl.k3, -100.0, clamp=math.inf)[0] == math.inf


def test_k1_k2_and_k3_differ_on_the_same_number():
    # the penalty of one library is not that of another: -0.5, 0.125, 0.1487 for d = -0.5
    values = [both(ALL[name], -0.5)[0] for name in ("k1", "k2", "k3")]
    assert values == pytest.approx([-0.5, 0.125, 0.1487], abs=1e-4)


def expected_gradient(estimator, **hyper):
    """E over the sampled token of the estimator's gradient, by enumeration of two tokens."""
    ref = jnp.log(jnp.array([0.9, 0.1]))

    def expected(theta):
        logp = jax.nn.log_softmax(theta)
        p = jax.lax.stop_gradient(jnp.exp(logp))  # samples are drawn, not differentiated
        return (p * estimator(logp[None], ref[None], **hyper)[0]).sum()

    return np.asarray(jax.grad(expected)(jnp.zeros(2)))


def test_which_gradient_is_that_of_the_kl():
    # p = (.5, .5), q = (.9, .1): dKL/dtheta_1 = p_1 (log(p_1/q_1) - KL) = .5 (-.5878 - .5108)
    true = [-0.5493, 0.5493]
    np.testing.assert_allclose(expected_gradient(kl.k2), true, atol=1e-4)
    for estimator in (kl.k1, kl.k3, kl.absolute):
        np.testing.assert_allclose(expected_gradient(estimator, gradient="k2"), true, atol=1e-4)
    # k1's own gradient is 0 in expectation, whatever the reference
    np.testing.assert_allclose(expected_gradient(kl.k1), [0.0, 0.0], atol=1e-6)
    # k3's own is that of the reverse: sum_a q_a - p_a on each logit
    np.testing.assert_allclose(expected_gradient(kl.k3), [-0.4, 0.4], atol=1e-5)


def test_names_of_the_peers():
    assert get("kl_estimator", "low_var_kl") is kl.k3
    assert get("kl_estimator", "mse") is kl.k2
    assert describe("kl_estimator", "abs").function is kl.absolute


def test_half_precision_is_taken_in_single():
    # bfloat16 holds 8 bits: -10.0625 is exact, the difference of -0.0625 must not round to 0
    logp, ref = jnp.bfloat16(-10.0625), jnp.bfloat16(-10.0)
    got = kl.k1(logp[None, None], ref[None, None])
    assert got.dtype == jnp.float32
    assert float(got[0, 0]) == -0.0625


@given(st.floats(-15, 15, width=32))
def test_k2_and_k3_are_zero_at_the_reference_alone(d):
    for estimator in (kl.k2, kl.k3):
        value, _ = both(estimator, d)
        assert value >= -1e-6
        assert both(estimator, 0.0) == (0.0, 0.0)


def test_wrong_input_is_refused_with_a_sentence():
    with pytest.raises(ZootomyError) as error:
        kl.k3(jnp.zeros((2, 3)), jnp.zeros((2, 1)))
    assert str(error.value) == (
        "k3: ref_logp has shape [2, 1], but logp has [2, 3]; give arrays of one shape."
    )
    with pytest.raises(ZootomyError, match=r"^k3: clamp must be above 0, got -1\.0\.$"):
        kl.k3(jnp.zeros((1, 1)), jnp.zeros((1, 1)), clamp=-1.0)


def test_the_kl_over_the_vocabulary():
    # p = (.5, .5), q = (.9, .1): .5 log(.5/.9) + .5 log(.5/.1) = .5108; forward .3681
    ref = jnp.log(jnp.array([[[0.9, 0.1]]]))

    def of(theta, direction="reverse"):
        return kl.full(jax.nn.log_softmax(theta), ref, direction=direction)[0, 0]

    value, slope = jax.value_and_grad(of)(jnp.zeros((1, 1, 2)))
    assert float(value) == pytest.approx(0.5108, abs=1e-4)
    np.testing.assert_allclose(slope[0, 0], [-0.5493, 0.5493], atol=1e-4)
    assert float(of(jnp.zeros((1, 1, 2)), "forward")) == pytest.approx(0.3681, abs=1e-4)


def test_a_token_of_probability_zero_has_no_part():
    logp = jnp.array([[[0.0, -jnp.inf]]])
    ref = jnp.log(jnp.array([[[0.5, 0.5]]]))
    value, slope = jax.value_and_grad(lambda x: kl.full(x, ref)[0, 0])(logp)
    assert float(value) == pytest.approx(math.log(2))
    assert bool(jnp.isfinite(slope).all())


def test_the_kl_of_the_best_tokens():
    # .5 log(.5/.6) + rest .5 log(.5/.4); without the rest it is negative, no divergence
    logp, ref = jnp.log(jnp.array([[[0.5]]])), jnp.log(jnp.array([[[0.6]]]))
    assert float(kl.top_k(logp, ref)[0, 0]) == pytest.approx(0.02041, abs=1e-5)
    assert float(kl.top_k(logp, ref, tail=False)[0, 0]) == pytest.approx(-0.09116, abs=1e-5)


def test_gradients_for_tokens_of_an_older_policy():
    # d = -.5, pi/pi_old = e: value k3, slope w d with w = e, or its cap
    old = jnp.full((1, 1), -1.5)
    value, slope = both(kl.unbiased, -0.5, old_logp=old)
    assert (value, slope) == pytest.approx((math.exp(0.5) - 1.5, -0.5 * math.e), rel=1e-5)
    assert both(kl.unbiased, -0.5, old_logp=old, cap=2.0)[1] == pytest.approx(-1.0)
    # r k3, with the gradient of both: r k3 + r (1 - exp(.5))
    mask = jnp.ones((1, 1))
    k3 = math.exp(0.5) - 1.5
    value, slope = both(kl.importance_weighted, -0.5, old_logp=old, mask=mask)
    want = (math.e * k3, math.e * (k3 + 1 - math.exp(0.5)))
    assert (value, slope) == pytest.approx(want, rel=1e-5)
