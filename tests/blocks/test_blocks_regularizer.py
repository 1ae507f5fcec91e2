"""Regularizers against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import regularizer
from zootomy.registry import ZootomyError

LOGP = jnp.array([[-1.0, -2.0, jnp.nan]])
REF = jnp.array([[-0.5, -2.0, jnp.inf]])
ENTROPY = jnp.array([[0.7, 0.2, jnp.nan]])
ADVANTAGES = jnp.array([[1.0, -1.0, jnp.nan]])
MASK = jnp.array([[1, 1, 0]])


def test_a_positive_entropy_coefficient_is_a_bonus():
    got, slope = jax.value_and_grad(
        lambda h: regularizer.entropy_bonus(LOGP, REF, h, ADVANTAGES, MASK).sum()
    )(ENTROPY)
    assert float(got) == pytest.approx(-0.9)  # minus the entropy: less loss, more entropy
    np.testing.assert_array_equal(slope, [[-1, -1, 0]])


@pytest.mark.parametrize(
    "hyper, value, slope",
    [
        ({}, math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
        ({"estimator": "k1"}, -0.5, 1),
        ({"estimator": "k1", "gradient": "k2"}, -0.5, -0.5),
        ({"estimator": "k2"}, 0.125, -0.5),
        ({"estimator": "abs", "clamp_out": 0.25}, 0.25, 0),
        ({"clamp": 0.25}, math.exp(0.25) - 1.5, 1 - math.exp(0.25)),
    ],
)
def test_kl_is_the_estimator_and_has_its_gradient(hyper, value, slope):
    got, gradient = jax.value_and_grad(
        lambda x: regularizer.kl(x, REF, None, ADVANTAGES, MASK, **hyper)[0, 0]
    )(LOGP)
    assert float(got) == pytest.approx(value, abs=1e-6)
    # a KL taken without a gradient would have no effect on the policy: all zeros
    np.testing.assert_allclose(gradient, [[slope, 0, 0]], atol=1e-6)


def test_masked_entries_are_zero():
    assert float(regularizer.kl(LOGP, REF, None, ADVANTAGES, MASK)[0, 2]) == 0.0


def test_what_is_missing_is_named():
    with pytest.raises(ZootomyError) as error:
        regularizer.kl(LOGP, None, None, ADVANTAGES, MASK)
    assert str(error.value) == (
        "regularizer kl needs ref_logp, which is missing; give the run a reference model."
    )
    with pytest.raises(ZootomyError, match="needs entropy, which is missing"):
        regularizer.entropy_bonus(LOGP, REF, None, ADVANTAGES, MASK)
