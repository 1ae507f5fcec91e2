"""Hugging Face folders: what transformers recorded, and folders that do not fit."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from zootomy.models import (
    load_config,
    load_model,
    load_scalar_model,
    load_stop_ids,
    make_model,
    named_arrays,
    save_model,
)

DATA = Path(__file__).parents[1] / "data" / "models"
FAMILIES = ("llama", "qwen2", "qwen3")
VARIANTS = (
    "rope_linear",
    "rope_llama3",
    "rope_yarn",
    "rope_yarn_mscale",
    "llama_tied_biases",
    "qwen2_free",
    "qwen3_tied",
)


@nnx.jit
def logits_of(model, tokens, positions, segments):
    return model.logits(model(tokens, positions, segments))


def greedy(model, tokens, lengths, steps):
    """Put the likeliest token behind each right-padded row; the grid's width stays."""
    rows, start = len(tokens), np.asarray(lengths)
    grid = tokens.copy()
    positions = jnp.tile(jnp.arange(grid.shape[1]), (rows, 1))
    for step in range(steps):
        length = start + step
        segments = (np.arange(grid.shape[1]) < length[:, None]).astype(np.int32)
        logits = logits_of(model, jnp.asarray(grid), positions, jnp.asarray(segments))
        grid[np.arange(rows), length] = np.argmax(logits[np.arange(rows), length - 1], axis=-1)
    return np.stack([grid[i, n : n + steps] for i, n in enumerate(start)])


