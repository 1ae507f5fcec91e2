"""Whitening by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.registry import ZootomyError, get

NAN = float("nan")


def whiten(name, advantages, mask, **hyperparameters):
    block = get("whitening", name)
    return np.asarray(
        block(jnp.asarray(advantages, jnp.float32), jnp.asarray(mask), **hyperparameters)
    )


def test_batch_by_hand():
    # [1, 2, 3] valid: μ = 2, σ² = 2/2 (ddof 1) or 2/3 (ddof 0). With the pads: neither.
    advantages, mask = [[1, 2, NAN], [3, 99, NAN]], [[1, 1, 0], [1, 0, 0]]
    got = whiten("batch", advantages, mask)
    np.testing.assert_allclose(got, [[-1, 0, 0], [1, 0, 0]], rtol=1e-6)
    got = whiten("batch", advantages, mask, ddof=0)
    np.testing.assert_allclose(got, [[-1.224745, 0, 0], [1.224745, 0, 0]], rtol=1e-6)


def test_batch_options():
    advantages, mask = [[1, 2, 3]], [[1, 1, 1]]
    np.testing.assert_allclose(whiten("batch", advantages, mask, use_std=False), [[-1, 0, 1]])
    # scaled about the mean: 2 + (x − 2)/1
    np.testing.assert_allclose(whiten("batch", advantages, mask, shift_mean=False), [[1, 2, 3]])
    # σ = 1: eps 3 inside the root divides by 2, as a floor by √3, beside σ by 4
    for place, expected in [("variance", 0.5), ("floor", 3**-0.5), ("std", 0.25)]:
        got = whiten("batch", advantages, mask, eps=3.0, eps_place=place)
        np.testing.assert_allclose(got, [[-expected, 0, expected]], rtol=1e-6)


def test_batch_is_one_batch_however_it_is_sharded():
    # Rows [1, 3] and [5, 7]: each shard on its own gives ∓1; together μ = 4, σ = √5 (ddof 0).
    got = whiten("batch", [[1, 3], [5, 7], [NAN, NAN]], [[1, 1], [1, 1], [0, 0]], ddof=0)
    np.testing.assert_allclose(
        got, [[-1.341641, -0.447214], [0.447214, 1.341641], [0, 0]], rtol=1e-5
    )


def test_batch_of_equal_advantages_is_exactly_zero():
    # The mean of many 0.1 is not 0.1 in float32; over sqrt(1e-16) it would be noise.
    got = whiten("batch", np.full((3, 7), 0.1), np.ones((3, 7)), eps=1e-16)
    np.testing.assert_array_equal(got, np.zeros((3, 7)))


@pytest.mark.parametrize("mask", [[[0, 0], [0, 0]], [[0, 1], [0, 0]]])
def test_batch_of_none_or_one(mask):
    # n/(n − 1) of one action is inf, a mean over none is 0/0.
    np.testing.assert_array_equal(whiten("batch", [[NAN, 5], [NAN, NAN]], mask), np.zeros((2, 2)))


def test_none():
    np.testing.assert_array_equal(whiten("none", [[2, NAN]], [[1, 0]]), [[2, 0]])


@given(seed=st.integers(0, 2**32 - 1))
def test_batch_shift_scale_padding_and_order(seed):
    draw = np.random.default_rng(seed)
    advantages = draw.normal(size=(3, 4)).astype(np.float32)
    mask = draw.random((3, 4)) < 0.7
    mask[0, :2] = True
    plain = whiten("batch", advantages, mask)
    np.testing.assert_allclose(
        whiten("batch", 4 * advantages + 8, mask), plain, rtol=1e-3, atol=1e-4
    )
    padded = np.pad(advantages, ((0, 1), (2, 3)), constant_values=np.nan)
    got = whiten("batch", padded, np.pad(mask, ((0, 1), (2, 3))))
    np.testing.assert_allclose(got[:3, 2:6], plain, rtol=1e-5, atol=1e-6)
    order = draw.permutation(3)
    np.testing.assert_allclose(
        whiten("batch", advantages[order], mask[order]), plain[order], rtol=1e-5, atol=1e-6
    )


def test_jit_and_gradient():
    block = get("whitening", "batch")
    mask = jnp.array([[1, 1, 0]])
    for advantages in (jnp.array([[1.0, 3.0, NAN]]), jnp.array([[2.0, 2.0, NAN]])):
        np.testing.assert_allclose(jax.jit(block)(advantages, mask), block(advantages, mask))
        gradient = jax.grad(lambda a: (block(a, mask) ** 2).sum())(advantages)
        assert np.isfinite(np.asarray(gradient)).all()
        assert gradient[0, 2] == 0


def test_errors():
    with pytest.raises(ZootomyError) as error:
        whiten("batch", [[1.0, 2.0]], [[1, 1]], eps_place="outside")
    assert str(error.value) == (
        "whitening: eps_place must be one of 'variance', 'floor', 'std'; got 'outside'."
    )


def test_sequence_counts_a_completion_once():
    # Advantages 1 (one action) and −1 (three actions). Over tokens: μ = −.5, σ = .866 (ddof 0):
    # [1.73, −.577]. Over completions: μ = 0, σ = 1.
    advantages, mask = [[1, NAN, 9], [-1, -1, -1]], [[1, 0, 0], [1, 1, 1]]
    over_tokens = whiten("batch", advantages, mask, ddof=0)
    np.testing.assert_allclose(over_tokens[:, 0], [1.732051, -0.577350], rtol=1e-5)
    got = whiten("sequence", advantages, mask, ddof=0)
    np.testing.assert_allclose(got, [[1, 0, 0], [-1, -1, -1]], rtol=1e-6)
    # unbiased: σ² = 2/1
    got = whiten("sequence", advantages, mask)
    np.testing.assert_allclose(got[:, 0], [0.707107, -0.707107], rtol=1e-5)


def test_group():
    # Prompt 4: [1, 3, 5] (μ 3, σ 2); prompt 2: [7] alone.
    advantages, mask = [[1, NAN], [7, NAN], [3, 5]], [[1, 0], [1, 0], [1, 1]]
    ids = jnp.array([4, 2, 4])
    got = whiten("group", advantages, mask, group_ids=ids)
    np.testing.assert_allclose(got, [[-1, 0], [0, 0], [0, 1]], atol=1e-6)


def test_row():
    # [1, 3]: μ 2, σ 1 (ddof 0); a row of equal advantages is lost
    got = whiten("row", [[1, 3, NAN], [5, 5, 5]], [[1, 1, 0], [1, 1, 1]])
    np.testing.assert_allclose(got, [[-1, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize("name", ["batch", "sequence", "group", "row"])
def test_masked_entries_do_nothing(name):
    extras = {"group_ids": jnp.array([0, 0, 1])} if name == "group" else {}
    block = get("whitening", name)
    mask = jnp.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    advantages = jnp.array([[1.0, 2.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    @jax.jit
    def run(advantages, mask):
        square = lambda a: (block(a, mask, **extras) ** 2).sum()  # noqa: E731
        return block(advantages, mask, **extras), jax.grad(square)(advantages)

    clean, _ = run(advantages, mask)
    for fill in (NAN, float("inf")):
        dirty = jnp.where(mask > 0, advantages, fill)
        found, gradient = run(dirty, mask)
        np.testing.assert_array_equal(found, clean)
        assert np.isfinite(np.asarray(gradient)).all()
        assert not np.asarray(gradient)[np.asarray(mask) == 0].any()
    assert not np.asarray(run(dirty, jnp.zeros_like(mask))[0]).any()
