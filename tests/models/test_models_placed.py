"""Weights read part by part to where they are to lie."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from zootomy.models import load_model, load_scalar_model, make_model, parameter_axes, to_host

DATA = Path(__file__).parents[1] / "data" / "models"
MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("fsdp", "tensor"))
RULES = {"embed": "fsdp", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor"}


def place(path, shape):
    names = [RULES.get(axis) for axis in parameter_axes(path, len(shape))]
    return NamedSharding(MESH, PartitionSpec(*names))


def leaves(model):
    return {
        ".".join(map(str, path)): leaf[...]
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_read_in_parts_is_the_folder(dtype, monkeypatch):
    whole = leaves(load_model(DATA / "qwen3", dtype=dtype))
    made = []
    monkeypatch.setattr(jax, "device_put", lambda *a, **k: made.append(a))
    parts = leaves(load_model(DATA / "qwen3", dtype=dtype, place=place))
    monkeypatch.undo()
    assert not made
    for name, array in whole.items():
        np.testing.assert_array_equal(np.asarray(parts[name]), np.asarray(array), err_msg=name)
        assert parts[name].dtype == dtype
    # A transposed matrix [64, 112]: each device has a quarter.
    gate = parts["layers.0.mlp.gate_proj.kernel"]
    assert {shard.data.shape for shard in gate.addressable_shards} == {(32, 56)}


def test_a_scalar_model_and_a_preset_too():
    whole = leaves(load_scalar_model(DATA / "reward"))
    parts = leaves(load_scalar_model(DATA / "reward", place=place))
    fresh, spread = (leaves(make_model("tiny", seed=3, place=p)) for p in (None, place))
    for ours, theirs in ((parts, whole), (spread, fresh)):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(np.asarray(ours[name]), np.asarray(array), err_msg=name)
            assert len(ours[name].devices()) == 4


def test_axes_of_a_stack_of_layers():
    assert parameter_axes(("mlp", "up_proj", "kernel"), 2) == ("embed", "mlp")
    assert parameter_axes(("mlp", "up_proj", "kernel"), 3) == ("layers", "embed", "mlp")
    with pytest.raises(ValueError, match=r"parameter mlp\.up_proj\.kernel has no logical axes"):
        parameter_axes(("mlp", "up_proj", "kernel"), 4)
    with pytest.raises(ValueError, match="parameter mine has no logical axes"):
        parameter_axes(("mine",), 1)


def test_what_goes_to_the_host_is_what_it_was():
    """Keys of optimizers with noise have no numbers of their own; a plain number is no array."""
    key = jax.random.key(3)
    found = to_host({"key": key, "half": jnp.ones(2, jnp.bfloat16), "plain": 2.5, "none": None})
    assert found["key"] is not None
    assert found["key"].dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), [0, 3])
    assert isinstance(found["half"], np.ndarray)
    assert found["half"].dtype == jnp.bfloat16
    assert (type(found["plain"]), found["plain"], found["none"]) == (float, 2.5, None)