@pytest.mark.parametrize("family", FAMILIES)
def test_families_equal_transformers(family):
    model = load_model(DATA / family)
    reference = np.load(DATA / family / "reference.npz")
    ids, lengths = np.pad(reference["ids"], ((0, 0), (0, 12))), reference["lengths"]
    positions = np.tile(np.arange(ids.shape[1]), (3, 1))
    segments = (positions < lengths[:, None]).astype(np.int32)
    logits = logits_of(model, *map(jnp.asarray, (ids, positions, segments)))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(logits[row, :length], reference[f"logits_{row}"], atol=1e-4)
    tokens = np.where(segments, ids, 0)
    np.testing.assert_array_equal(greedy(model, tokens, lengths, 12), reference["greedy"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_transformers_far_beyond_the_context_too(variant):
    model = load_model(DATA / variant)
    reference = np.load(DATA / variant / "reference.npz")
    ids, positions = jnp.asarray(reference["ids"]), jnp.asarray(reference["positions"])
    assert positions.max() > 10 * 64  # beyond original_max_position_embeddings
    logits = logits_of(model, ids, positions, jnp.ones_like(ids))
    np.testing.assert_allclose(logits, reference["logits"], atol=1e-4)
    tokens = greedy(model, np.asarray(ids), [6, 6, 6], 8)
    np.testing.assert_array_equal(tokens, reference["greedy"])


def test_a_reward_model_equals_transformers():
    model = load_scalar_model(DATA / "reward")
    reference = np.load(DATA / "reward" / "reference.npz")
    positions = jnp.tile(jnp.arange(6), (2, 1))
    scores = nnx.jit(lambda m, *a: m(*a))(
        model, jnp.asarray(reference["ids"]), positions, jnp.asarray(reference["last"])
    )
    np.testing.assert_allclose(scores, reference["scores"], atol=1e-4)


def parameters(model):
    return {
        ".".join(map(str, p)): v[...] for p, v in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


@pytest.mark.parametrize("variant", [*FAMILIES, "qwen3_tied", "llama_tied_biases"])
@pytest.mark.parametrize("max_shard_bytes", [None, 30_000])
def test_a_folder_written_back_is_the_same(variant, max_shard_bytes, tmp_path):
    model = load_model(DATA / variant)
    save_model(model, tmp_path, max_shard_bytes=max_shard_bytes)
    assert (tmp_path / "model.safetensors").exists() == (max_shard_bytes is None)
    assert load_config(tmp_path) == load_config(DATA / variant)
    again = parameters(load_model(tmp_path))
    for name, value in parameters(model).items():
        np.testing.assert_array_equal(value, again[name])
    if max_shard_bytes is not None:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        sizes = dict.fromkeys(index["weight_map"].values(), 0)
        for file in sizes:
            for name, array in load_file(tmp_path / file).items():
                assert index["weight_map"][name] == file
                sizes[file] += array.nbytes
        assert sum(sizes.values()) == index["metadata"]["total_size"]
        largest = max(v.nbytes for v in again.values())
        assert max(sizes.values()) <= max(max_shard_bytes, largest)


def test_the_written_file_has_the_same_tensors_bit_for_bit(tmp_path):
    save_model(load_model(DATA / "qwen2_free", dtype=jnp.bfloat16), tmp_path)
    before = load_file(DATA / "qwen2_free" / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        np.testing.assert_array_equal(after[name], array)


def test_dtypes_of_a_load():
    def dtypes(**options):
        leaves = jax.tree.leaves(nnx.state(load_model(DATA / "rope_llama3", **options), nnx.Param))
        return {leaf.dtype.name for leaf in leaves}

    assert dtypes() == {"float32"}
    assert dtypes(dtype=jnp.bfloat16) == {"bfloat16"}
    assert dtypes(dtype=jnp.bfloat16, param_dtype=jnp.float32) == {"float32"}


def test_names_and_layout_are_those_of_the_file():
    model = load_model(DATA / "qwen3")
    stored = load_file(DATA / "qwen3" / "model.safetensors")
    named = dict(named_arrays(model))
    assert named.keys() == stored.keys()
    for name, array in named.items():
        np.testing.assert_array_equal(array, stored[name])


def test_stop_ids(tmp_path):
    assert load_stop_ids(DATA / "llama") == (2,)
    assert load_stop_ids(DATA / "qwen3") == ()
    shutil.copy(DATA / "llama" / "config.json", tmp_path)
    assert load_stop_ids(tmp_path) == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load_stop_ids(tmp_path) == (7, 9)


# ------------------------------------------------------------------- folders that do not fit


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((DATA / "llama_tied_biases" / name).read_bytes())
    return tmp_path


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_one_error_lists_every_tensor_that_does_not_fit(folder):
    def change(tensors):
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.mlp.up_proj.bias"]
        tensors["model.layers.2.extra.weight"] = np.zeros(2, np.float32)
        tensors["model.layers.0.self_attn.k_proj.weight"] = np.zeros((16, 31), np.float32)
        tensors["model.layers.0.self_attn.v_proj.bias"] = np.zeros(16, np.int8)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)

    rewrite(folder, change)
    with pytest.raises(ValueError) as error:
        load_model(folder)
    assert str(error.value) == (
        "the weights do not fit config.json; "
        "missing tensors: model.layers.1.mlp.up_proj.bias, model.norm.weight; "
        "unexpected tensors: model.layers.2.extra.weight; "
        "tensors of the wrong shape: "
        "model.layers.0.self_attn.k_proj.weight [16, 31] (expected [16, 32]); "
        "tensors of a dtype other than F32, BF16, F16: "
        "model.layers.0.self_attn.v_proj.bias I8"
    )


def test_a_bias_that_the_config_denies_is_not_dropped(folder):
    configure(folder, mlp_bias=False)
    with pytest.raises(ValueError, match=r"unexpected tensors: model\.layers\.0\.mlp\.down_proj"):
        load_model(folder)


def test_a_tied_head_may_be_stored_but_not_differ(folder):
    def copy_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    wanted = parameters(load_model(folder))
    rewrite(folder, copy_head)
    for name, value in parameters(load_model(folder)).items():
        np.testing.assert_array_equal(value, wanted[name])
    rewrite(folder, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    for name, value in parameters(load_model(folder)).items():
        np.testing.assert_array_equal(value, wanted[name])

    def differ(tensors):
        tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] * 2

    rewrite(folder, differ)
    with pytest.raises(ValueError, match="set tie_word_embeddings to false if the head is meant"):
        load_model(folder)
    configure(folder, tie_word_embeddings=False)
    assert load_model(folder).has_free_head


def test_weights_that_would_execute_code_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin cannot be read, convert to"):
        load_model(folder)


@pytest.mark.parametrize(
    "files, kind, message",
    [
        ({"a": "gone.safetensors"}, FileNotFoundError, "do not exist: gone.safetensors"),
        ({"a": "../x.safetensors"}, ValueError, "outside the folder: ../x.safetensors"),
        ({}, ValueError, "has no weight_map"),
    ],
)
def test_an_index_that_does_not_fit(folder, files, kind, message):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(kind) as error:
        load_model(folder)
    assert message in str(error.value)


def test_saving_does_not_overwrite_unasked(tmp_path):
    model = make_model("tiny")
    save_model(model, tmp_path, max_shard_bytes=20_000)
    with pytest.raises(FileExistsError, match="choose another folder or pass overwrite=True"):
        save_model(model, tmp_path)
    save_model(model, tmp_path, overwrite=True)  # no stale shard or index is left
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(ValueError, match="max_shard_bytes must be at least 1, got 0"):
        save_model(model, tmp_path, max_shard_bytes=0, overwrite=True)
    with pytest.raises(ValueError, match="dtype must be float32, bfloat16 or float16, got int8"):
        save_model(model, tmp_path, dtype=jnp.int8, overwrite=True)


def test_companions_come_along(tmp_path):
    save_model(make_model("tiny"), tmp_path, companions=DATA / "llama")
    copied = (tmp_path / "generation_config.json").read_bytes()
    assert copied == (DATA / "llama" / "generation_config.json").read_bytes()


def test_an_unmerged_adapter_is_not_lost_silently(tmp_path):
    model = make_model("tiny")
    model.layers[0].mlp.up_proj.kernel_lora_a = nnx.LoRAParam(jnp.zeros((32, 2)))
    with pytest.raises(ValueError, match="merge adapters into the weights first"):
        save_model(model, tmp_path)
    assert not any(tmp_path.iterdir())
