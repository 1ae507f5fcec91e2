"""Reward shapings by hand: arithmetic beside each number, and what a wrong version gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.blocks import RewardInfo
from zootomy.registry import ZootomyError, get

NAN = float("nan")


def shape(name, rewards, valid=None, lengths=None, truncated=None, **hyperparameters):
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    lengths = None if lengths is None else jnp.asarray(lengths)
    truncated = None if truncated is None else jnp.asarray(truncated, bool)
    info = RewardInfo(valid, lengths=lengths, truncated=truncated)
    return np.asarray(get("reward_shaping", name)(rewards, info, **hyperparameters))


@pytest.mark.parametrize(
    "name, expected",
    [
        # μ = 3/8: 1 − .375 and 0 − .375
        ("group_mean", (0.625, -0.375)),
        # others: (3 − 1)/7 = 2/7 and 3/7
        ("leave_one_out", (1 - 2 / 7, -3 / 7)),
        # σ² = (3·.625² + 5·.375²)/7 = 1.875/7, σ = .517549; .625/(.517549 + 1e-4)
        ("group_norm", (0.625 / (0.5175492 + 1e-4), -0.375 / (0.5175492 + 1e-4))),
    ],
)
def test_three_of_eight_correct(name, expected):
    right, wrong = expected
    got = shape(name, [[1, 1, 1, 0, 0, 0, 0, 0]])
    np.testing.assert_allclose(got, [[right] * 3 + [wrong] * 5], rtol=1e-6)
    # Without epsilon the published values: +1.2076 and −.7246 (ddof 1); ddof 0 would give 1.2910.
    if name == "group_norm":
        exact = shape(name, [[1, 1, 1, 0, 0, 0, 0, 0]], eps=0.0)
        np.testing.assert_allclose(exact[0, [0, -1]], [1.2076, -0.7246], atol=5e-5)


def test_estimators_differ_on_one_of_three():
    # GRPO: σ² = (4/9 + 1/9 + 1/9)/2 = 1/3; (2/3)/√(1/3) = 1.1547. RLOO: 1 − 0 and 0 − 1/2.
    rewards = [[1, 0, 0]]
    np.testing.assert_allclose(
        shape("group_norm", rewards, eps=0.0), [[1.154701, -0.577350, -0.577350]], rtol=1e-5
    )
    np.testing.assert_allclose(shape("leave_one_out", rewards), [[1, -0.5, -0.5]])


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "group_norm"])
@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3, 1e6 + 0.1, -7.3])
def test_equal_rewards_are_worth_exactly_nothing(name, value):
    # In float32 the mean of seven times 0.1 is not 0.1: a naive (R − μ)/(σ + 1e-9) is about ±1.
    hyperparameters = {"eps": 1e-9} if name == "group_norm" else {}
    got = shape(name, np.full((2, 7), value), **hyperparameters)
    np.testing.assert_array_equal(got, np.zeros((2, 7)))


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "group_norm"])
def test_each_prompt_is_its_own_baseline(name):
    # One baseline for all, (1+1+1+0+0+0)/6 = .5, would give ±.5 where nothing can be learnt.
    np.testing.assert_array_equal(shape(name, [[1, 1, 1], [0, 0, 0]]), np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "group_norm"])
def test_uneven_groups_by_their_valid_members(name):
    # p1 [1, 1, 1], p2 [0, 0]: one global mean of .6 would give .4 and −.6; right: 0 everywhere.
    got = shape(name, [[1, 1, 1], [0, 0, NAN]], [[1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(got, np.zeros((2, 3)))


def test_invalid_members_are_no_part_of_the_statistics():
    # [1, X, 1]: with X as 0 the mean is .667 and the valid ones get +.333; right: 0.
    np.testing.assert_array_equal(shape("group_mean", [[1, NAN, 1]], [[1, 0, 1]]), [[0, 0, 0]])
    # [1, 1, 1, FAILED]: with 0 for it μ = .75 and the others are worth .25.
    np.testing.assert_array_equal(
        shape("group_norm", [[1, 1, 1, 0]], [[1, 1, 1, 0]]), [[0, 0, 0, 0]]
    )
    # [1, 0, X, X]: two members, μ = .5, σ² = .5: ±.5/√.5 = ±.7071; as zeros: μ = .25.
    got = shape("group_norm", [[1, 0, NAN, 9]], [[1, 1, 0, 0]], eps=0.0)
    np.testing.assert_allclose(got, [[0.707107, -0.707107, 0, 0]], rtol=1e-5)
    # [1, NaN, 3] with the deviation of the population: μ = 2, σ = 1.
    got = shape("group_norm", [[1, NAN, 3]], [[1, 0, 1]], ddof=0, eps=0.0)
    np.testing.assert_allclose(got, [[-1, 0, 1]])


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "group_norm"])
@pytest.mark.parametrize(
    "rewards, valid", [([[5.0]], [[1]]), ([[1, NAN, NAN, NAN]], [[1, 0, 0, 0]])]
)
def test_a_completion_without_siblings(name, rewards, valid):
    # A deviation over one member is 0/0: NaN that spreads. Nothing to compare with: 0.
    np.testing.assert_array_equal(shape(name, rewards, valid), np.zeros(np.shape(rewards)))
    kept = shape(name, rewards, valid, singleton="reward")
    reward = rewards[0][0] / (1 + 1e-4) if name == "group_norm" else rewards[0][0]
    np.testing.assert_allclose(kept[0, 0], reward, rtol=1e-6)
    assert not kept[0, 1:].any()


def test_a_group_without_a_valid_member_is_zero():
    for name in ("group_mean", "leave_one_out", "group_norm", "identity"):
        got = shape(
            name,
            [[NAN, NAN], [2, 4]],
            [[0, 0], [1, 1]],
        )
        np.testing.assert_array_equal(got[0], [0, 0])


def test_a_rest_that_fills_no_group_is_a_row_with_invalid_entries():
    # [1, 2, 3] in groups of two: dividing the rest by its missing deviation gave [−1, 1, 3e5].
    got = shape("group_norm", [[1, 2], [3, NAN]], [[1, 1], [1, 0]], ddof=0, eps=1e-5)
    # μ = 1.5, σ = .5: ∓.5/.50001
    np.testing.assert_allclose(got, [[-0.5 / 0.50001, 0.5 / 0.50001], [0, 0]], rtol=1e-6)


def test_epsilon_shows_where_rewards_hardly_differ():
    # R = [0, 2⁻¹³, 0, 0]: μ = 2⁻¹⁵, σ = 2⁻¹³/2, R − μ = 3·2⁻¹⁵; eps 1e-4 damps 1.5 to .5685.
    rewards = [[0, 2.0**-13, 0, 0]]
    for eps, expected in [(1e-9, 1.49998), (1e-6, 1.47582), (1e-5, 1.28884), (1e-4, 0.56853)]:
        got = shape("group_norm", rewards, eps=eps)
        np.testing.assert_allclose(got[0, 1], expected, rtol=1e-4)


def test_kl_in_the_reward_comes_before_the_baseline():
    # Rewards [1, 0] with KL sums [.5, 0]: leave-one-out of [.5, 0] is ±.5, of [1, 0] ±1.
    np.testing.assert_allclose(shape("leave_one_out", [[1 - 0.5, 0]]), [[0.5, -0.5]])
    np.testing.assert_allclose(shape("leave_one_out", [[1, 0]]), [[1, -1]])


def test_identity_and_clip():
    np.testing.assert_array_equal(shape("identity", [[3, -2, NAN]], [[1, 1, 0]]), [[3, -2, 0]])
    np.testing.assert_array_equal(
        shape("clip", [[3, -2, NAN, 0.5]], [[1, 1, 0, 1]], low=0.25, high=1.0),
        # the invalid entry is 0 and not lifted to the lower bound
        [[1, 0.25, 0, 0.5]],
    )


def test_overlong_penalty_in_tokens():
    # max 20, buffer 8: from 12 tokens on. 16: (16 − 12)/8 = .5; 26: 1.75, but at most 1.
    rewards = [[1, 1, 1, 1, NAN]]
    valid = [[1, 1, 1, 1, 0]]
    lengths = [[12, 16, 20, 26, 26]]
    got = shape("overlong_penalty", rewards, valid, lengths, length=20, buffer=8)
    np.testing.assert_allclose(got, [[1, 0.5, 0, 0, 0]])
    got = shape(
        "overlong_penalty", rewards, valid, lengths, length=20, buffer=8, factor=2.0, cap=False
    )
    np.testing.assert_allclose(got, [[1, 0, -1, -2.5, 0]])


def test_overlong_penalty_counts_actions_and_no_tool_tokens():
    # 4 actions, 3 tokens of a tool, 5 actions: 9 tokens. The span of 12 would cost (12−8)/4 = 1.
    mask = jnp.array([[0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]])
    got = shape("overlong_penalty", [[0]], None, mask.sum(1)[None], length=12, buffer=4)
    np.testing.assert_allclose(got, [[-0.25]])


def test_overlong_penalty_has_a_buffer_of_a_fifth():
    # DAPO's 4096 of 20480: 18432 tokens are half way through the buffer.
    got = shape("overlong_penalty", [[0]], None, [[18432]], length=20480)
    np.testing.assert_allclose(got, [[-0.5]])


def test_stop_properly():
    rewards, truncated = [[2, 2, -1]], [[0, 1, 1]]
    got = shape("stop_properly", rewards, None, None, truncated, coef=0.25)
    np.testing.assert_allclose(got, [[2, 0.5, -0.25]])
    got = shape("stop_properly", rewards, None, None, truncated, coef=-0.5)
    np.testing.assert_allclose(got, [[2, -0.5, -0.5]])


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: shape("overlong_penalty", [[1.0]], None, [[3]]),
            "overlong_penalty needs length (tokens); a learner fills in its generation limit.",
        ),
        (
            lambda: shape("overlong_penalty", [[1.0]], length=8),
            "overlong_penalty needs info.lengths, which is missing; give actions a completion.",
        ),
        (
            lambda: shape("overlong_penalty", [[1.0]], None, [[3]], length=8, buffer=9),
            "overlong_penalty: buffer must be between 1 and length = 8, got 9.",
        ),
        (
            lambda: shape("group_norm", [1.0, 2.0]),
            "group_norm: rewards must be [P, G], got shape [2].",
        ),
        (
            lambda: shape("identity", [[1.0, 2.0]], [[True]]),
            "identity: valid has shape [1, 1], but rewards has [1, 2]; give arrays of one shape.",
        ),
        (
            lambda: shape("group_mean", [[1.0, 2.0]], singleton="mean"),
            "reward_shaping: singleton must be one of 'zero', 'reward'; got 'mean'.",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ZootomyError) as error:
        call()
    assert str(error.value) == message


GROUPS = st.integers(0, 2**32 - 1)


@given(seed=GROUPS)
def test_siblings_may_stand_in_any_order_and_shift_and_scale(seed):
    draw = np.random.default_rng(seed)
    rewards = draw.normal(size=(3, 5)).astype(np.float32)
    valid = draw.random((3, 5)) < 0.8
    order = draw.permutation(5)
    for name in ("group_mean", "leave_one_out", "group_norm"):
        plain = shape(name, rewards, valid)
        permuted = shape(name, rewards[:, order], valid[:, order])
        np.testing.assert_allclose(permuted, plain[:, order], rtol=1e-5, atol=1e-6)
        shifted = shape(name, rewards + 64.0, valid)
        np.testing.assert_allclose(shifted, plain, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(plain.sum(1), 0, atol=1e-5)
    normed = shape("group_norm", rewards, valid, eps=0.0)
    scaled = shape("group_norm", 8.0 * rewards, valid, eps=0.0)
    np.testing.assert_allclose(scaled, normed, rtol=1e-5, atol=1e-6)


@given(seed=GROUPS)
def test_leave_one_out_is_a_loop_over_siblings(seed):
    draw = np.random.default_rng(seed)
    rewards = draw.normal(size=(2, 4)).astype(np.float32)
    want = [[row[i] - np.delete(row, i).mean() for i in range(4)] for row in rewards]
    np.testing.assert_allclose(shape("leave_one_out", rewards), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "group_norm", "clip"])
def test_jit_gradient_and_precision(name):
    block = get("reward_shaping", name)
    rewards = jnp.array([[1.0, 1.0, NAN], [2.0, NAN, NAN], [0.5, 1.0, 2.0]])
    info = RewardInfo(jnp.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool))
    eager = block(rewards, info)
    # Fused, (R − μ) may differ in the last bit; what is exactly 0 stays exactly 0.
    np.testing.assert_allclose(jax.jit(block)(rewards, info), eager, rtol=1e-6, atol=1e-7)
    gradient = jax.grad(lambda r: block(r, info).sum())(rewards)
    assert np.isfinite(np.asarray(gradient)).all()
    assert not np.asarray(gradient)[~np.asarray(info.valid)].any()
    assert block(rewards.astype(jnp.bfloat16), info).dtype == jnp.float32
