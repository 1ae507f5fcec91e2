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
    """512 tokens of 32,768 are 2^24 logits: three products; one token more, and it takes four."""
    assert products(512, 32_768) == 3
    assert products(513, 32_768) == 4


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
