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


def test_imitation_of_good_samples():
    # A = 1, -1, NaN (masked): only the first counts
    got, slope = jax.value_and_grad(
        lambda x: regularizer.nll_positives(x, None, None, ADVANTAGES, MASK).sum()
    )(LOGP)
    assert float(got) == 1.0
    np.testing.assert_array_equal(slope, [[-1, 0, 0]])


def test_distillation_has_the_gradient_of_the_kl():
    # d = -.5: value k1 = -.5, slope d; k1's own slope would be 1, whatever the teacher
    got, slope = jax.value_and_grad(
        lambda x: regularizer.distillation(x, REF, None, ADVANTAGES, MASK).sum()
    )(LOGP)
    assert float(got) == pytest.approx(-0.5)
    np.testing.assert_allclose(slope, [[-0.5, 0, 0]])


def test_distillation_over_the_teachers_best_tokens():
    policy = jnp.log(jnp.array([[[0.5, 0.3], [0.5, 0.5], [1.0, 1.0]]]))
    teacher = jnp.log(jnp.array([[[0.6, 0.2], [0.5, 0.5], [jnp.nan, 0.1]]]))
    got = regularizer.distillation(policy, teacher, None, ADVANTAGES, MASK, estimator="top_k")
    # .5 log(.5/.6) + .3 log(.3/.2) + rest .2 log(.2/.2) = -.0912 + .1216
    np.testing.assert_allclose(got, [[0.03048, 0, 0]], atol=1e-4)
    with pytest.raises(ZootomyError, match=r"logp must be \[N, T, K\]"):
        regularizer.distillation(LOGP, REF, None, ADVANTAGES, MASK, estimator="top_k")


@pytest.mark.parametrize("direction, value", [("reverse", 0.5108), ("forward", 0.3681)])
def test_distillation_over_the_vocabulary(direction, value):
    # p = (.5, .5), q = (.9, .1): .5 log(.5/.9) + .5 log(.5/.1) = .5108; forward .3681
    policy = jnp.log(jnp.array([[[0.5, 0.5], [0.5, 0.5], [jnp.nan, 0.5]]]))
    teacher = jnp.log(jnp.array([[[0.9, 0.1], [0.5, 0.5], [0.5, jnp.nan]]]))

    def total(logp):
        got = regularizer.distillation(
            logp, teacher, None, ADVANTAGES, MASK, estimator="full", direction=direction
        )
        return got.sum(), got

    (_, got), slope = jax.value_and_grad(total, has_aux=True)(policy)
    np.testing.assert_allclose(got, [[value, 0, 0]], atol=1e-4)
    assert bool(jnp.isfinite(slope).all())
    assert not slope[0, 2].any()


def test_distillation_takes_the_teachers_best_of_the_whole():
    policy = jnp.log(jnp.array([[[0.2, 0.3, 0.5]] * 3]))
    teacher = jnp.log(jnp.array([[[0.2, 0.2, 0.6]] * 3]))
    got = regularizer.distillation(policy, teacher, None, ADVANTAGES, MASK, estimator="top_k", k=1)
    # The third token: .5 log(.5/.6) + .5 log(.5/.4); the policy's own best would be the same one,
    # but of the whole three terms: .5 log(.5/.6) + .3 log(.3/.2).
    np.testing.assert_allclose(got, [[0.02041, 0.02041, 0]], atol=1e-5)
    for k in (0, 4):
        with pytest.raises(ZootomyError) as error:
            regularizer.distillation(
                policy, teacher, None, ADVANTAGES, MASK, estimator="top_k", k=k
            )
        assert str(error.value) == f"top_k: k must be in 1..3, the tokens that are given, got {k}."


def test_the_entropy_bonus_of_the_undecided():
    # entropies .7 and .2: the upper half is .7
    got = regularizer.entropy_top(LOGP, REF, ENTROPY, ADVANTAGES, MASK, fraction=0.5)
    np.testing.assert_allclose(got, [[-0.7, 0, 0]], rtol=1e-6)
