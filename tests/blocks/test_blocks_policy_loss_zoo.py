"""The losses beyond PPO and REINFORCE, against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import policy_loss as pl
from zootomy.blocks import ratio
from zootomy.registry import ZootomyError, get


def run(block, ratios, advantages, mask=None, old=-1.0, ratio_block=ratio.token, **hyper):
    """Loss, d(sum of loss)/d logp and statistics, for given ratios to old_logp."""
    ratios = jnp.atleast_2d(jnp.asarray(ratios, jnp.float32))
    advantages = jnp.broadcast_to(
        jnp.atleast_2d(jnp.asarray(advantages, jnp.float32)), ratios.shape
    )
    mask = jnp.ones(ratios.shape) if mask is None else jnp.atleast_2d(jnp.asarray(mask))
    old = jnp.broadcast_to(jnp.asarray(old, jnp.float32), ratios.shape)

    def total(logp):
        out = block(ratio_block(logp, old, mask), advantages, logp, old, mask, **hyper)
        return out.loss.sum(), out

    slope, out = jax.grad(total, has_aux=True)(old + jnp.log(ratios))
    return np.asarray(out.loss), np.asarray(slope), out.stats


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    # logp = -1 + log r; loss = -w A logp with w = min(r, 2): r = 4 -> -2 * 3 * (log 4 - 1)
    loss, slope, stats = run(pl.cispo, [1, 4], [3, 3], high=2.0)
    np.testing.assert_allclose(loss, [[3, -6 * (math.log(4) - 1)]], rtol=1e-5)
    np.testing.assert_allclose(slope, [[-3, -6]], rtol=1e-6)  # PPO's clip would give 0 for r = 4
    np.testing.assert_array_equal(stats["clip_ratio"], [[0, 1]])


def test_topr_tapers_the_bad_ones_only():
    # A > 0: weight 1 whatever r; A < 0: min(r, 1)
    _, slope, _ = run(pl.topr, [3, 0.25, 3, 0.25], [1, 1, -1, -1])
    np.testing.assert_allclose(slope, [[-1, -1, 1, 0.25]], rtol=1e-6)
    _, slope, _ = run(pl.topr, [3, 0.25], [1, 1], positive_low=0.5, positive_high=2.0)
    np.testing.assert_allclose(slope, [[-2, -0.5]], rtol=1e-6)


def test_kimi_pulls_back():
    # r = e: -A logp + tau/2 = 0 + 0.2; slope -A + tau log r = -2 + 0.4
    loss, slope, _ = run(pl.kimi, math.e, 2, tau=0.4)
    np.testing.assert_allclose([loss[0, 0], slope[0, 0]], [0.2, -1.6], atol=1e-6)
    assert get("policy_loss", "dro") is pl.kimi


def test_delta_clip_bounds_negative_advantages():
    # A = -1: r = 10 -> 4 without slope, r = 3 -> 3; A = 1 as PPO
    loss, slope, stats = run(pl.delta_clip, [10, 3, 1.1], [-1, -1, 1])
    np.testing.assert_allclose(loss, [[4, 3, -1.1]], rtol=1e-6)
    np.testing.assert_allclose(slope, [[0, 3, -1.1]], rtol=1e-6)
    np.testing.assert_array_equal(stats["clip_ratio_delta"], [[1, 0, 0]])


def test_luspo_multiplies_by_the_length():
    mask = [[1, 1, 1], [1, 0, 0]]
    loss, _, _ = run(pl.luspo, np.ones((2, 3)), 2, mask=mask)
    np.testing.assert_allclose(loss, [[-6, -6, -6], [-2, 0, 0]])


def test_sapo_has_the_gradient_of_the_ratio_at_one():
    # at r = 1: -4/tau * 1/2 * A = -2A/tau, slope -A; at r = 2, tau 1: -4 sigma(1) A, slope less
    loss, slope, stats = run(pl.sapo, [1, 1, 2], [1, -1, 1], tau_negative=2.0)
    sigma = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(loss, [[-2, 1, -4 * sigma]], rtol=1e-6)
    np.testing.assert_allclose(slope, [[-1, 1, -4 * sigma * (1 - sigma) * 2]], rtol=1e-5)
    np.testing.assert_allclose(stats["gate"], [[1, 1, 4 * sigma * (1 - sigma)]], rtol=1e-5)


def test_vespo_weighs_the_whole_sequence():
    # two tokens of r = 2: w = 4, A > 0: phi = 4^2 exp(3 (1 - 4)) = 16 exp(-9)
    _, slope, stats = run(pl.vespo, [[2.0, 2.0], [1.0, 9.0]], [[1.0, 1.0]], mask=[[1, 1], [1, 0]])
    phi = 16 * math.exp(-9)
    np.testing.assert_allclose(stats["phi"], [[phi, phi], [1, 0]], rtol=1e-4)
    np.testing.assert_allclose(slope, [[-phi, -phi], [-1, 0]], rtol=1e-4)


def test_gmpo_is_a_geometric_mean_of_pessimistic_ratios():
    # d = .5 and -.1, A = 1, clip .4: e = .4 and -.1, mean .15; the clipped token has no slope
    loss, slope, stats = run(pl.gmpo, np.exp([[0.5, -0.1]]), 1)
    np.testing.assert_allclose(loss, -np.exp([[0.15, 0.15]]), rtol=1e-6)
    np.testing.assert_allclose(slope, [[0, -math.exp(0.15)]], rtol=1e-5)
    np.testing.assert_array_equal(stats["clip_ratio"], [[1, 0]])
    # A = -1: the pessimist keeps .5 (an arithmetic clip to .4 would reward it), and -.1
    loss, _, _ = run(pl.gmpo, np.exp([[0.5, -0.1]]), -1)
    np.testing.assert_allclose(loss, np.exp([[0.2, 0.2]]), rtol=1e-6)


def test_dppo_judges_probabilities_and_not_ratios():
    # q = .5 -> p = .7: moved by .2 > .15, dropped; q = .001 -> p = .01: ratio 10, moved by .009
    old = np.log([[0.5, 0.001, 0.5, 0.5]])
    ratios = [[1.4, 10, 0.6, 1.4]]
    loss, slope, stats = run(pl.dppo, ratios, [[1, 1, -1, -1]], old=old)
    # A < 0 with p rising is no overshoot: kept
    np.testing.assert_allclose(loss, [[0, -10, 0, 1.4]], rtol=1e-5)
    np.testing.assert_array_equal(stats["clip_ratio_high"], [[1, 0, 0, 0]])
    np.testing.assert_array_equal(stats["clip_ratio_low"], [[0, 0, 1, 0]])
    # the form "logp" has the same slope, up to the cap
    _, other, _ = run(pl.dppo, ratios, [[1, 1, -1, -1]], old=old, form="logp")
    np.testing.assert_allclose(other, slope, rtol=1e-5)
    _, capped, _ = run(pl.dppo, ratios, [[1, 1, -1, -1]], old=old, form="logp", ratio_cap=3.0)
    np.testing.assert_allclose(capped[0, 1], -3, rtol=1e-5)


def test_dppo_by_kl():
    # q = .5, p = .7: .5 log(.5/.7) + .5 log(.5/.3) = .0872
    old = math.log(0.5)
    for bound, dropped in ((0.086, 1.0), (0.088, 0.0)):
        _, _, stats = run(pl.dppo, 1.4, 1, old=old, divergence="kl", delta_high=bound)
        assert float(stats["clip_ratio"][0, 0]) == dropped


def test_ipo_mask_drops_and_still_pulls():
    # q = .5 -> p = .9 and .2: both beyond .2 whatever the sign of A; pull .5 (log r)^2
    old = math.log(0.5)
    loss, _, _ = run(pl.ipo_mask, [1.8, 0.4, 1.2], [-1, 1, 1], old=old, kl_tau=0.5)
    pull = 0.5 * np.log([1.8, 0.4, 1.2]) ** 2
    np.testing.assert_allclose(loss, [[pull[0], pull[1], pull[2] - 1.2]], rtol=1e-5)
    loss, _, _ = run(pl.ipo_mask, [1.8, 0.4], [-1, 1], old=old, kl_tau=0.0, by_sign=True)
    np.testing.assert_allclose(loss, [[1.8, -0.4]], rtol=1e-5)


def test_m2po_drops_the_fewest_tokens():
    # (log r)^2 = .01, .04, .25, .09; threshold .05: mean of .01, .04, .09 = .0467 is under it
    d = np.array([[0.1, -0.2, 0.5, 0.3]])
    loss, _, stats = run(pl.m2po, np.exp(d), 1, threshold=0.05)
    np.testing.assert_array_equal(stats["clip_ratio"], [[0, 0, 1, 0]])
    np.testing.assert_allclose(loss, -np.exp(d) * [[1, 1, 0, 1]], rtol=1e-6)
    # harmful tokens alone (A > 0 and r > 1): mean of .01 and .09 is .05; .25 dropped
    _, _, stats = run(pl.m2po, np.exp(d), 1, threshold=0.051, scope="harmful")
    np.testing.assert_array_equal(stats["clip_ratio"], [[0, 0, 1, 0]])
    # on-policy nothing is dropped
    assert float(run(pl.m2po, np.ones((1, 4)), 1)[2]["clip_ratio"].sum()) == 0


def test_clip_cov_takes_the_gradient_of_high_covariance():
    # logp = -1, -1, -3, -3 (mean -2), A = 2, -2, 2, -2: cov = 2, -2, -2, 2; a band of (1, 5)
    old = np.array([[-1.0, -1, -3, -3]])
    loss, slope, stats = run(pl.clip_cov, np.ones((1, 4)), [[2, -2, 2, -2]], old=old, fraction=0.5)
    np.testing.assert_array_equal(stats["clip_ratio"], [[1, 0, 0, 1]])
    np.testing.assert_allclose(loss, [[0, 2, -2, 0]])
    np.testing.assert_allclose(slope, [[0, 2, -2, 0]])
    # at least one token, at most the budget
    for fraction, taken in ((0.0002, 1), (0.25, 1), (1.0, 2)):
        _, _, stats = run(
            pl.clip_cov, np.ones((1, 4)), [[2, -2, 2, -2]], old=old, fraction=fraction
        )
        assert float(stats["clip_ratio"].sum()) == taken


def test_kl_cov_pulls_the_highest_covariance_back():
    # log r = .1 everywhere; the one token of highest covariance is pulled: + coef |log r|
    old = np.array([[-1.0, -1, -3, -4]])
    loss, slope, stats = run(
        pl.kl_cov, np.exp(0.1) * np.ones((1, 4)), [[2, -2, 2, -2]], old=old, fraction=0.25, coef=0.7
    )
    np.testing.assert_array_equal(stats["clip_ratio"], [[0, 0, 0, 1]])
    r = math.exp(0.1)
    np.testing.assert_allclose(loss, [[-2 * r, 2 * r, -2 * r, 2 * r + 0.07]], rtol=1e-5)
    np.testing.assert_allclose(slope[0, 3], 2 * r + 0.7, rtol=1e-5)


def test_fipo_rewards_tokens_whose_future_is_reinforced():
    # half-life 1: gamma = .5; log r = .0, .1, .2 -> F = 0 + .05 + .05 = .1, .2, .2
    d = np.array([[0.0, 0.1, 0.2]])
    _, _, stats = run(pl.fipo, np.exp(d), 1, half_life=1.0)
    np.testing.assert_allclose(stats["influence"], [[math.exp(0.1), 1.2, 1.2]], rtol=1e-5)
    # a falling future: held at 1, or at 1 - eps
    _, _, stats = run(pl.fipo, np.exp(-d), 1, half_life=1.0)
    np.testing.assert_allclose(stats["influence"], [[1, 1, 1]])
    _, _, stats = run(pl.fipo, np.exp(-d), 1, half_life=1.0, influence_high_only=False)
    np.testing.assert_allclose(stats["influence"], np.exp([[-0.1, -0.2, -0.2]]), rtol=1e-5)
    # a hole costs no factor: the same as without it
    _, _, with_hole = run(pl.fipo, np.exp([[0.0, 9.0, 0.1, 0.2]]), 1, mask=[[1, 0, 1, 1]],
                          half_life=1.0)  # fmt: skip
    np.testing.assert_allclose(with_hole["influence"], [[math.exp(0.1), 0, 1.2, 1.2]], rtol=1e-5)
    # A < 0 at r = 5 > 4: the weight is held at 1 at most
    _, _, stats = run(pl.fipo, 5.0, -1)
    assert float(stats["influence"][0, 0]) == 1.0


def test_real_classifies_a_group():
    # scores s/tau: good .2/.5 = .4, bad -.1/.5 = -.2: log(1 + e^-.4) + log(1 + e^-.2)
    ratios = np.exp([[0.2, 0.2], [-0.1, -0.1]])
    advantages, groups = np.array([[1.0, 1], [-1, -1]]), jnp.array([7, 7])

    def block(*args, **hyper):
        return pl.real(*args, group_ids=groups, **hyper)

    loss, slope, _ = run(block, ratios, advantages)
    want = math.log1p(math.exp(-0.4)) + math.log1p(math.exp(-0.2))
    np.testing.assert_allclose(loss, np.full((2, 2), want), rtol=1e-5)
    # each of the 4 tokens carries the loss; s is a mean over 2 tokens: 4 * (1/tau) * weight / 2
    weight = 1 / (1 + math.exp(0.4)), 1 / (1 + math.exp(0.2))
    np.testing.assert_allclose(slope, [[-4 * weight[0]] * 2, [4 * weight[1]] * 2], rtol=1e-5)
    # groups of their own do not see each other
    alone = pl.real(
        jnp.log(jnp.asarray(ratios)), jnp.asarray(advantages), jnp.zeros((2, 2)), jnp.zeros((2, 2)),
        jnp.ones((2, 2)), group_ids=jnp.array([0, 1]),
    ).loss  # fmt: skip
    np.testing.assert_allclose(alone[:, 0], np.log1p(np.exp([-0.4, -0.2])), rtol=1e-5)


def test_wrong_hyperparameters_are_refused():
    one = jnp.ones((1, 1))
    args = (one, one, one, one, one)
    with pytest.raises(ZootomyError, match=r"^cispo: low must be below high, got 6\.0 and 5\.0\.$"):
        pl.cispo(*args, low=6.0)
    with pytest.raises(ZootomyError, match=r"^m2po: threshold must be above 0, got 0\.0\.$"):
        pl.m2po(*args, threshold=0.0)
    with pytest.raises(ZootomyError, match=r"^real: group_ids must be \[N\] = \[1\], got \[2\]\.$"):
        pl.real(*args, group_ids=jnp.zeros(2))
