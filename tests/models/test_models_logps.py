"""Log-probabilities and entropies through the chunked head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.models import token_logps, token_stats


def draw(rows, width, vocab, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(*rows, width)).astype(np.float32)
    kernel = rng.normal(size=(width, vocab)).astype(np.float32)
    targets = rng.integers(0, vocab, rows).astype(np.int32)
    return jnp.asarray(hidden), jnp.asarray(kernel), jnp.asarray(targets)


def dense(hidden, kernel, targets, temperature):
    z = (hidden.astype(jnp.float32) @ kernel.astype(jnp.float32)) / temperature
    log_p = jax.nn.log_softmax(z)
    logp = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    p = jnp.exp(log_p)
    return logp, -jnp.sum(p * log_p, axis=-1), jnp.sum(p * p, axis=-1)


def chunked(hidden, kernel, targets, temperature, chunk):
    return token_stats(
        hidden,
        kernel,
        targets,
        temperature=temperature,
        chunk=chunk,
        with_entropy=True,
        with_sum_pi_squared=True,
    )


@pytest.mark.parametrize("chunk", [1, 4, 8, None])  # 3 * 7 rows: none of them divides
def test_equals_the_dense_head_in_value_and_gradient(chunk):
    hidden, kernel, targets = draw((3, 7), 5, 11)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3, 7)), jnp.float32)

    def total(function, *arguments):
        outputs = function(*arguments)
        return sum((w * x).sum() for w, x in zip(weights, outputs, strict=True))

    def ours(hidden, kernel, temperature):
        return chunked(hidden, kernel, targets, temperature, chunk)

    def theirs(hidden, kernel, temperature):
        return dense(hidden, kernel, targets, temperature)

    @jax.jit
    def both(hidden, kernel, temperature):
        at = hidden, kernel, temperature
        return [(f(*at), jax.grad(total, (1, 2, 3))(f, *at)) for f in (ours, theirs)]

    for temperature in (1.0, 0.5):
        (ours_out, ours_grad), (wanted, wanted_grad) = both(hidden, kernel, temperature)
        for got, want in zip(ours_out, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        for got, want in zip(ours_grad, wanted_grad, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_temperature_divides_the_logits():
    # logits [2, 0] at T = 0.5 are [4, 0]: -log(1 + e^-4) = -0.01815.
    # Without the temperature -0.12693; dividing the log-probability by it -0.25386.
    logp, entropy = token_logps(
        jnp.array([[2.0, 0.0]]), jnp.eye(2), jnp.array([0]), temperature=0.5
    )
    np.testing.assert_allclose(logp, [-0.01815], atol=1e-5)
    assert entropy is None


def test_entropy_of_known_distributions():
    # Uniform over 4: log 4. Probabilities 3/4 and 1/4: 0.75 log(4/3) + 0.25 log 4 = 0.562335.
    hidden = jnp.array([[0.0, 0, 0, 0], [np.log(3.0), 0.0, -1e9, -1e9]])
    logp, entropy = token_logps(hidden, jnp.eye(4), jnp.array([2, 1]), with_entropy=True)
    np.testing.assert_allclose(logp, [-np.log(4), -np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [np.log(4), 0.562335], rtol=1e-5)


def test_bfloat16_inputs_give_float32_statistics_and_gradients_of_their_dtype():
    hidden, kernel, targets = draw((2, 5), 16, 33, seed=2)
    narrow = hidden.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    stats = chunked(*narrow, targets, 0.7, 8)
    wanted = dense(*narrow, targets, 0.7)
    for got, want in zip(stats, wanted, strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def loss(function):
        return jax.jit(jax.grad(lambda h, k: function(h, k).sum(), (0, 1)))(*narrow)

    ours = loss(lambda h, k: token_logps(h, k, targets, temperature=0.7, chunk=4)[0])
    theirs = loss(lambda h, k: dense(h, k, targets, 0.7)[0])
    for got, want in zip(ours, theirs, strict=True):
        assert got.dtype == jnp.bfloat16
        got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
        np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


def test_the_kernels_gradient_is_summed_in_float32():
    """2048 chunks add 1/512 each; summed in bfloat16 the entry would stick at 1/2 (8 bits)."""
    hidden = jnp.full((2048, 1), 1 / 256, jnp.bfloat16)
    targets = jnp.zeros((2048,), jnp.int32)
    kernel = jnp.zeros((1, 2), jnp.bfloat16)
    gradient = jax.grad(lambda k: token_logps(hidden, k, targets, chunk=1)[0].sum())(kernel)
    # d logp / dz = [1 - 1/2, -1/2], so 2048 * 1/256 * 1/2 = 4.
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), [[4.0, -4.0]])


def _sizes(jaxpr):
    """Elements of every intermediate, inner jaxprs included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.size
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, list | tuple) else [parameter]:
                inner = inner.jaxpr if isinstance(inner, jax.extend.core.ClosedJaxpr) else inner
                if isinstance(inner, jax.extend.core.Jaxpr):
                    yield from _sizes(inner)


def test_no_buffer_holds_all_logits():
    rows, width, vocab, chunk = 512, 4, 1000, 16
    hidden, kernel, targets = draw((rows,), width, vocab)

    def loss(hidden, kernel, temperature):
        logp, entropy = token_logps(
            hidden, kernel, targets, temperature=temperature, chunk=chunk, with_entropy=True
        )
        return (logp + 0.1 * entropy).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    largest = max(_sizes(jax.make_jaxpr(gradient)(hidden, kernel, 1.0).jaxpr))
    assert largest == chunk * vocab  # all logits: rows * vocab, 32 times as many
    temporary = gradient.lower(hidden, kernel, 1.0).compile().memory_analysis().temp_size_in_bytes
    assert temporary < rows * vocab * 4 / 2


def test_a_new_temperature_does_not_compile_again():
    hidden, kernel, targets = draw((4,), 3, 5)
    traces = []

    @jax.jit
    def compiled(t):
        # Runs once a trace. The size of jit's cache says less: it is shared and may shrink.
        traces.append(t)
        return token_logps(hidden, kernel, targets, temperature=t)[0]

    compiled(1.0)
    compiled(0.3)
    assert len(traces) == 1


def test_far_logits_stay_finite():
    hidden = jnp.array([[1e4, -1e4], [0.0, 3e4]])
    for temperature in (1.0, 1e-3):
        logp, entropy = token_logps(
            hidden, jnp.eye(2), jnp.array([0, 0]), temperature=temperature, with_entropy=True
        )
        np.testing.assert_allclose(logp, [0.0, -3e4 / temperature], rtol=1e-6)
        np.testing.assert_allclose(entropy, [0.0, 0.0], atol=1e-6)


def test_errors_say_what_was_given():
    hidden, kernel, targets = draw((2, 3), 4, 5)
    with pytest.raises(ValueError, match=r"leading shape of hidden \(2, 3\), got \(3,\)"):
        token_logps(hidden, kernel, targets[0])
    with pytest.raises(ValueError, match=r"D = 4, the width of hidden; got \(5, 4\)"):
        token_logps(hidden, kernel.T, targets)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        token_logps(hidden, kernel, targets, temperature=0)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        token_logps(hidden, kernel, targets, chunk=0)
