"""Advantages by hand that look at lengths, turns, states and the variance of the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.registry import describe, get, names

NAN = float("nan")


def run(name, rewards, mask, values=None, hyperparameters=None, **extras):
    extras = {key: jnp.asarray(value) for key, value in extras.items()}
    values = None if values is None else jnp.asarray(values, jnp.float32)
    block = get("advantage", name)
    pair = block(
        jnp.asarray(rewards, jnp.float32),
        values,
        jnp.asarray(mask),
        **extras,
        **(hyperparameters or {}),
    )
    return [np.asarray(part) for part in pair]


def test_vapo_gae_adapts_lambda_to_the_length():
    # α = 1: a row of two actions has λ = 1 − 1/2, a row of one has λ = 0. V = 0, r = 1 at the
    # end: A = [λ, 1]; the critic's λ = 1 sees all of it from the start.
    rewards, mask = [[0, NAN, 1], [1, 0, 0]], [[1, 0, 1], [1, 0, 0]]
    advantages, returns = run(
        "vapo_gae", rewards, mask, np.zeros((2, 3)), {"alpha": 1.0, "gamma": 1.0}
    )
    np.testing.assert_allclose(advantages, [[0.5, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(returns, [[1, 0, 1], [1, 0, 0]])


def test_vapo_gae_decoupled():
    options = {"alpha": None, "lam": 0.25, "lam_critic": 0.5}
    advantages, returns = run("vapo_gae", [[0, 1]], [[1, 1]], np.zeros((1, 2)), options)
    np.testing.assert_allclose(advantages, [[0.25, 1]])
    np.testing.assert_allclose(returns, [[0.5, 1]])


def test_reinforce_pp_is_the_return_whitened():
    # γ = .5: G = [.5, 1, 0]: μ = .5, σ = .5 (ddof 1): [0, 1, −1]
    advantages, returns = run("reinforce_pp", [[0, 1, 0]], [[1, 1, 1]], None, {"gamma": 0.5})
    np.testing.assert_allclose(returns, [[0.5, 1, 0]])
    np.testing.assert_allclose(advantages, [[0, 1, -1]], atol=1e-6)


def test_turn_level():
    # Turns of 2, 1 and 2 actions with rewards 1, 2 and 4, wherever in the turn they are paid.
    # γ = .5 a turn: G_2 = 4, G_1 = 2 + 2, G_0 = 1 + 2. By action G_0 would be 1 + .5·2 ... less.
    turns = [[0, 0, 9, 1, 9, 2, 2]]
    mask = [[1, 1, 0, 1, 0, 1, 1]]
    rewards = [[1, 0, NAN, 2, NAN, 0, 4]]
    advantages, returns = run("turn_level", rewards, mask, None, {"gamma": 0.5}, turn_ids=turns)
    np.testing.assert_allclose(advantages, [[3, 3, 0, 4, 0, 4, 4]])
    np.testing.assert_allclose(returns, advantages)
    # any numbers may name the turns
    renamed = [[7, 7, 0, 3, 0, 7, 7]]
    again = run("turn_level", rewards, mask, None, {"gamma": 0.5}, turn_ids=renamed)[0]
    np.testing.assert_allclose(again, advantages)


def test_gigpo():
    # One prompt, two episodes, both begin in state 10. γ = .5.
    # Episode: R = 1 and 0, μ = .5: ±.5. Turns: G = [.5, 1] and [0, 0].
    # State 10: μ = .25: ±.25. States 20 and 30 were visited once: nothing to compare with.
    rewards, mask = [[0, NAN, 1], [0, NAN, 0]], [[1, 0, 1]] * 2
    states = [[10, 0, 20], [10, 0, 30]]
    options = {"gamma": 0.5, "norm": "none"}
    advantages, returns = run(
        "gigpo", rewards, mask, None, options, group_ids=[4, 4], turn_ids=states
    )
    np.testing.assert_allclose(advantages, [[0.75, 0, 0.5], [-0.75, 0, -0.5]])
    np.testing.assert_allclose(returns, [[0.5, 0, 1], [0, 0, 0]])
    # With deviations: ±.5/√.5 = ±.7071 and ±.25/√.125 = ±.7071, the latter with weight ω.
    options = {"gamma": 0.5, "omega": 2.0, "eps": 0.0}
    advantages = run("gigpo", rewards, mask, None, options, group_ids=[4, 4], turn_ids=states)[0]
    np.testing.assert_allclose(advantages[0], [3 * 0.707107, 0, 0.707107], rtol=1e-5)
    # The same states under two prompts are two states; a row without siblings is worth 0.
    apart = run("gigpo", rewards, mask, None, options, group_ids=[4, 5], turn_ids=states)[0]
    np.testing.assert_array_equal(apart, np.zeros((2, 3)))


def test_an_episode_counts_once_however_many_turns_it_has():
    # Rewards 1, 0, 1, 0 with 2, 1, 2, 1 turns. Split into a sample a turn the mean is 4/6 and
    # R = 1 is worth .333; as episodes it is .5.
    mask, turns = [[1, 1], [1, 0], [1, 1], [1, 0]], [[0, 1]] * 4
    rewards = [[0, 1], [0, 0], [0, 1], [0, 0]]
    options = {"omega": 0.0, "norm": "none"}
    got = run("gigpo", rewards, mask, None, options, group_ids=[0] * 4, turn_ids=turns)[0]
    np.testing.assert_allclose(got, [[0.5, 0.5], [-0.5, 0], [0.5, 0.5], [-0.5, 0]])


OTB = {
    # w = 1 − 2·.5 + .5 = .5 and 1 − 2·.25 + .5 = 1: W = [.5, 1] and [1, 2, 3]
    "old_logp": np.log([[0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]).astype(np.float32),
    "sum_pi_squared": np.full((2, 3), 0.5, np.float32),
    "group_ids": np.array([3, 3]),
}


def test_otb():
    # G = [1, 1, –] and [0, 0, 0]. Step 0: 1·.5/(.5 + 1) = 1/3; step 1: 1·1/(1 + 2) = 1/3.
    # An unweighted mean would be 1/2. Step 2 has no sibling: its baseline is itself.
    rewards, mask = [[0, 1, 0], [0, 0, 0]], [[1, 1, 0], [1, 1, 1]]
    got, returns = run("otb", rewards, mask, **OTB)
    np.testing.assert_allclose(got, [[2 / 3, 2 / 3, 0], [-1 / 3, -1 / 3, 0]], rtol=1e-5)
    np.testing.assert_allclose(returns, [[1, 1, 0], [0, 0, 0]])


def test_otb_tail_and_singleton():
    rewards, mask = [[0, 1, 0], [0, 0, 5]], [[1, 1, 0], [1, 1, 1]]
    # Step 2: G = 5 with itself as baseline, or none
    got = run("otb", rewards, mask, **OTB)[0]
    np.testing.assert_allclose(got[1, 2], 0, atol=1e-6)
    got = run("otb", rewards, mask, None, {"zero_tail": True}, **OTB)[0]
    np.testing.assert_allclose(got[1, 2], 5)
    alone = {**OTB, "group_ids": np.array([3, 8])}
    np.testing.assert_array_equal(run("otb", rewards, mask, **alone)[0], np.zeros((2, 3)))
    got = run("otb", rewards, mask, None, {"singleton": "reward"}, **alone)[0]
    np.testing.assert_allclose(got, [[1, 1, 0], [5, 5, 5]])


def test_otb_compares_the_kth_action_with_the_kth():
    # Row 0 has its second action after a hole: by actions the same as without it.
    rewards, mask = [[0, NAN, 1], [0, 0, 0]], [[1, 0, 1], [1, 1, 0]]
    got = run("otb", rewards, mask, **OTB)[0]
    np.testing.assert_allclose(got, [[2 / 3, 0, 2 / 3], [-1 / 3, -1 / 3, 0]], rtol=1e-5)
    # By positions nothing stands beside either of the second actions.
    got = run("otb", rewards, mask, None, {"steps": "positions"}, **OTB)[0]
    np.testing.assert_allclose(got, [[2 / 3, 0, 0], [-1 / 3, 0, 0]], atol=1e-6)


def test_otb_corrected():
    # ρ = 2 on row 0: w = .5·4 = 2; step 0: 1·2/(2 + 1) = 2/3. Capped at 1 it is `otb`.
    sampled = OTB["old_logp"] - np.log([[2.0], [1.0]]).astype(np.float32)
    rewards, mask = [[1, 0, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]
    got = run("otb_corrected", rewards, mask, rollout_logp=sampled, **OTB)[0]
    np.testing.assert_allclose(got[:, 0], [1 / 3, -2 / 3], rtol=1e-5)
    got = run("otb_corrected", rewards, mask, None, {"cap": 1.0}, rollout_logp=sampled, **OTB)[0]
    np.testing.assert_allclose(got[:, 0], [2 / 3, -1 / 3], rtol=1e-5)


@pytest.mark.parametrize("name", names("advantage"))
def test_tokens_that_are_no_actions_do_nothing(name):
    block = get("advantage", name)
    mask = jnp.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    draw = np.random.default_rng(3)
    everything = {
        "turn_ids": jnp.array([[0, 5, 1, 5], [0, 1, 5, 5], [5, 5, 5, 5]]),
        "group_ids": jnp.array([1, 1, 1]),
        "truncated": jnp.array([True, False, True]),
        "next_values": jnp.array([0.3, NAN, NAN]),
        "old_logp": jnp.asarray(-draw.random((3, 4)), jnp.float32),
        "rollout_logp": jnp.asarray(-draw.random((3, 4)), jnp.float32),
        "sum_pi_squared": jnp.asarray(draw.random((3, 4)), jnp.float32),
    }
    wanted = describe("advantage", name).extras
    rewards, values = (jnp.asarray(draw.normal(size=(3, 4)), jnp.float32) for _ in range(2))

    def call(fill):
        def dirty(x):
            if x.shape != mask.shape or x.dtype == jnp.int32:
                return x
            return jnp.where(mask > 0, x, fill)

        extras = {key: dirty(everything[key]) for key in wanted}
        return run(dirty(rewards), dirty(values), extras)

    @jax.jit
    def run(rewards, values, extras):
        slope = jax.grad(lambda r, v: block(r, v, mask, **extras)[0].sum(), argnums=(0, 1))
        return block(rewards, values, mask, **extras), slope(rewards, values)

    clean, _ = call(0.0)
    for fill in (NAN, float("inf")):
        pair, gradients = call(fill)
        for got, want in zip(pair, clean, strict=True):
            np.testing.assert_array_equal(got, want)
            assert not np.asarray(got)[np.asarray(mask) == 0].any()
        for gradient in gradients:
            assert np.isfinite(np.asarray(gradient)).all()
            assert not np.asarray(gradient)[np.asarray(mask) == 0].any()
