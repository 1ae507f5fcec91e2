"""Advantages by hand: returns and generalised advantage estimation over actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.blocks import advantage as module
from zootomy.registry import ZootomyError, get

NAN = float("nan")


def run(name, rewards, values, mask, **hyperparameters):
    values = None if values is None else jnp.asarray(values, jnp.float32)
    block = get("advantage", name)
    advantages, returns = block(
        jnp.asarray(rewards, jnp.float32), values, jnp.asarray(mask), **hyperparameters
    )
    assert advantages.dtype == returns.dtype == jnp.float32
    return np.asarray(advantages), np.asarray(returns)


def test_return_to_go():
    # γ = .5: G_2 = 4, G_1 = 2 + .5·4 = 4, G_0 = 1 + .5·4 = 3
    advantages, returns = run(
        "cumulative_return", [[1, 2, 4], [3, NAN, 9]], None, [[1, 1, 1], [1, 0, 0]], gamma=0.5
    )
    np.testing.assert_allclose(advantages, [[3, 4, 4], [3, 0, 0]])
    np.testing.assert_allclose(returns, advantages)


def test_return_passes_over_observations():
    # Two actions, two tool tokens, one action: γ counts 2 steps, not 4. By position: .0625.
    rewards, mask = [[0, 0, NAN, 7, 1]], [[1, 1, 0, 0, 1]]
    got = run("cumulative_return", rewards, None, mask, gamma=0.5)[0]
    np.testing.assert_allclose(got, [[0.25, 0.5, 0, 0, 1]])
    got = run("cumulative_return", rewards, None, mask, gamma=0.5, holes="step")[0]
    np.testing.assert_allclose(got, [[0.0625, 0.125, 0, 0, 1]])
    got = run("cumulative_return", rewards, None, mask, gamma=0.5, holes="reset")[0]
    np.testing.assert_allclose(got, [[0, 0, 0, 0, 1]])


def test_a_kl_on_masked_tokens_does_not_leak():
    # mask [1, 0, 0, 1], KL 1 everywhere, coefficient 1, γ .9. With the leak:
    # −1 −.9 −.81 −.729 = −3.439. By position −1 − .729 = −1.729; by action −1 − .9 = −1.9.
    kl, mask = [[-1.0, -1.0, -1.0, -1.0]], [[1, 0, 0, 1]]
    by_position = run("cumulative_return", kl, None, mask, gamma=0.9, holes="step")[0]
    np.testing.assert_allclose(by_position, [[-1.729, 0, 0, -1]], rtol=1e-6)
    by_action = run("cumulative_return", kl, None, mask, gamma=0.9)[0]
    np.testing.assert_allclose(by_action, [[-1.9, 0, 0, -1]], rtol=1e-6)


def test_terminal_reward_stands_on_the_last_action():
    # The index of the last action is 3; the sum of the mask, 4, is one past it.
    mask = jnp.array([[1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    from zootomy.blocks.advantage.scan import last_action

    np.testing.assert_array_equal(
        last_action(mask), [[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]]
    )


def test_gae_by_hand():
    # γ .9, λ .8. δ_2 = 1 − .4 = .6; δ_1 = .9·.4 − .2 = .16; δ_0 = .9·.2 − .5 = −.32
    # A_2 = .6; A_1 = .16 + .72·.6 = .592; A_0 = −.32 + .72·.592 = .10624
    advantages, returns = run(
        "gae", [[0, 0, 1]], [[0.5, 0.2, 0.4]], [[1, 1, 1]], gamma=0.9, lam=0.8
    )
    np.testing.assert_allclose(advantages, [[0.10624, 0.592, 0.6]], rtol=1e-5)
    np.testing.assert_allclose(returns, [[0.60624, 0.792, 1.0]], rtol=1e-5)


def test_gae_passes_over_observations():
    # The same episode with a hole whose value, 9, must not show. Through it: 1.61297.
    rewards, values, mask = [[0, 0, 0, 1]], [[0.5, 0.2, 9, 0.4]], [[1, 1, 0, 1]]
    returns = run("gae", rewards, values, mask, gamma=0.9, lam=0.8)[1]
    np.testing.assert_allclose(returns, [[0.60624, 0.792, 0, 1.0]], rtol=1e-5)
    # As a step of value 0: δ_2 = .36, δ_1 = −.2; A_2 = .36 + .72·.6 = .792,
    # A_1 = −.2 + .72·.792 = .37024, A_0 = −.32 + .72·.37024 = −.05343; returns +.5, +.2
    returns = run("gae", rewards, values, mask, gamma=0.9, lam=0.8, holes="step")[1]
    np.testing.assert_allclose(returns, [[0.44657, 0.57024, 0, 1.0]], rtol=1e-4)


def test_gae_decays_once_an_action():
    # mask [1, 1, 0, 0], terminal reward on the last action. Put on the last token and carried
    # back through the mask it arrives as [.0156, .0625].
    rewards, mask = [[0, 1, 0, 0]], [[1, 1, 0, 0]]
    got = run("gae", rewards, np.zeros((1, 4)), mask, gamma=0.5, lam=0.5)[0]
    np.testing.assert_allclose(got, [[0.25, 1, 0, 0]])
    got = run("gae", rewards, np.zeros((1, 4)), mask, gamma=0.0)[0]
    np.testing.assert_allclose(got, [[0, 1, 0, 0]])


def test_gae_uses_returns_and_not_rewards():
    # γ = λ = 1 is Monte Carlo: 1 − .5 on every token. From the reward alone: [−.5, −.5, .5].
    got, returns = run("gae", [[0, 0, 1]], [[0.5] * 3], [[1, 1, 1]], lam=1.0)
    np.testing.assert_allclose(got, [[0.5, 0.5, 0.5]])
    np.testing.assert_allclose(returns, [[1, 1, 1]])


def test_truncated_rows_bootstrap():
    # V .5, and .7 behind the cut, γ .9, λ 1: δ_1 = .9·.7 − .5 = .13, δ_0 = .9·.5 − .5 = −.05,
    # A_0 = −.05 + .9·.13 = .067. As if it had ended: δ_1 = −.5, A_0 = −.05 − .45 = −.5. With the
    # last action's own value in place of the one behind it: [−.095, −.05].
    rewards, values, mask = [[0, 0, 9]] * 2, [[0.5, 0.5, 9]] * 2, [[1, 1, 0]] * 2
    truncated, behind = jnp.array([True, False]), jnp.array([0.7, NAN])
    got = run(
        "gae_bootstrap", rewards, values, mask,
        truncated=truncated, next_values=behind, gamma=0.9, lam=1.0,
    )[0]  # fmt: skip
    np.testing.assert_allclose(got, [[0.067, 0.13, 0], [-0.5, -0.5, 0]], rtol=1e-5)


def test_the_value_behind_the_cut_as_a_reward():
    # V_next = .7: δ_1 = .9·.7 − .5 = .13, δ_0 = .9·.5 − .5 = −.05; λ = 1, γ = .9:
    # A_1 = .13, A_0 = −.05 + .9·.13 = .067. A masked token, and a row that stopped, get nothing.
    mask = jnp.array([[1, 1, 0], [1, 1, 0]])
    rewards = module.bootstrap_truncated(
        jnp.zeros((2, 3)), jnp.array([0.7, NAN]), jnp.array([True, False]), mask, gamma=0.9
    )
    np.testing.assert_allclose(rewards, [[0, 0.63, 0], [0, 0, 0]], rtol=1e-6)
    got = run("gae", rewards, [[0.5, 0.5, 8]] * 2, mask, gamma=0.9, lam=1.0)[0]
    np.testing.assert_allclose(got[0], [0.067, 0.13, 0], rtol=1e-5)


def test_gae_without_a_critic():
    with pytest.raises(ZootomyError) as error:
        run("gae", [[1.0]], None, [[1]])
    assert str(error.value) == (
        "gae needs values, which is missing; give a critic's values [N, T]."
    )


@pytest.mark.parametrize("name", ["cumulative_return", "gae"])
@given(seed=st.integers(0, 2**32 - 1))
def test_tokens_that_are_no_actions_may_be_anything_and_anywhere(name, seed):
    draw = np.random.default_rng(seed)
    rewards = draw.normal(size=(2, 4)).astype(np.float32)
    values = draw.normal(size=(2, 4)).astype(np.float32)
    dense = run(name, rewards, values, np.ones((2, 4)), gamma=0.9)
    # The same actions, spread over nine tokens with NaN between them.
    places = np.sort(draw.permuted(np.tile(np.arange(9), (2, 1)), axis=1)[:, :4], axis=1)
    wide = (
        np.full((2, 9), np.nan, np.float32),
        np.full((2, 9), np.nan, np.float32),
        np.zeros((2, 9)),
    )
    for array, entries in zip(wide, (rewards, values, np.ones((2, 4))), strict=True):
        np.put_along_axis(array, places, entries.astype(array.dtype), axis=1)
    for part, expected in zip(run(name, *wide, gamma=0.9), dense, strict=True):
        np.testing.assert_allclose(
            np.take_along_axis(part, places, axis=1), expected, rtol=1e-5, atol=1e-6
        )
        assert not part[wide[2] == 0].any()


@pytest.mark.parametrize("name", ["cumulative_return", "gae"])
def test_jit_gradient_and_empty_rows(name):
    block = get("advantage", name)
    rewards = jnp.array([[1.0, NAN, 2.0], [NAN, NAN, NAN]])
    values = jnp.array([[0.5, NAN, 0.1], [NAN, NAN, NAN]])
    mask = jnp.array([[1, 0, 1], [0, 0, 0]])
    eager = block(rewards, values, mask)
    for got, want in zip(jax.jit(block)(rewards, values, mask), eager, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert not np.asarray(got)[1].any()
    gradients = jax.grad(lambda r, v: block(r, v, mask)[0].sum(), argnums=(0, 1))(rewards, values)
    for gradient in gradients:
        assert np.isfinite(np.asarray(gradient)).all()
        assert not np.asarray(gradient)[np.asarray(mask) == 0].any()
