"""No axis of one in what is summed: with one compilers for CPUs take 7 to 150 times as long."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from zootomy.models import PRESETS, make_model
from zootomy.models.layers import RMSNorm
from zootomy.models.slot_attention import PromptSlots, attend_slots

WIDTH, ROOM = 8, 5
PRODUCT = re.compile(r"(%\w+) = stablehlo.multiply .* : tensor<([\dx]+)xf32>")
SUM = re.compile(r"stablehlo.reduce\((%\w+) init: .* applies stablehlo.add across")


def sums_of_products(function, *arguments):
    """Shapes of the products that a function adds up, in the order of its text."""
    found, products = [], {}
    for line in jax.jit(function).lower(*arguments).as_text().splitlines():
        if "func.func" in line:
            products = {}
        if match := PRODUCT.search(line):
            products[match[1]] = tuple(int(size) for size in match[2].split("x"))
        elif (match := SUM.search(line)) and match[1] in products:
            found.append(products[match[1]])
    return found


def test_the_measure_sees_an_axis_of_one():
    assert sums_of_products(lambda x: (x * 2 * x).sum(0), jnp.ones((1, 3))) == [(1, 3)]
    assert sums_of_products(lambda x: x.sum(0), jnp.ones((1, 3))) == []


@pytest.mark.parametrize(
    ("rows", "prompts", "heads", "kv_heads"),
    [(4, 2, 2, 2), (3, 3, 1, 1), (1, 1, 3, 3), (1, 1, 4, 2), (4, 1, 2, 2), (1, 1, 1, 1)],
)
def test_attention_of_a_decode_step(rows, prompts, heads, kv_heads):
    q = jnp.ones((rows, 1, heads, WIDTH))
    k, v = jnp.ones((rows, kv_heads, WIDTH, ROOM)), jnp.ones((rows, kv_heads, ROOM, WIDTH))
    held = PromptSlots(k[:prompts], v[:prompts], jnp.ones((prompts, ROOM), bool))
    shapes = sums_of_products(attend_slots, q, k, v, jnp.ones((rows, 1, ROOM), bool), held)
    assert len(shapes) == 4  # scores and values, of both sources
    assert all(1 not in shape[:-2] for shape in shapes)


def test_a_row_alone_forwards_and_backwards():
    model = make_model(PRESETS["tiny"], vocab_size=11)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    tokens = jnp.arange(7)[None] % 11
    positions = jnp.arange(7)[None]

    def loss(params):
        hidden = nnx.merge(graph, params, rest)(tokens, positions)
        return jnp.square(hidden).mean()

    shapes = sums_of_products(jax.grad(loss), params)
    # Each layer's four norms, what they give their scales, and the softmax's Σ p dp.
    assert len(shapes) >= 9 * model.config.num_layers
    assert all(1 not in shape[:-1] for shape in shapes)


def test_a_norm_of_nothing_is_nothing():
    norm = RMSNorm(8, eps=1e-6)
    for shape in [(0, 8), (1, 0, 8), (2, 0, 8), (8,), (1, 1, 8)]:
        assert norm(jnp.zeros(shape)).shape == shape
