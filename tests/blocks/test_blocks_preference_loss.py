"""Preference and reward-model losses against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import preference_loss as pref
from zootomy.blocks import reward_loss
from zootomy.registry import ZootomyError

# one pair: c = log pi/pi_ref = 1 of the chosen, j = -2 of the rejected; u = 3
CHOSEN, REJECTED = jnp.array([-4.0]), jnp.array([-6.0])
REFERENCES = jnp.array([-5.0]), jnp.array([-4.0])
LENGTHS = jnp.array([[2, 4]])


def sigma(x):
    return 1 / (1 + math.exp(-x))


def loss(block, **hyper):
    got = block(CHOSEN, REJECTED, *REFERENCES, LENGTHS, **hyper)
    assert got.shape == (1,)
    return float(got[0])


@pytest.mark.parametrize(
    "block, hyper, want",
    [
        (pref.dpo, {"beta": 0.5}, -math.log(sigma(1.5))),
        (
            pref.dpo,
            {"beta": 0.5, "label_smoothing": 0.1},
            -0.9 * math.log(sigma(1.5)) - 0.1 * math.log(sigma(-1.5)),
        ),
        # means over tokens: 1/2 - (-2/4) = 1
        (pref.dpo, {"beta": 0.5, "length_normalized": True}, -math.log(sigma(0.5))),
        (pref.f_dpo, {"beta": 0.5, "divergence": "forward_kl"},
         -math.log(sigma(0.5 * (-math.exp(-1) + math.exp(2))))),
        (pref.f_dpo, {"beta": 0.5, "divergence": "alpha", "alpha": 2.0},
         -math.log(sigma(0.5 * (math.exp(1) - math.exp(-2))))),
        (pref.f_dpo, {"beta": 0.5, "divergence": "alpha", "alpha": 1.0}, -math.log(sigma(1.5))),
        (pref.f_dpo, {"beta": 0.5},
         -math.log(sigma(0.5 * (math.log(sigma(1)) - math.log(sigma(-2)))))),
        (pref.r_dpo, {"beta": 0.5, "alpha": 0.1}, -math.log(sigma(1.5 - 0.2))),
        (pref.dpo_positive, {"beta": 0.5}, -math.log(sigma(1.5))),  # c > 0: no penalty
        (pref.dpo_sft, {"beta": 0.5, "coef": 0.3}, -math.log(sigma(1.5)) + 0.3 * 2),
        (pref.hinge, {"beta": 0.2}, 0.4),
        (pref.ipo, {"beta": 0.5}, 4.0),  # (3 - 1)^2
        (pref.ipo, {"beta": 0.5, "length_normalized": True}, 0.0),
        (pref.robust, {"beta": 0.5},
         (-0.9 * math.log(sigma(1.5)) + 0.1 * math.log(sigma(-1.5))) / 0.8),
        (pref.nca, {"beta": 0.5},
         -math.log(sigma(0.5)) - 0.5 * math.log(sigma(-0.5)) - 0.5 * math.log(sigma(1))),
        (pref.sppo, {"beta": 0.5}, 0.0 + 1.0),  # (1 - 1)^2 + (-2 + 1)^2
        (pref.bco, {"beta": 0.5, "shift": 0.1}, -math.log(sigma(0.4)) - math.log(sigma(1.1))),
        (pref.apo_zero, {"beta": 0.5}, 1 - sigma(0.5) + sigma(-1)),
        (pref.apo_down, {"beta": 0.5}, sigma(0.5) + 1 - sigma(1.5)),
        (pref.simpo, {}, -math.log(sigma(2 * (-2 + 1.5) - 1))),
        (pref.cpo, {"beta": 0.5}, -math.log(sigma(1)) + 2),
        (pref.sft, {}, 2.0),
    ],
)  # fmt: skip
def test_hand_computed(block, hyper, want):
    assert loss(block, **hyper) == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_exo_is_a_kl():
    p, e = sigma(1.5), 0.001
    want = p * math.log(p / (1 - e)) + (1 - p) * math.log((1 - p) / e)
    assert loss(pref.exo, beta=0.5) == pytest.approx(want, rel=1e-4)


def test_orpo_odds():
    # means -2 and -1.5: log odds a - log(1 - exp a)
    odds = [a - math.log1p(-math.exp(a)) for a in (-2.0, -1.5)]
    want = 2 - 0.1 * math.log(sigma(odds[0] - odds[1]))
    assert loss(pref.orpo) == pytest.approx(want, rel=1e-5)


def test_discopop_mixes():
    z = 0.05 * 3
    w = sigma(z / 0.05)
    want = -(1 - w) * math.log(sigma(z)) + w * math.exp(-z)
    assert loss(pref.discopop) == pytest.approx(want, rel=1e-5)


def test_dpo_positive_punishes_a_falling_chosen_completion():
    # the chosen one fell by 1: u = 3 - 50 * 1
    got = pref.dpo_positive(
        jnp.array([-6.0]), jnp.array([-8.0]), jnp.array([-5.0]), jnp.array([-4.0]), LENGTHS
    )
    assert float(got[0]) == pytest.approx(0.3 * 47, rel=1e-4)


def test_kto_measures_from_the_batch():
    # kl = max((1 - 2)/2, 0) = 0
    want = sigma(-0.5) * 2 + sigma(-1) * 3
    got = loss(pref.kto, beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    assert got == pytest.approx(want, rel=1e-5)


def test_aot_sorts_and_gives_each_pair_its_own_loss():
    chosen, rejected = jnp.array([-1.0, -4.0]), jnp.array([-2.0, -3.0])  # 1 and -1
    references = jnp.array([-3.0, -1.0]), jnp.array([-1.0, -4.0])  # -2 and 3, sorted -2, 3
    got = pref.aot(chosen, rejected, *references, jnp.ones((2, 2)), beta=1.0)
    # 1 is the larger: 1 - 3 = -2; -1 the smaller: -1 + 2 = 1
    np.testing.assert_allclose(got, [-math.log(sigma(-2)), -math.log(sigma(1))], rtol=1e-5)


def test_padding_is_no_part_of_a_completion():
    # prompt and padding masked: -1 - 2 = -3; with the padding's -4 it would be -7
    logp, mask = jnp.array([[-1.0, -2.0, -4.0]]), jnp.array([[1, 1, 0]])
    assert float(pref.completion_logp(logp, mask)[0]) == -3.0
    # the other completion has one token: the second counts half
    half = pref.completion_logp(logp, mask, jnp.array([[1, 0, 0]]), desensitisation=0.5)
    assert float(half[0]) == -2.0


def test_wpo_weights():
    # mean of (-1 - log .5, -2 - log .25) = mean(-.3069, -.6137) = -.4603
    got = pref.wpo_weights(jnp.array([[-1.0, -2.0]]), jnp.array([[0.5, 0.25]]), jnp.ones((1, 2)))
    assert float(got[0]) == pytest.approx(math.exp(-0.4603), rel=1e-4)


def test_wrong_input_is_refused():
    with pytest.raises(ZootomyError, match=r"^dpo: lengths must be \[B, 2\] = \[1, 2\], got shape"):
        pref.dpo(CHOSEN, REJECTED, *REFERENCES, jnp.ones(1))
    with pytest.raises(ZootomyError, match=r"label_smoothing must be in \[0, 0\.5\), got 0\.5"):
        loss(pref.dpo, label_smoothing=0.5)


def test_bradley_terry():
    c, j, m = jnp.array([2.0]), jnp.array([0.5]), jnp.array([1.0])
    assert float(reward_loss.bradley_terry(c, j, None)[0]) == pytest.approx(-math.log(sigma(1.5)))
    want = -math.log(sigma(0.5)) + 0.1 * 2.5**2
    got = reward_loss.bradley_terry(c, j, m, center=0.1)
    assert float(got[0]) == pytest.approx(want, rel=1e-5)


def test_log_exp_does_not_overflow():
    # a gap of 105: log(1 + exp(105)) = 105; written literally it is inf
    got, slope = jax.value_and_grad(lambda j: reward_loss.log_exp(jnp.array([0.0]), j, None).sum())(
        jnp.array([105.0])
    )
    assert float(got) == 105.0
    assert float(slope[0]) == 1.0


def test_sum_to_zero_looks_at_the_batch():
    c, j = jnp.array([2.0, 1.0]), jnp.array([0.5, -1.0])
    got = reward_loss.sum_to_zero(c, j, None, coef=0.1)
    np.testing.assert_allclose(
        got, [-math.log(sigma(1.5)) + 0.625, -math.log(sigma(2)) + 0.625], rtol=1e-5
    )


def test_purm_is_bradley_terry_when_sure():
    sure = jnp.array([[2.0, -12.0]]), jnp.array([[0.5, -12.0]])
    assert float(reward_loss.purm(*sure, None)[0]) == pytest.approx(-math.log(sigma(1.5)), rel=1e-4)
    # unsure: E[sigmoid] of N(1.5, 2) by a fine grid
    unsure = jnp.array([[2.0, 0.0]]), jnp.array([[0.5, 0.0]])
    z = np.linspace(-10, 10, 20001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    mean = np.trapezoid(density / (1 + np.exp(-(1.5 + math.sqrt(2) * z))), z)
    assert float(reward_loss.purm(*unsure, None)[0]) == pytest.approx(-math.log(mean), rel=1e-4)


def test_temperature_calibration():
    # gaps of 2, right 3 times of 4: sigma(2/T) = .75, T = 2 / log 3
    c, j = jnp.array([2.0, 2, 2, 0]), jnp.array([0.0, 0, 0, 2])
    got = reward_loss.calibrate_temperature(c, j)
    assert float(got) == pytest.approx(2 / math.log(3), rel=1e-3)
