"""A head that cuts the vocabulary: the same numbers, and little memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.models import token_stats
from zootomy.models.vocabulary import Options, blocked_stats

TOKENS, WIDTH, VOCAB = 6, 5, 13


def given(vocab=VOCAB, scale=3.0):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(TOKENS, WIDTH)), jnp.float32)
    kernel = jnp.asarray(scale * rng.normal(size=(WIDTH, vocab)), jnp.float32)
    # Among them the first and the last column.
    return hidden, kernel, jnp.asarray([0, 5, 12, 7, 4, 11])


def dense(hidden, kernel, targets, temperature):
    logs = jax.nn.log_softmax(hidden @ kernel / temperature)
    p = jnp.exp(logs)
    logp = jnp.take_along_axis(logs, targets[:, None], axis=1)[:, 0]
    return logp, -jnp.sum(p * logs, axis=1), jnp.sum(p * p, axis=1)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("block", [4, 5, 13])
def test_equals_the_dense_head_in_value_and_gradient(block, keep):
    """13 columns: blocks of 4 leave one for the last, which overlaps; 5 leave 3; 13 is one."""
    hidden, kernel, targets = given()
    options = Options(block, True, True, keep)
    cotangents = tuple(jnp.linspace(a, 2.0, TOKENS) for a in (-1.0, 0.5, 0.1))

    def both(function):
        out, back = jax.vjp(function, hidden, kernel, jnp.float32(0.7))
        return *out, *back(cotangents)

    ours = jax.jit(lambda: both(lambda h, k, t: blocked_stats(h, k, targets, t, options)))()
    theirs = both(lambda h, k, t: dense(h, k, targets, t))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_far_logits_stay_finite():
    """A peak that rises from block to block by hundreds: what came before counts for nothing."""
    kernel = jnp.asarray([[0.0, 500.0, 1000.0, 400.0]])
    logp, entropy, squares = blocked_stats(
        jnp.ones((2, 1)),
        kernel,
        jnp.asarray([2, 1]),
        jnp.float32(1.0),
        Options(1, True, True, False),
    )
    np.testing.assert_allclose(logp, [0.0, -500.0])
    np.testing.assert_allclose(entropy, [0.0, 0.0])
    np.testing.assert_allclose(squares, [1.0, 1.0])


def products(tokens, vocab):
    def total(hidden, kernel):
        found = token_stats(hidden, kernel, jnp.zeros(tokens, jnp.int32), vocabulary_blocks=True)
        return jnp.sum(found.logp)

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(
        jax.ShapeDtypeStruct((tokens, 3), jnp.float32),
        jax.ShapeDtypeStruct((3, vocab), jnp.float32),
    ))  # fmt: skip
    return text.count("dot_general")


def test_up_to_64_mib_of_logits_are_kept_for_the_backward_pass():
    """512 tokens of 32,768 are 2^24 logits, in 16 blocks of 2^20 that are written out.

    Each takes three products. One token more, and a loop over the blocks takes four.
    """
    assert products(512, 32_768) == 16 * 3
    assert products(513, 32_768) == 4


def test_a_float32_temperature_is_taken_before_the_product():
    """All that divides has D or fewer numbers a token: z = (h / t) W, not (h W) / t."""

    def total(hidden, kernel, temperature):
        targets = jnp.zeros(7, jnp.int32)
        found = token_stats(
            hidden, kernel, targets, temperature=temperature, vocabulary_blocks=True
        )
        return jnp.sum(found.logp)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((7, 3), (3, 16_400), ())]
    narrow = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in shapes[:2]]
    gradient = jax.grad(total, argnums=(0, 1, 2))
    assert not divided(jax.make_jaxpr(gradient)(*shapes), 16_400)
    assert divided(jax.make_jaxpr(gradient)(*narrow, shapes[2]), 16_400)


def divided(jaxpr, width):
    lines = [line for line in str(jaxpr).splitlines() if " div " in line]
    return [line for line in lines if f"[7,{width}]" in line]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("vocab", "tokens"), [(16_384, 1024), (16_385, 1023)])
def test_a_cut_vocabulary_agrees_whether_its_logits_are_kept_or_not(vocab, tokens, dtype):
    """16 blocks of 1,024 columns, or 15 of 1,025 and a rest, are kept; of 1,025 tokens none is."""
    rng = np.random.default_rng(3)
    kernel = jnp.asarray(rng.normal(size=(4, vocab)), dtype)

    def found(tokens):
        hidden = jnp.asarray(np.random.default_rng(4).normal(size=(1025, 4)), dtype)[:tokens]
        targets = jnp.asarray(np.random.default_rng(5).integers(0, vocab, 1025))[:tokens]

        def total(hidden, kernel, temperature):
            stats = token_stats(
                hidden, kernel, targets, temperature=temperature, with_entropy=True,
                with_sum_pi_squared=True, vocabulary_blocks=True,
            )  # fmt: skip
            of_first = [x[:1000].sum() for x in stats]
            return of_first[0] + 0.3 * of_first[1] + 0.2 * of_first[2], stats

        gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))
        return gradient(hidden, kernel, jnp.float32(0.8))

    (kept, kept_stats), (again, again_stats) = found(tokens), found(1025)
    close = {"rtol": 2e-2, "atol": 1e-3} if dtype == jnp.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(kept_stats, again_stats, strict=True):
        np.testing.assert_allclose(one[:1000], other[:1000], rtol=1e-5, atol=1e-6)
    for one, other in zip(kept, again, strict=True):
        rows = (slice(None, 1000),) if one.shape[:1] == (tokens,) else ()
        np.testing.assert_allclose(np.float32(one[rows]), np.float32(other[rows]), **close)


def peak_bytes(vocab, tokens, width, blocks):
    def total(hidden, kernel, targets):
        found = token_stats(hidden, kernel, targets, with_entropy=True, vocabulary_blocks=blocks)
        return jnp.sum(found.logp) + 0.01 * jnp.sum(found.entropy)

    shapes = (
        jax.ShapeDtypeStruct((tokens, width), jnp.float32),
        jax.ShapeDtypeStruct((width, vocab), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
    )
    compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(*shapes).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_the_memory_of_a_large_vocabulary():
    """V = 151,936 and 2,048 tokens: beside weights, hidden states and gradients, under 64 MiB.

    All logits would take 1.2 GB, and a second gradient of the kernel 39 MB.
    """
    assert peak_bytes(151_936, 2048, 64, True) < 64 * 2**20 + 2048 * 64 * 4


def test_an_entropy_holds_nothing_of_the_size_of_the_logits_that_are_kept():
    """Exponentials that its sum and the total shared would be kept beside them, for all blocks."""
    kept = 512 * 32_768 * 4
    assert kept <= peak_bytes(32_768, 512, 8, True) < 1.3 * kept
