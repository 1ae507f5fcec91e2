"""Scanned blocks equal unrolled ones; blocks that differ are not stacked."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.models import PRESETS, Decoder
from zootomy.registry import UnknownNameError, ZootomyError

CONFIG = dataclasses.replace(
    PRESETS["tiny"], vocab_size=13, hidden_size=8, intermediate_size=12, num_layers=3, head_dim=6,
    initializer_range=0.3,
)  # fmt: skip
TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
POSITIONS = jnp.asarray([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]])
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])


def value_and_gradient(model):
    graph, params = nnx.split(model)

    @jax.jit
    def run(params):
        def loss(params):
            hidden = nnx.merge(graph, params)(TOKENS, POSITIONS, SEGMENTS)
            return jnp.sum(jnp.where(SEGMENTS[..., None] > 0, jnp.sin(hidden), 0.0))

        return jax.value_and_grad(loss)(params)

    return run(params)


@pytest.mark.parametrize("remat", [False, True])
def test_a_scan_gives_the_unrolled_value_and_gradient(remat):
    unrolled, scanned = (
        value_and_gradient(Decoder(CONFIG, rngs=nnx.Rngs(0), layers=layers, remat=remat))
        for layers in ("unroll", "scan")
    )
    np.testing.assert_allclose(scanned[0], unrolled[0], rtol=1e-6)
    ours, theirs = jax.tree.leaves(scanned[1]), jax.tree.leaves(unrolled[1])
    # Embedding, final norm, and of each of three blocks: 4 norms, 4 + 3 projections.
    assert len(ours) == len(theirs) == 2 + 3 * 11
    for one, other in zip(ours, theirs, strict=True):
        assert float(jnp.abs(other).max()) > 1e-4
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def operations(layers, depth):
    """Equations of the traced program, those within loops counted once."""
    config = dataclasses.replace(CONFIG, num_layers=depth)
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), layers=layers))
    graph, params = nnx.split(model)
    traced = jax.make_jaxpr(lambda p: nnx.merge(graph, p)(TOKENS, POSITIONS, SEGMENTS))(params)
    return str(traced).count("dot_general")


def test_a_scanned_program_does_not_grow_with_depth():
    # A block has 7 projections and 2 products of attention.
    assert operations("unroll", 2) == 2 * 9
    assert operations("unroll", 5) == 5 * 9
    assert operations("scan", 2) == operations("scan", 5) == 9


def test_auto_unrolls_at_any_depth():
    assert operations("auto", 32) == 32 * 9


def adapted(layers, depth):
    """A model whose block 1 has one parameter more, as an adapter would add."""
    config = dataclasses.replace(CONFIG, num_layers=depth)
    model = Decoder(config, rngs=nnx.Rngs(0), layers=layers)
    model.layers[1].mlp.extra = nnx.Param(jnp.zeros(3))
    return model


def test_blocks_that_differ_are_not_stacked():
    message = (
        r"layers='scan' needs blocks that are alike, but block 1 is built otherwise than block 0 "
        r"\(an adapter on some of them\?\); use 'auto'"
    )
    nnx.eval_shape(lambda: adapted("auto", 3)(TOKENS, POSITIONS, SEGMENTS))  # is not refused
    with pytest.raises(ZootomyError, match=message):
        adapted("scan", 3)(TOKENS, POSITIONS, SEGMENTS)


def test_parameters_of_other_shapes_are_refused():
    model = Decoder(CONFIG, rngs=nnx.Rngs(0), layers="scan")
    model.layers[2].norm_of_its_own = None
    model.layers[2].mlp.up_proj.kernel = nnx.Param(jnp.zeros((8, 14)))
    with pytest.raises(ZootomyError, match="block 2"):
        model(TOKENS, POSITIONS, SEGMENTS)


def test_an_unknown_style_is_refused():
    with pytest.raises(UnknownNameError, match="scann") as caught:
        Decoder(CONFIG, rngs=nnx.Rngs(0), layers="scann")
    assert "scan" in str(caught.value)
