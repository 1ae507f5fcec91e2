"""Outputs that are inputs are shared; the others are computed."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.models import PRESETS, make_model
from zootomy.rollout import RolloutConfig, VanillaEngine
from zootomy.rollout.sharing import SharingJit


def test_an_output_that_is_an_input_is_that_array():
    traced = []

    def swap(tree):
        traced.append(tree)
        first, second = tree
        return {"second": second, "twice": 2 * first, "first": first, "again": second}

    shared = SharingJit(swap)
    for scale in (1, 10):
        first, second = scale * jnp.arange(3.0), jnp.float32([[scale, 5]])
        found = shared((first, second))
        assert list(found) == ["again", "first", "second", "twice"]
        assert found["first"] is first
        assert found["second"] is second
        assert found["again"] is second
        assert found["twice"].tolist() == [0, 2 * scale, 4 * scale]
    assert len(traced) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_an_engine_decodes_with_the_arrays_of_its_model(tied):
    preset = dataclasses.replace(PRESETS["tiny"], tie_embeddings=tied)
    model = make_model(preset, vocab_size=19)
    engine = VanillaEngine(RolloutConfig(max_prompt_tokens=4, max_new_tokens=3), model)
    weights = engine._programs.prepare(engine.params)

    def place(variable):
        return variable[...].unsafe_buffer_pointer()

    held = {array.unsafe_buffer_pointer() for array in weights.arrays}
    embedding = place(model.embed_tokens.embedding)
    assert {embedding, place(model.norm.scale)} <= held
    if tied:
        assert place(weights.head) == embedding
    else:
        np.testing.assert_array_equal(weights.head, model.lm_head.kernel[...].T)
        assert place(model.lm_head.kernel) in held
