"""Policy losses against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import policy_loss as pl
from zootomy.blocks import ratio
from zootomy.registry import ZootomyError


def run(block, ratios, advantages, mask=None, **hyper):
    """Loss and d loss / d logp for given ratios, with old_logp = -1."""
    ratios = jnp.atleast_2d(jnp.asarray(ratios, jnp.float32))
    advantages = jnp.atleast_2d(jnp.asarray(advantages, jnp.float32))
    mask = jnp.ones(ratios.shape) if mask is None else jnp.atleast_2d(jnp.asarray(mask))
    old = -jnp.ones(ratios.shape)

    def total(logp):
        out = block(ratio.token(logp, old, mask), advantages, logp, old, mask, **hyper)
        return out.loss.sum(), out

    slope, out = jax.grad(total, has_aux=True)(old + jnp.log(ratios))
    return np.asarray(out.loss), np.asarray(slope), out.stats


def test_ppo_clip_hand_computed():
    # r = 1, 1.5, 1.5, .5, .5 with A = 2, 2, -2, 2, -2 and clip .2/.28:
    # -min(rA, clip(r) A): -2 | -min(3, 2.56) | -min(-3, -2.56) = 3 | -min(1, 1.6) | -min(-1, -1.6)
    loss, slope, stats = run(
        pl.ppo_clip, [1, 1.5, 1.5, 0.5, 0.5], [2, 2, -2, 2, -2], clip_high=0.28
    )
    np.testing.assert_allclose(loss, [[-2, -2.56, 3, -1, 1.6]], rtol=1e-6)
    # d/dlogp of -rA is -rA; 0 where the clip binds
    np.testing.assert_allclose(slope, [[-2, 0, 3, -1, 0]], rtol=1e-6)
    np.testing.assert_array_equal(stats["clip_ratio"], [[0, 1, 0, 0, 1]])
    np.testing.assert_array_equal(stats["clip_ratio_high"], [[0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(stats["clip_ratio_low"], [[0, 0, 0, 0, 1]])
    # old - new = -log r
    np.testing.assert_allclose(
        stats["approx_kl"], -np.log([[1, 1.5, 1.5, 0.5, 0.5]]), rtol=1e-5, atol=1e-6
    )


def test_dual_clip_reaches_the_loss():
    # A = -1, r = 10, c = 3: the loss is 3; without the dual clip 10
    loss, slope, stats = run(pl.dual_clip, 10, -1)
    assert float(loss[0, 0]) == 3.0
    assert float(slope[0, 0]) == 0.0
    assert float(stats["clip_ratio_dual"][0, 0]) == 1.0
    assert float(run(pl.ppo_clip, 10, -1)[0][0, 0]) == pytest.approx(10, rel=1e-6)
    assert float(run(pl.dual_clip, 10, -1, clip_dual=5.0)[0][0, 0]) == 5.0


def test_dual_clip_leaves_positive_advantages_alone():
    # A = +1, r = 1, c = 3: -1; taken for positive advantages too, it would be -3
    assert float(run(pl.dual_clip, 1, 1)[0][0, 0]) == -1.0


def test_reinforce_value_and_gradient():
    # old = -1, r = e: logp = 0. Form "logp": -A logp = 0, slope -A. Form "ratio": -A e, slope -A e
    loss, slope, _ = run(pl.reinforce, math.e, 2)
    np.testing.assert_allclose([loss[0, 0], slope[0, 0]], [0, -2], atol=1e-6)
    loss, slope, _ = run(pl.reinforce, math.e, 2, form="ratio")
    np.testing.assert_allclose([loss[0, 0], slope[0, 0]], [-2 * math.e] * 2, rtol=1e-6)


def test_without_a_ratio_both_forms_have_the_gradient_of_reinforce():
    logp = jnp.array([[-0.7, -2.0]])
    advantages, mask = jnp.array([[1.5, -0.5]]), jnp.ones((1, 2))
    for form, value in (("logp", 1.5 * 0.7 - 0.5 * 2), ("ratio", -1.0)):

        def total(x, form=form):
            log_ratio = ratio.none(x, logp, mask)
            return pl.reinforce(log_ratio, advantages, x, logp, mask, form=form).loss.sum()

        got, slope = jax.value_and_grad(total)(logp)
        assert float(got) == pytest.approx(value, abs=1e-6)
        np.testing.assert_allclose(slope, [[-1.5, 0.5]])


@pytest.mark.parametrize("block", [pl.ppo_clip, pl.dual_clip, pl.reinforce])
def test_nan_in_a_masked_slot_poisons_nothing(block):
    # logp [[0, 0]], old [[0, NaN]], A = 1, mask [1, 0]: -1 for the clipped losses, not NaN
    mask, old = jnp.array([[1, 0]]), jnp.array([[0.0, jnp.nan]])
    bad = jnp.array([[1.0, jnp.inf]])

    def total(logp):
        log_ratio = logp - old  # not cleaned by a ratio block: NaN at the masked slot
        out = block(log_ratio, bad, logp, old, mask)
        return out.loss.sum(), out

    slope, out = jax.grad(total, has_aux=True)(jnp.zeros((1, 2)))
    assert float(out.loss[0, 0]) == (0.0 if block is pl.reinforce else -1.0)
    assert float(out.loss[0, 1]) == 0.0
    np.testing.assert_array_equal(slope, [[-1.0, 0.0]])
    for stat in out.stats.values():
        assert bool(jnp.isfinite(stat).all())


def test_far_off_policy_the_loss_stays_finite():
    # log-ratio +-100: exp(100) overflows float32; bounded, the loss is exp(20) and has no slope
    loss, slope, _ = run(pl.ppo_clip, [math.exp(30), math.exp(-30)], [-1, 1])
    np.testing.assert_allclose(loss, [[math.exp(20), -math.exp(-20)]], rtol=1e-5)
    np.testing.assert_array_equal(slope, [[0, 0]])


def test_advantages_carry_no_gradient():
    one = jnp.ones((1, 1))
    slope = jax.grad(lambda a: pl.ppo_clip(0 * one, a, -one, -one, one).loss.sum())(one)
    assert float(slope[0, 0]) == 0.0


def test_wrong_hyperparameters_are_refused():
    one = jnp.ones((1, 1))
    with pytest.raises(ZootomyError, match=r"^dual_clip: clip_dual must be above 1, got 0\.5\.$"):
        pl.dual_clip(one, one, one, one, one, clip_dual=0.5)
    with pytest.raises(ZootomyError, match=r"clip_low must be at least 0"):
        pl.ppo_clip(one, one, one, one, one, clip_low=-0.1)
    with pytest.raises(ZootomyError, match=r"advantages has shape \[1\]"):
        pl.ppo_clip(one, jnp.ones(1), one, one, one)
