"""Blocks over the vocabulary, a few tokens at a time: the numbers of the plain formula."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.blocks import kl_estimator as kl
from zootomy.models import Head, map_distributions

N, T, D, E, V = 3, 5, 4, 6, 11
MASK = jnp.asarray(np.arange(T) < np.array([[5], [2], [4]]), jnp.float32)


def draw(seed=0, dtype=jnp.float32):
    """Hidden states and kernels of a policy of width 4 and a reference of width 6."""
    rng = np.random.default_rng(seed)
    shapes = ((N, T, D), (D, V), (N, T, E), (E, V))
    return [jnp.asarray(rng.normal(size=shape), jnp.float32).astype(dtype) for shape in shapes]


def plain(hidden, kernel, temperature):
    wide = hidden.astype(jnp.float32) @ kernel.astype(jnp.float32)
    return jax.nn.log_softmax(wide / temperature)


def over(block):
    """A block as a function of a chunk; its extra input is a factor a token."""
    return lambda logp, ref, given: given["factor"] * block(logp, ref)


def chunked(block, hidden, kernel, ref_hidden, ref_kernel, temperature, factor, chunk=4):
    heads = Head(hidden, kernel, temperature), Head(ref_hidden, ref_kernel, temperature)
    return map_distributions(over(block), *heads, {"factor": factor}, MASK, chunk=chunk)


BLOCKS = {
    "reverse": kl.full,
    "forward": lambda p, q: kl.full(p, q, direction="forward"),
    "top": lambda p, q: kl.top_k(p, q, k=3),
    "no tail": lambda p, q: kl.top_k(p, q, k=3, tail=False),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("chunk", [4, None])
def test_equals_the_plain_formula_in_value_and_gradient(name, chunk):
    block, arrays = BLOCKS[name], draw()
    factor = jnp.asarray(np.random.default_rng(1).uniform(0.5, 2, (N, T)), jnp.float32)

    def ours(arrays, temperature, factor):
        return chunked(block, *arrays, temperature, factor, chunk)

    def theirs(arrays, temperature, factor):
        p, q = plain(*arrays[:2], temperature), plain(*arrays[2:], temperature)
        return factor * block(p, jax.lax.stop_gradient(q)) * MASK

    found = []
    for function in (ours, theirs):
        total = jax.value_and_grad(lambda a, t, f, g=function: (g(a, t, f) * f).sum(), (0, 2))
        # One program for both; the values are those without a derivative.
        run = jax.jit(lambda *given, g=function, total=total: (total(*given), g(*given)))
        found.append(run(arrays, 0.7, factor))
    for got, want in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    gradients = found[0][0][1][0]
    assert np.abs(gradients[1]).max() > 0.1
    # The reference is frozen, its head too.
    assert not np.asarray(gradients[2]).any()
    assert not np.asarray(gradients[3]).any()


def test_the_divergence_is_what_estimators_have_in_expectation():
    hidden, kernel, ref_hidden, ref_kernel = draw(3)
    ones = jnp.ones((N, T))
    logp, ref = plain(hidden, kernel, 1.0), plain(ref_hidden, ref_kernel, 1.0)
    exact = jax.jit(lambda: chunked(kl.full, hidden, kernel, ref_hidden, ref_kernel, 1.0, ones))()
    # Every token as if it had been sampled, times its probability.
    for estimator in (kl.k1, kl.k3):
        mean = (jnp.exp(logp) * estimator(logp, ref)).sum(-1)
        np.testing.assert_allclose(exact, mean * MASK, rtol=1e-4, atol=1e-5)

    def expected(kernel, estimator, **options):
        found = plain(hidden, kernel, 1.0)
        tokens = estimator(found, ref, **options)
        return (jax.lax.stop_gradient(jnp.exp(found)) * tokens * MASK[..., None]).sum()

    slope = jax.jit(
        jax.grad(lambda k: chunked(kl.full, hidden, k, ref_hidden, ref_kernel, 1.0, ones).sum())
    )(kernel)
    # The gradient "k2", in expectation, is the one of the KL.
    for estimator, options in (
        (kl.k1, {"gradient": "k2"}),
        (kl.k2, {}),
        (kl.k3, {"gradient": "k2"}),
    ):
        want = jax.jit(jax.grad(partial(expected, estimator=estimator, **options)))(kernel)
        np.testing.assert_allclose(slope, want, rtol=1e-3, atol=1e-4)
    other = jax.jit(jax.grad(partial(expected, estimator=kl.k1)))(kernel)
    assert np.abs(slope - other).max() > 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_masked_is_inert(bad):
    def total(arrays):
        return chunked(kl.full, *arrays, 1.0, jnp.ones((N, T))).sum()

    clean = draw()
    spoilt = [jnp.where(MASK[..., None] > 0, x, bad) if x.ndim == 3 else x for x in clean]
    evaluate = jax.jit(jax.value_and_grad(total))
    want, got = (evaluate(arrays) for arrays in (clean, spoilt))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.asarray(got[1][0])[MASK == 0].any()


def test_plain_log_probabilities_in_place_of_heads():
    hidden, kernel, ref_hidden, ref_kernel = draw()
    logp, ref = plain(hidden, kernel, 0.7), plain(ref_hidden, ref_kernel, 0.7)
    ones = jnp.ones((N, T))
    want = jax.jit(lambda: chunked(kl.full, hidden, kernel, ref_hidden, ref_kernel, 0.7, ones))()
    given = {"factor": ones}
    spoilt = jnp.where(MASK[..., None] > 0, logp, jnp.nan)
    got = map_distributions(over(kl.full), spoilt, Head(ref_hidden, ref_kernel, 0.7), given, MASK)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(Head(ref_hidden, ref_kernel, 0.7).log_probs(), ref, atol=1e-5)


def test_inputs_of_a_sequence_reach_each_of_its_tokens():
    hidden, kernel, *_ = draw()
    seen = []

    def function(logp, ref, given):
        seen.append((logp.shape, ref, given["group"].shape, given["mask"].shape))
        return given["group"][:, None] * given["mask"]

    given = {"group": jnp.array([1.0, 2.0, 3.0]), "mask": MASK}
    got = map_distributions(function, Head(hidden, kernel), None, given, MASK, chunk=4)
    np.testing.assert_array_equal(got, MASK * np.array([[1.0], [2.0], [3.0]]))
    # 15 tokens in 4 chunks of 4: each a sequence of length 1.
    assert seen[0] == ((4, 1, V), None, (4,), (4, 1))


def test_only_as_many_tokens_as_rows_hold_are_computed():
    """Two rows with two of four sequences each; a row holds at most 6 tokens that count."""
    rng = np.random.default_rng(4)
    hidden = jnp.asarray(rng.normal(size=(4, T, D)), jnp.float32)
    kernel, mask = draw()[1], jnp.asarray(np.arange(T) < np.array([[4], [2], [0], [5]]))
    given = {"t": jnp.asarray(rng.uniform(size=(4, T)), jnp.float32), "n": jnp.arange(4.0)}
    seen = []

    def function(logp, ref, given):
        seen.append(len(logp))
        return (jnp.exp(2 * logp).sum(-1) + given["t"]) * (1 + given["n"][:, None])

    def total(hidden, packed):
        head = Head(hidden, kernel, 0.7, packed)
        out = map_distributions(function, head, None, given, mask, chunk=100)
        return (out * (1 + given["t"])).sum(), out

    evaluate = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    want, got = (evaluate(hidden, packed) for packed in (None, (2, 6)))
    assert sorted(set(seen)) == [16, 24]  # 12 and 20, in chunks of multiples of 8
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_bfloat16_gives_float32_and_gradients_of_its_dtype():
    arrays = draw(dtype=jnp.bfloat16)

    def total(hidden, kernel):
        return chunked(kl.full, hidden, kernel, *arrays[2:], 1.0, jnp.ones((N, T))).sum()

    value, slopes = jax.jit(jax.value_and_grad(total, (0, 1)))(*arrays[:2])
    p, q = plain(*arrays[:2], 1.0), plain(*arrays[2:], 1.0)
    np.testing.assert_allclose(value, (kl.full(p, q) * MASK).sum(), rtol=1e-5)
    assert value.dtype == jnp.float32
    assert {slope.dtype for slope in slopes} == {jnp.dtype("bfloat16")}


def test_the_kernels_gradient_is_summed_in_float32():
    """2048 chunks add a little each; a sum in bfloat16 would stick where 8 bits are used up."""
    hidden = jnp.full((2048, 1, 1), 1 / 256, jnp.bfloat16)
    mask = jnp.ones((2048, 1))
    reference = jnp.tile(jnp.log(jnp.array([0.9, 0.1], jnp.float32)), (2048, 1, 1))

    def total(kernel):
        block = lambda logp, ref, given: kl.full(logp, ref)  # noqa: E731
        return map_distributions(block, Head(hidden, kernel), reference, {}, mask, chunk=1).sum()

    slope = jax.grad(total)(jnp.zeros((1, 2), jnp.bfloat16))
    # dKL/dz_1 = p_1 (log(p_1 / q_1) - KL) = .5 (-.5878 - .5108) = -.5493; times 2048 / 256 = 8.
    np.testing.assert_allclose(np.asarray(slope, np.float32), [[-4.394, 4.394]], rtol=1e-2)


def memory(tokens, vocab=2000, width=8, chunk=16):
    """Temporary bytes of the compiled gradient."""
    hidden = jnp.zeros((tokens, 1, width))
    kernel = jnp.zeros((width, vocab))

    def total(hidden, kernel):
        block = lambda logp, ref, given: kl.full(logp, ref)  # noqa: E731
        heads = Head(hidden, kernel), Head(2 * hidden, kernel)
        return map_distributions(block, *heads, {}, jnp.ones((tokens, 1)), chunk=chunk).sum()

    compiled = jax.jit(jax.grad(total, (0, 1))).lower(hidden, kernel).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    few, many = memory(256), memory(1024)
    all_logits = 4 * 1024 * 2000
    assert many < all_logits / 4
    # Hidden states and a few numbers a token, of which the logits would be 250 times as many.
    assert many - few < 768 * 4 * 8 * 8


def test_wrong_calls():
    hidden, kernel, ref_hidden, ref_kernel = draw()
    with pytest.raises(ZootomyError) as error:
        map_distributions(lambda p, q, given: p, Head(hidden, kernel), None, {}, MASK, chunk=8)
    assert str(error.value) == (
        "A block over the vocabulary must return [N, T] for distributions [N, T, V]; for "
        "[8, 1, 11] it returned [8, 1, 11]."
    )
    with pytest.raises(ZootomyError, match=r"over 11 tokens, the reference's over 9; they must"):
        map_distributions(
            over(kl.full), Head(hidden, kernel), Head(ref_hidden, ref_kernel[:, :9]), {}, MASK
        )
