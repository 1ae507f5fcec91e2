"""Group filters by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.registry import ZootomyError, get

NAN = float("nan")


def keep(name, rewards, valid=None, **hyperparameters):
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    block = get("group_filter", name)
    got = np.asarray(block(rewards, valid, **hyperparameters))
    jitted = jax.jit(lambda r, v: block(r, v, **hyperparameters))(rewards, valid)
    np.testing.assert_array_equal(got, jitted)
    return got.tolist()


def test_zero_std():
    rewards = [[1, 1, 1], [1, 0, 1], [0, 0, 0], [0.1, 0.1, 0.1]]
    # Seven times 0.1 in float32 has a deviation that a naive version takes for a signal.
    assert keep("zero_std", rewards) == [False, True, False, False]


def test_zero_std_looks_at_valid_members_only():
    # A failed rollout as 0 would make [1, 1, X] look like a group that teaches.
    rewards = [[1, 1, NAN], [1, NAN, NAN], [NAN, NAN, NAN], [1, 0, NAN]]
    valid = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert keep("zero_std", rewards, valid) == [False, False, False, True]


def test_zero_std_tolerance():
    # σ of [0, .1] is .05 (ddof 0); ddof 1 would give .0707 and keep it.
    assert keep("zero_std", [[0, 0.1]], tol=0.06) == [False]
    assert keep("zero_std", [[0, 0.1]], tol=0.04) == [True]


def test_score_range():
    rewards = [[1, 1, 1], [1, 0, 1], [0, 0, 0], [NAN, 1, 0]]
    valid = [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 1, 0]]
    # means 1, 2/3, 0, and 1 over the only valid member
    assert keep("score_range", rewards, valid) == [False, True, False, False]
    assert keep("score_range", rewards, valid, low=0.7, high=1.5) == [True, False, False, True]
    assert keep("score_range", [[NAN, NAN]], [[0, 0]], low=-1.0) == [False]


def test_score_range_margin():
    # mean .999: inside (0, 1), outside (.01, .99)
    assert keep("score_range", [[0.999, 0.999]]) == [True]
    assert keep("score_range", [[0.999, 0.999]], margin=0.01) == [False]


def test_score_range_that_keeps_nothing():
    with pytest.raises(ZootomyError) as error:
        keep("score_range", [[1.0, 0.0]], low=1.0, high=0.5)
    assert str(error.value) == (
        "score_range keeps nothing: low + margin = 1.0 is not below high - margin = 0.5."
    )


def test_pass_rate():
    # shares 1/5, 4/5, 0, 1, and 1/2 of the two that are valid
    rewards = [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0] * 5, [1] * 5, [1, 0, NAN, NAN, NAN]]
    valid = np.ones((5, 5))
    valid[4, 2:] = 0
    # the window is closed: a naive comparison loses 0.2 and 0.8, which are no float32
    assert keep("pass_rate", rewards, valid) == [True, True, False, False, True]
    assert keep("pass_rate", rewards, valid, low=0.3, high=0.7) == [False] * 4 + [True]
    assert keep("pass_rate", [[2, 3, 4]], threshold=3.0) == [True]
    assert keep("pass_rate", [[NAN]], [[0]], low=0.0) == [False]
