"""Value and reward models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.models import (
    ModelConfig,
    RewardModel,
    ValueModel,
    load_scalar_model,
    make_model,
    parameter_axes,
    save_model,
)

CONFIG = ModelConfig(
    vocab_size=19,
    hidden_size=12,
    intermediate_size=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    initializer_range=0.3,
)
TOKENS = jnp.array([[3, 8, 1, 0], [2, 2, 9, 11], [5, 0, 0, 0]], jnp.int32)
POSITIONS = jnp.tile(jnp.arange(4, dtype=jnp.int32), (3, 1))


@pytest.fixture(scope="module")
def decoder():
    return make_model(CONFIG, seed=5)


@pytest.fixture(scope="module")
def value_model(decoder):
    model = ValueModel.from_decoder(decoder, rngs=nnx.Rngs(0))
    model.score.kernel.set_value(jnp.linspace(-1, 1, 12)[:, None])
    return model


@nnx.jit
def run(model, *arguments):
    return model(*arguments)


def test_a_fresh_value_model_says_zero_and_learns(decoder):
    model = ValueModel.from_decoder(decoder, rngs=nnx.Rngs(0))
    values = run(model, TOKENS, POSITIONS)
    assert values.dtype == jnp.float32
    np.testing.assert_array_equal(values, np.zeros((3, 4)))

    @nnx.jit
    def gradient(model):
        return nnx.grad(lambda m: jnp.square(m(TOKENS, POSITIONS) - 1).mean())(model)

    assert np.abs(gradient(model)["score"]["kernel"][...]).max() > 0.01


def test_values_are_the_head_on_the_decoders_hidden_states(decoder, value_model):
    hidden = run(decoder, TOKENS, POSITIONS)
    wanted = hidden @ jnp.linspace(-1, 1, 12)
    np.testing.assert_allclose(run(value_model, TOKENS, POSITIONS), wanted, atol=1e-5)


def test_the_backbone_is_a_copy_without_a_head(decoder, value_model):
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(value_model, nnx.Param))]
    assert not any("lm_head" in path for path in paths)
    assert [parameter_axes(path, 2) for path in paths if path[0] == "score"] == [("embed", "score")]
    with pytest.raises(ValueError, match="built without a head"):
        value_model.backbone.head_kernel()
    other = ValueModel.from_decoder(decoder, rngs=nnx.Rngs(0))
    scale = other.backbone.norm.scale
    scale.set_value(scale[...] * 2)
    np.testing.assert_array_equal(decoder.norm.scale[...], np.ones(12))


def test_a_score_is_that_of_the_last_token_whatever_follows(value_model):
    model = RewardModel.from_decoder(value_model.backbone, rngs=nnx.Rngs(0))
    model.score.kernel.set_value(value_model.score.kernel[...])
    last = jnp.array([2, 3, 0])
    scores = run(model, TOKENS, POSITIONS, last)
    values = run(value_model, TOKENS, POSITIONS)
    np.testing.assert_allclose(scores, values[jnp.arange(3), last], atol=1e-6)
    changed = TOKENS.at[0, 3].set(7).at[2, 1:].set(4)
    np.testing.assert_array_equal(run(model, changed, POSITIONS, last), scores)


def test_a_value_model_survives_its_folder(value_model, tmp_path):
    save_model(value_model, tmp_path)
    again = load_scalar_model(tmp_path, ValueModel)
    one, two = (nnx.state(m, nnx.Param) for m in (value_model, again))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    save_model(make_model(CONFIG), tmp_path / "language")
    with pytest.raises(ValueError, match="expected \\['LlamaForSequenceClassification'\\]"):
        load_scalar_model(tmp_path / "language")
