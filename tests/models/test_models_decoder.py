"""The decoder: packing, padding, the cache, and precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.models import (
    ModelConfig,
    PromptCache,
    fuse,
    grow_cache,
    init_cache,
    make_model,
    parameter_axes,
    take_rows,
)

CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=23,
    hidden_size=24,
    intermediate_size=20,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    qk_norm=True,
    initializer_range=0.3,
)


@pytest.fixture(scope="module")
def model():
    return make_model(CONFIG, seed=3)


@nnx.jit
def run(model, tokens, positions, segments):
    return model(tokens, positions, segments)


@nnx.jit
def run_cached(model, tokens, positions, cache, prompts=None):
    return model(tokens, positions, cache=cache, prompts=prompts)


@pytest.fixture(scope="module")
def forward(model):
    return lambda t, p, s: np.asarray(run(model, *map(jnp.asarray, (t, p, s))))


def draw(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 23, shape).astype(np.int32)


def places(*lengths):
    return np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)


def test_packed_sequences_equal_separate_ones(forward):
    a, b = draw(5, 1), draw(4, 2)
    packed = np.concatenate([a, b, [0, 0, 0]]).astype(np.int32)[None]
    segments = np.array([[1] * 5 + [2] * 4 + [0] * 3], np.int32)
    out = forward(packed, places(5, 4, 3)[None], segments)[0]
    alone = np.zeros((2, 12), np.int32)
    alone[0, :5], alone[1, :4] = a, b
    valid = np.array([[1] * 5 + [0] * 7, [1] * 4 + [0] * 8], np.int32)
    apart = forward(alone, np.tile(places(12), (2, 1)), valid)
    np.testing.assert_allclose(out[:5], apart[0, :5], atol=1e-5)
    np.testing.assert_allclose(out[5:9], apart[1, :4], atol=1e-5)


def test_a_neighbour_has_no_influence_at_all(forward):
    tokens, positions = draw((1, 12), 4), places(5, 4, 3)[None]
    segments = np.array([[1] * 5 + [2] * 4 + [0] * 3], np.int32)
    before = forward(tokens, positions, segments)[0]
    changed = tokens.copy()
    changed[0, :5] = (tokens[0, :5] + 1) % 23
    changed[0, 9:] = 7
    after = forward(changed, positions, segments)[0]
    np.testing.assert_array_equal(before[5:9], after[5:9])
    assert np.abs(before[:5] - after[:5]).max() > 0.1


def test_the_future_has_no_influence(forward):
    tokens, positions = draw((1, 12), 5), places(12)[None]
    ones = np.ones((1, 12), np.int32)
    changed = tokens.copy()
    changed[0, 7] = (tokens[0, 7] + 1) % 23
    before, after = forward(tokens, positions, ones)[0], forward(changed, positions, ones)[0]
    np.testing.assert_array_equal(before[:7], after[:7])
    assert np.abs(before[7:] - after[7:]).max(-1).min() > 1e-3


def test_the_amount_of_padding_does_not_matter(forward):
    tokens = draw((1, 6), 6)
    short = forward(tokens, places(6)[None], np.ones((1, 6), np.int32))
    padded = np.concatenate([tokens, np.full((1, 6), 9, np.int32)], axis=1)
    for filler in (0, 1):  # declared as padding, or just standing to the right
        segments = np.array([[1] * 6 + [filler] * 6], np.int32)
        long = forward(padded, places(12)[None], segments)
        np.testing.assert_allclose(long[:, :6], short, atol=1e-5)
        assert np.isfinite(long).all()


def test_decoding_token_by_token_equals_one_pass(forward, model):
    tokens, positions = draw((3, 12), 7), np.tile(places(12), (3, 1))
    whole = forward(tokens, positions, np.ones_like(tokens))
    cache = init_cache(CONFIG, 3, 14)
    for t in range(12):
        at = jnp.asarray(positions[:, t : t + 1])
        out, cache = run_cached(model, jnp.asarray(tokens[:, t : t + 1]), at, cache)
        np.testing.assert_allclose(out[:, 0], whole[:, t], atol=1e-4)


def test_ragged_prefill_then_decode_at_true_positions(forward, model):
    """Rows of 2 and 5 prompt tokens, right-padded to 5, go on at positions 2 and 5."""
    tokens, positions = draw((2, 12), 8), np.tile(places(12), (2, 1))
    whole = forward(tokens, positions, np.ones_like(tokens))
    prompt = tokens[:, :5].copy()
    prompt[0, 2:] = 11  # rubbish that must be overwritten before it is seen
    out, cache = run_cached(
        model, jnp.asarray(prompt), jnp.asarray(positions[:, :5]), init_cache(CONFIG, 2, 12)
    )
    np.testing.assert_allclose(out[0, 1], whole[0, 1], atol=1e-4)
    np.testing.assert_allclose(out[1, 4], whole[1, 4], atol=1e-4)
    lengths = np.array([2, 5])
    for step in range(3):
        at = lengths + step
        fed = jnp.asarray(tokens[np.arange(2), at][:, None])
        out, cache = run_cached(model, fed, jnp.asarray(at[:, None]), cache)
        np.testing.assert_allclose(out[:, 0], whole[np.arange(2), at], atol=1e-4)


@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("laid_out", [False, True])
def test_rows_that_start_from_one_prompt_equal_rows_of_their_own(forward, at_a_time, laid_out):
    """Two prompts of 5 and 3 tokens, three completions of each, 4 tokens long."""
    model = make_model(CONFIG, seed=3)
    prompts, lengths, completions = draw((2, 5), 11), np.array([5, 3]), draw((6, 4), 12)
    _, cache = run_cached(
        model,
        jnp.asarray(prompts),
        jnp.asarray(np.tile(places(5), (2, 1))),
        init_cache(CONFIG, 2, 7),
    )
    held = PromptCache(cache, jnp.asarray(lengths))
    assert held.starts(6).tolist() == [5, 5, 5, 3, 3, 3]
    if laid_out:
        model = fuse(model)
    own, found = init_cache(CONFIG, 6, 5), []
    for first in range(0, 4, at_a_time):
        piece = jnp.asarray(completions[:, first : first + at_a_time])
        at = held.starts(6)[:, None] + jnp.arange(first, first + at_a_time)
        hidden, own = run_cached(model, piece, at, own, held)
        found.append(hidden)
    found = np.concatenate(found, axis=1)
    for row, completion in enumerate(completions):
        length = lengths[row // 3]  # row 1 starts from prompt 0, not from prompt 1
        whole = np.concatenate([prompts[row // 3, :length], completion])[None]
        want = forward(whole, places(length + 4)[None], np.ones_like(whole))
        np.testing.assert_allclose(found[row], want[0, length:], atol=1e-4)


def test_rows_of_a_cache_can_be_taken(model):
    tokens, positions = jnp.asarray(draw((2, 4), 9)), jnp.asarray(np.tile(places(4), (2, 1)))
    _, cache = run_cached(model, tokens, positions, init_cache(CONFIG, 2, 6))
    wider = grow_cache(cache, 9)
    assert (wider.batch, wider.capacity) == (2, 9)
    for old, new in ((cache.k[1], wider.k[1][..., :6]), (cache.v[1], wider.v[1][:, :, :6])):
        np.testing.assert_array_equal(new, old)
    assert not wider.k[1][..., 6:].any()
    assert not wider.v[1][:, :, 6:].any()
    taken = take_rows(cache, jnp.array([1, 1, 0]))
    assert (taken.batch, taken.capacity, len(taken.k)) == (3, 6, 2)
    np.testing.assert_array_equal(taken.v[1][0], cache.v[1][1])
    np.testing.assert_array_equal(taken.k[0][2], cache.k[0][0])


def test_a_position_beyond_the_capacity_is_dropped(model):
    cache = init_cache(CONFIG, 1, 3)
    _, new = run_cached(model, jnp.array([[4]]), jnp.array([[3]]), cache)
    for before, after in zip(jax.tree.leaves(cache), jax.tree.leaves(new), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bfloat16_keeps_its_parameters_and_gives_float32_logits():
    wide = make_model(CONFIG, seed=3)
    narrow = make_model(CONFIG, seed=3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    mixed = make_model(CONFIG, seed=3, dtype=jnp.bfloat16)
    tokens, positions = jnp.asarray(draw((2, 6))), jnp.asarray(np.tile(places(6), (2, 1)))
    leaves = jax.tree.leaves(nnx.state(narrow, nnx.Param))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}
    ones = jnp.ones_like(tokens)
    exact = wide.logits(run(wide, tokens, positions, ones))
    for other in (narrow, mixed):
        hidden = run(other, tokens, positions, ones)
        assert hidden.dtype == jnp.bfloat16
        logits = other.logits(hidden)
        assert logits.dtype == jnp.float32
        assert np.abs(logits - exact).max() < 0.05 * np.abs(exact).max()


def test_remat_changes_neither_output_nor_gradient():
    tokens, positions = jnp.asarray(draw((2, 6))), jnp.asarray(np.tile(places(6), (2, 1)))

    @nnx.jit
    def gradient(model):
        return nnx.value_and_grad(lambda m: jnp.square(m(tokens, positions)).mean())(model)

    plain = gradient(make_model(CONFIG))
    saved = gradient(make_model(CONFIG, remat=True))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(saved), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_errors_say_what_was_given(model):
    tokens, positions = jnp.zeros((2, 3), jnp.int32), jnp.zeros((2, 4), jnp.int32)
    with pytest.raises(ValueError, match=r"must be \[rows, length\] and agree, got \(2, 3\)"):
        model(tokens, positions)
    with pytest.raises(ValueError, match="segments and cache exclude each other"):
        model(tokens, tokens, tokens, cache=init_cache(CONFIG, 2, 3))
    with pytest.raises(ValueError, match="the cache has 1 rows, tokens have 2"):
        model(tokens, tokens, cache=init_cache(CONFIG, 1, 3))
    two = PromptCache(init_cache(CONFIG, 2, 3), jnp.array([3, 1]))
    with pytest.raises(ValueError, match="3 rows cannot start from 2 prompts, as many from each"):
        run_cached(model, tokens[:1].T, tokens[:1].T, init_cache(CONFIG, 3, 3), two)
    with pytest.raises(ValueError, match="prompts go with a cache"):
        model(tokens, tokens, prompts=two)
    with pytest.raises(ValueError, match="segments must have the shape of tokens"):
        model(tokens, tokens, positions)
    with pytest.raises(ValueError, match=r"Unknown model preset 'huge'\. Known: medium, small"):
        make_model("huge")
    with pytest.raises(ValueError, match="capacity must be at least 1, got 2 and 0"):
        init_cache(CONFIG, 2, 0)


def test_every_parameter_has_logical_axes(model):
    state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    axes = {path: parameter_axes(path, leaf.ndim) for path, leaf in state.items()}
    for path, names in axes.items():
        assert len(names) == state[path].ndim
    assert axes["layers", 1, "self_attn", "k_proj", "kernel"] == ("embed", "kv_heads")


def test_the_same_seed_gives_the_same_weights():
    one, two, other = (
        jax.tree.leaves(nnx.state(make_model("tiny", seed=s), nnx.Param)) for s in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert make_model("tiny", vocab_size=17).head_kernel().shape == (32, 17)
