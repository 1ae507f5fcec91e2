"""Aggregations by hand: weights over the whole mini-batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.registry import ZootomyError, get, names

# Rows of 3, 1, 0 and 2 actions; prompts 7 and 2, and prompt 5 with no action at all.
MASK = np.array([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
IDS = np.array([7, 2, 5, 7])
ALL = [
    "constant_length",
    "prompt_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "sequence_sum_token_mean",
    "token_mean",
    "token_sum",
]


def weights(name, mask=MASK, ids=IDS, **hyperparameters):
    got = get("aggregation", name)(jnp.asarray(mask), jnp.asarray(ids), **hyperparameters)
    assert got.dtype == jnp.float32
    return np.asarray(got)


@pytest.mark.parametrize(
    "name, hyperparameters, rows",
    [
        # 6 actions
        ("token_mean", {}, [1 / 6, 1 / 6, 0, 1 / 6]),
        # 3 rows with an action; 4 rows in all
        ("sequence_mean_token_mean", {}, [1 / 9, 1 / 3, 0, 1 / 6]),
        ("sequence_mean_token_mean", {"count_empty": True}, [1 / 12, 1 / 4, 0, 1 / 8]),
        ("sequence_mean_token_sum", {}, [1 / 3, 1 / 3, 0, 1 / 3]),
        ("sequence_mean_token_sum", {"count_empty": True}, [1 / 4, 1 / 4, 0, 1 / 4]),
        ("sequence_sum_token_mean", {}, [1 / 3, 1, 0, 1 / 2]),
        # length 10, or the padded width 4
        ("constant_length", {"length": 10}, [1 / 30, 1 / 30, 0, 1 / 30]),
        ("constant_length", {}, [1 / 12, 1 / 12, 0, 1 / 12]),
        ("constant_length", {"count_empty": True}, [1 / 16, 1 / 16, 0, 1 / 16]),
        # prompt 7 has 5 actions, prompt 2 has one: 2 prompts with an action; 3 in all
        ("prompt_mean", {}, [1 / 10, 1 / 2, 0, 1 / 10]),
        ("prompt_mean", {"count_empty": True}, [1 / 15, 1 / 3, 0, 1 / 15]),
        # a divisor that stays whatever a filter left of the batch
        ("token_sum", {"divisor": 40.0}, [1 / 40, 1 / 40, 0, 1 / 40]),
    ],
)
def test_by_hand(name, hyperparameters, rows):
    expected = MASK * np.array(rows)[:, None]
    np.testing.assert_allclose(weights(name, **hyperparameters), expected, rtol=1e-6)


def test_one_scale_for_every_term():
    # Advantages +1 and −1, lengths 1 and 3, ratio 1: the loss is −Σ w A.
    mask, ids = np.array([[1, 0, 0], [1, 1, 1]]), np.array([0, 0])
    advantages = mask * np.array([[1.0], [-1.0]])
    # token mean: −(1 − 3)/4 = .5; sequence mean: −(1 − 1)/2 = 0
    assert -(weights("token_mean", mask, ids) * advantages).sum() == 0.5
    loss = -(weights("sequence_mean_token_mean", mask, ids) * advantages).sum()
    np.testing.assert_allclose(loss, 0.0, atol=1e-7)


def test_a_truncated_row_leaves_numerator_and_denominator():
    # 30 tokens, 5 of them in a row that is masked out; loss 1 a token. 25/30 = .833 is wrong.
    mask = np.ones((6, 5))
    mask[2] = 0
    ids = np.arange(6)
    for name in ("token_mean", "sequence_mean_token_mean", "prompt_mean"):
        np.testing.assert_allclose(weights(name, mask, ids).sum(), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (3, 4)])
def test_without_an_action_every_weight_is_zero(name, shape):
    # 0/0 would be NaN, in the loss and in every gradient.
    got = weights(name, np.zeros(shape), np.zeros(shape[0], int))
    np.testing.assert_array_equal(got, np.zeros(shape))


@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 2**32 - 1))
def test_split_padding_and_order(name, seed):
    draw = np.random.default_rng(seed)
    mask = draw.random((5, 4)) < 0.6
    ids = draw.integers(0, 3, 5)
    loss = draw.normal(size=(5, 4))
    # The length is given: the padded width would follow the padding.
    hyperparameters = {"length": 4} if name == "constant_length" else {}
    plain = weights(name, mask, ids, **hyperparameters)
    # Any split into micro-batches sums to the whole, for the weights are those of the whole.
    whole = (plain * loss).sum()
    cut = draw.integers(1, 5)
    parts = (plain[:cut] * loss[:cut]).sum() + (plain[cut:] * loss[cut:]).sum()
    np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-7)
    # Padding to the right, to the left, and with rows that hold nothing.
    padded = weights(
        name, np.pad(mask, ((0, 2), (1, 3))), np.append(ids, [0, 9]), **hyperparameters
    )
    np.testing.assert_allclose(padded[:5, 1:5], plain, rtol=1e-6)
    assert not padded[5:].any()
    order = draw.permutation(5)
    np.testing.assert_allclose(
        weights(name, mask[order], ids[order], **hyperparameters), plain[order], rtol=1e-6
    )


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean_token_mean", "prompt_mean"])
def test_means_sum_to_one_and_four_shards_do_not_change_that(name):
    # Four shards of unit loss: each with its own denominators and a factor in the wrong
    # direction gives .0625; weights of the whole give 1.
    got = weights(name, np.ones((8, 3)), np.arange(8) // 2)
    np.testing.assert_allclose(sum(got[i : i + 2].sum() for i in range(0, 8, 2)), 1.0, rtol=1e-6)


def test_uneven_micro_batches_are_not_averaged():
    # Micro-batches of 3 and 1 tokens, loss 1: 3/4 + 1/4 = 1. Divided once more by their number: .5.
    mask = np.array([[1, 1, 1], [1, 0, 0]])
    got = weights("token_mean", mask, np.array([0, 1]))
    np.testing.assert_allclose([got[0].sum(), got[1].sum()], [0.75, 0.25])


@pytest.mark.parametrize("name", ALL)
def test_jit(name):
    block = get("aggregation", name)
    np.testing.assert_allclose(jax.jit(block)(MASK, IDS), block(MASK, IDS), rtol=1e-6)


def test_names_of_peers():
    for alias in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum"):
        assert callable(get("aggregation", alias))
    assert set(ALL) == set(names("aggregation"))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: weights("token_mean", np.ones(3)),
            "token_mean: mask must be [N, T], got shape [3].",
        ),
        (
            lambda: weights("prompt_mean", np.ones((2, 3)), np.zeros(3, int)),
            "prompt_mean: group_ids must be [N] = [2], got shape [3].",
        ),
        (
            lambda: weights("constant_length", length=0),
            "constant_length: length must be above 0, got 0.",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ZootomyError) as error:
        call()
    assert str(error.value) == message
