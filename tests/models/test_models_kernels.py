"""Attention over packed rows: its own gradient, and kernels for other platforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from zootomy.models import kernels
from zootomy.models.attention import packed_mask
from zootomy.models.compilers import fast_products
from zootomy.models.kernels import choose_kernel, packed_attention
from zootomy.models.slot_attention import PromptSlots, attend_slots
from zootomy.registry import UnknownNameError, ZootomyError

ROWS, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 9, 6, 2, 8
# Two sequences and padding; one sequence that fills the row.
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 0, 0], [1] * 9])


def inputs(dtype=jnp.float32, width=WIDTH, length=LENGTH):
    rng = np.random.default_rng(0)

    def draw(heads):
        return jnp.asarray(rng.normal(size=(ROWS, length, heads, width)), dtype)

    return draw(HEADS), draw(KV_HEADS), draw(KV_HEADS), draw(HEADS)


def plain(q, k, v, segments):
    """By JAX's own derivative of the softmax."""
    k, v = jnp.transpose(k, (0, 2, 3, 1)), jnp.swapaxes(v, 1, 2)
    return attend_slots(q, k, v, packed_mask(segments))


def by(kernel):
    return lambda q, k, v, s: packed_attention(q, k, v, s, packed_mask(s), kernel)


def both(function, q, k, v, cotangent, segments):
    """Output and gradients, without what padding says."""
    found = pull_back(function, q, k, v, cotangent, segments)
    return [np.asarray(x, np.float32) for x in found]


@functools.partial(jax.jit, static_argnums=0)
def pull_back(function, q, k, v, cotangent, segments):
    out, back = jax.vjp(lambda q, k, v: function(q, k, v, segments), q, k, v)
    real = (segments > 0)[:, :, None, None]
    gradients = back(jnp.where(real, cotangent, 0))
    return [jnp.where(real, x, 0) for x in (out, *gradients)]


def test_two_tokens_by_hand():
    """One head of width 1: token 1 sees scores q·k = (0, ln 3), so weights (1/4, 3/4).

    out = 1/4 · 8 + 3/4 · 4 = 5; for d_out = 1: dv = (1/4, 3/4),
    ds = w (v - out) = (1/4 · 3, 3/4 · -1) = (3/4, -3/4), dq = ds·k = -3/4 ln 3, dk = ds q.
    """
    q, k, v = (jnp.asarray(x, jnp.float32).reshape(1, 2, 1, 1) for x in ([7, 1], [0, 0], [8, 4]))
    k = k.at[0, 1].set(np.log(3.0))
    segments = jnp.ones((1, 2), jnp.int32)
    out, back = jax.vjp(lambda q, k, v: by("xla")(q, k, v, segments), q, k, v)
    dq, dk, dv = back(jnp.asarray([0.0, 1.0]).reshape(1, 2, 1, 1))
    np.testing.assert_allclose(out.ravel(), [8, 5], rtol=1e-6)
    np.testing.assert_allclose(dq.ravel(), [0, -0.75 * np.log(3)], rtol=1e-5)
    np.testing.assert_allclose(dk.ravel(), [0.75, -0.75], rtol=1e-5)
    np.testing.assert_allclose(dv.ravel(), [0.25, 0.75], rtol=1e-6)


def test_value_and_gradient_equal_those_of_the_plain_formula():
    given = inputs()
    for one, other in zip(
        both(by("xla"), *given, SEGMENTS), both(plain, *given, SEGMENTS), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_bfloat16_keeps_its_type_and_stays_near():
    narrow = inputs(jnp.bfloat16)
    q, k, v, _ = narrow
    out = jax.jit(by("xla"))(q, k, v, SEGMENTS)
    assert out.dtype == jnp.bfloat16
    wide = [x.astype(jnp.float32) for x in narrow]
    for one, other in zip(
        both(by("xla"), *narrow, SEGMENTS), both(plain, *wide, SEGMENTS), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=0.04)


def test_splash_attention_interpreted():
    """130 tokens: more than one block of 128, and padded to two."""
    given = inputs(width=64, length=130)
    segments = jnp.asarray(np.repeat([[1] * 60 + [2] * 66 + [0] * 4], ROWS, axis=0))
    for one, other in zip(
        both(by("splash"), *given, segments), both(plain, *given, segments), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_splash_attention_on_a_mesh(monkeypatch, sent):
    """Each of four devices has one of two rows and one of two key heads, and needs no other."""
    given = inputs(width=64, length=130)
    segments = jnp.asarray(np.repeat([[1] * 60 + [2] * 66 + [0] * 4], ROWS, axis=0))
    expected = both(plain, *given, segments)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    place = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))
    q, k, v, cotangent = (jax.device_put(x, place) for x in given)
    shapes = []
    splash = kernels._splash

    def seen(q, *rest):
        shapes.append(q.shape)
        return splash(q, *rest)

    monkeypatch.setattr(kernels, "_splash", seen)
    with jax.set_mesh(mesh):
        program = pull_back.lower(by("splash"), q, k, v, cotangent, segments).compile()
        found = program(q, k, v, cotangent, segments)
    assert shapes == [(1, 130, HEADS // 2, 64)]
    assert sent(program) == {}
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("axes", [{"data": 4}, {"tensor": 4}, {"sequence": 2}])
def test_a_mesh_that_cuts_what_splash_attention_needs_whole(axes, monkeypatch):
    """Two rows on four devices, two key heads on four, a row on two: XLA's own program."""
    monkeypatch.setattr(kernels, "_splash", None)
    given = inputs()
    kinds = (AxisType.Auto,)
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
    with jax.set_mesh(mesh):
        found = both(by("splash"), *given, SEGMENTS)
    for one, other in zip(found, both(by("xla"), *given, SEGMENTS), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_the_kernel_follows_the_platform(monkeypatch):
    def chosen(platform, dtype=jnp.bfloat16, width=64):
        monkeypatch.setattr(jax, "default_backend", lambda: platform)
        return choose_kernel("auto", dtype, width)

    assert chosen("cpu") == "xla"
    assert chosen("gpu") == "cudnn"
    assert chosen("gpu", jnp.float32) == "xla"
    assert chosen("gpu", width=256) == "xla"
    assert chosen("tpu") == "splash"
    assert chosen("tpu", width=96) == "xla"


def test_kernels_that_cannot_be_had():
    with pytest.raises(ZootomyError, match=r"needs 16-bit arithmetic .*, got float32 and 64; use"):
        choose_kernel("cudnn", jnp.float32, 64)
    with pytest.raises(ZootomyError, match="attention='cudnn' needs a GPU, this is a cpu"):
        choose_kernel("cudnn", jnp.bfloat16, 64)
    with pytest.raises(UnknownNameError, match="flash"):
        choose_kernel("flash", jnp.bfloat16, 64)  # type: ignore[arg-type]


def test_branches_attend_as_rows_do_under_the_mask_of_all():
    """Prompts of 3 and 2 tokens (and padding), three branches of 4 that read the one or the other.

    The mask of all columns: a branch sees its prompt and itself, and no other branch.
    """
    room, count, length = 6, 3, 4
    prompts = [[1, 1, 1, 2, 2, 0], [1] * 6]
    branches = [[[3, 3, 4, 4], [5, 5, 5, 0], [6] * 4], [[2] * 4, [3, 3, 0, 0], [0] * 4]]
    reads = jnp.asarray([[[1, 1, 2, 2], [1, 1, 1, 0], [2] * 4], [[1] * 4, [1, 1, 0, 0], [0] * 4]])
    segments = np.array(
        [p + [s for b in row for s in b] for p, row in zip(prompts, branches, strict=True)]
    )
    q, k, v, cotangent = inputs(length=room + count * length)

    owner = np.array([-1] * room + [b for b in range(count) for _ in range(length)])
    read = np.concatenate([np.zeros((ROWS, room), int), np.asarray(reads).reshape(ROWS, -1)], 1)
    columns = np.arange(len(owner))
    causal = columns[:, None] >= columns
    own = (segments[:, :, None] == segments[:, None]) & (owner[:, None] == owner)
    to_prompt = (read[:, :, None] == segments[:, None]) & (owner[:, None] >= 0) & (owner < 0)
    whole = jnp.asarray(causal & (own | to_prompt))

    def shared(q, k, v, s):
        return packed_attention(q, k, v, s, packed_mask(s, reads), "xla")

    found = both(shared, q, k, v, cotangent, jnp.asarray(segments))

    def dense(q, k, v, _):
        return attend_slots(q, jnp.transpose(k, (0, 2, 3, 1)), jnp.swapaxes(v, 1, 2), whole)

    expected = both(dense, q, k, v, cotangent, jnp.asarray(segments))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_sums_over_two_sources_of_one_shape_write_no_queries_out():
    # [rows, kv_heads, queries, width, slots] floats, if both were given one copy of the queries
    rows, queries, slots = 8, HEADS // KV_HEADS, 32
    q = jnp.ones((rows, 1, HEADS, WIDTH))
    k, v = jnp.ones((rows, KV_HEADS, WIDTH, slots)), jnp.ones((rows, KV_HEADS, slots, WIDTH))
    own, held = jnp.ones((rows, 1, slots), bool), jnp.ones((rows, slots), bool)

    def attend(q, k, v, prompt_k, prompt_v):
        return attend_slots(q, k, v, own, PromptSlots(prompt_k, prompt_v, held))

    program = jax.jit(attend, compiler_options=fast_products()).lower(q, k, v, k, v).compile()
    copies = 4 * rows * KV_HEADS * queries * WIDTH * slots
    assert program.memory_analysis().temp_size_in_bytes < copies


# Rows, prompts, query heads, key heads: what may be one.
ONES = [(4, 2, 2, 2), (3, 3, 1, 1), (1, 1, 3, 3), (1, 1, 4, 2), (4, 1, 2, 2), (1, 1, 1, 1)]


@pytest.mark.parametrize(("rows", "prompts", "heads", "kv_heads"), ONES)
def test_a_query_a_row_attends_by_sums(rows, prompts, heads, kv_heads):
    """Query head h of row b: softmax over the 3 tokens of prompt b // (B / P) and its own 5."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(rows, 1, heads, WIDTH))
    held_k, held_v = rng.normal(size=(2, prompts, kv_heads, 3, WIDTH))
    own_k, own_v = rng.normal(size=(2, rows, kv_heads, 5, WIDTH))
    expected = np.empty_like(q)
    for row in range(rows):
        for head in range(heads):
            prompt, key_head = row // (rows // prompts), head // (heads // kv_heads)
            keys = np.concatenate([held_k[prompt, key_head], own_k[row, key_head]])
            values = np.concatenate([held_v[prompt, key_head], own_v[row, key_head]])
            scores = keys @ q[row, 0, head] / np.sqrt(WIDTH)
            weights = np.exp(scores) / np.exp(scores).sum()
            expected[row, 0, head] = weights @ values

    narrow = functools.partial(jnp.asarray, dtype=jnp.float32)
    found = attend_slots(
        narrow(q),
        jnp.swapaxes(narrow(own_k), 2, 3),
        narrow(own_v),
        jnp.ones((rows, 1, 5), bool),
        PromptSlots(
            jnp.swapaxes(narrow(held_k), 2, 3), narrow(held_v), jnp.ones((prompts, 3), bool)
        ),
    )
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
