"""Random configs both ways against transformers itself; needs torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.models import (
    LoraConfig,
    adapted_layers,
    add_adapters,
    load_model,
    load_scalar_model,
    make_model,
    merge_adapters,
    save_adapters,
    save_model,
)

pytestmark = pytest.mark.torch
ROPES = ("default", "linear", "llama3", "yarn", "yarn")


def random_rope(rng):
    kind = str(rng.choice(ROPES))
    rope = {"rope_type": kind, "rope_theta": float(rng.choice([1e4, 5e5, 1e6, 1234.5]))}
    if kind != "default":
        rope["factor"] = float(rng.choice([1.0, 2.0, 3.7, 8.0]))
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = int(rng.choice([16, 64, 200]))
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": float(rng.choice([2.0, 4.0]))}
    if kind == "yarn":
        choices = {
            "attention_factor": (1.3, 0.8),
            "mscale": (1.0, 0.7),
            "mscale_all_dim": (1.0, 0.4),
            "beta_fast": (32.0, 16.0),
            "beta_slow": (1.0, 2.0),
            "truncate": (True, False),
        }
        for name, values in choices.items():
            if rng.random() < 0.5:
                value = rng.choice(values)
                rope[name] = bool(value) if name == "truncate" else float(value)
    return rope


def random_config(rng):
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    family = str(rng.choice(["llama", "qwen2", "qwen3"]))
    kv_heads, each = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 4]))
    heads = kv_heads * each
    sizes = {
        "vocab_size": int(rng.integers(20, 90)),
        "hidden_size": heads * int(rng.choice([4, 6, 10])),
        "intermediate_size": int(rng.integers(9, 50)),
        "num_hidden_layers": int(rng.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 800,
        "rms_norm_eps": float(rng.choice([1e-6, 1e-5, 1e-2])),
        "tie_word_embeddings": bool(rng.random() < 0.5),
        "rope_parameters": random_rope(rng),
        "pad_token_id": None,
    }
    if family == "qwen3" or rng.random() < 0.5:
        sizes["head_dim"] = int(rng.choice([8, 12, 20]))
    switch = bool(rng.random() < 0.5)
    if family == "llama":
        return LlamaConfig(**sizes, attention_bias=switch, mlp_bias=bool(rng.random() < 0.5))
    if family == "qwen3":
        return Qwen3Config(**sizes, attention_bias=switch)
    return Qwen2Config(**sizes)


def randomise(model, seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.25 * noise)


def their_logits(model, ids, positions):
    import torch

    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids), position_ids=torch.tensor(positions))
    return out.logits.float().numpy()


@nnx.jit
def our_logits(model, ids, positions):
    return model.logits(model(ids, positions))


@pytest.mark.parametrize("seed", range(24))
def test_random_configs_both_ways(seed, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    rng = np.random.default_rng(seed)
    config = random_config(rng)
    theirs = AutoModelForCausalLM.from_config(config)
    randomise(theirs, seed)
    dtype = [torch.float32, torch.bfloat16, torch.float16][seed % 3]
    shard = {"max_shard_size": "8KB"} if seed % 2 else {}
    theirs.to(dtype).save_pretrained(tmp_path / "theirs", **shard)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", dtype=torch.float32, attn_implementation="eager"
    )
    ids = rng.integers(0, config.vocab_size, (3, 15))
    positions = np.array([[0], [250], [3000]]) + np.arange(15)
    wanted = their_logits(theirs, ids, positions)
    ours = load_model(tmp_path / "theirs")
    got = our_logits(ours, jnp.asarray(ids), jnp.asarray(positions))
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, atol=1e-4 * scale)

    save_model(ours, tmp_path / "ours", max_shard_bytes=8000 if seed % 2 else None)
    back, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours",
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not any(info.values()), info
    np.testing.assert_allclose(their_logits(back, ids, positions), wanted, atol=1e-6 * scale)


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_a_model_from_scratch_is_read(preset, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    model = make_model(preset, seed=1, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    save_model(model, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.bfloat16
    ids, positions = np.array([[5, 9, 2, 60]]), np.arange(4)[None]
    wide = load_model(tmp_path)
    got = our_logits(wide, jnp.asarray(ids), jnp.asarray(positions))
    wanted = their_logits(theirs.to(torch.float32), ids, positions)
    np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_a_reward_model_is_read(tmp_path):
    from pathlib import Path

    import torch
    from transformers import AutoModelForSequenceClassification

    data = Path(__file__).parents[1] / "data" / "models" / "reward"
    save_model(load_scalar_model(data), tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    reference = np.load(data / "reference.npz")
    ids = torch.tensor(reference["ids"].astype(np.int64))
    with torch.no_grad():
        scores = theirs(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, 0]
    np.testing.assert_allclose(scores.numpy(), reference["scores"], atol=1e-5)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A model with adapters that do something: its folders in three forms, and its logits."""
    folder = tmp_path_factory.mktemp("adapted")
    model = make_model("tiny", vocab_size=64, seed=1)
    found = add_adapters(model, LoraConfig(rank=3, alpha=6.0), rngs=nnx.Rngs(2))
    for layer in adapted_layers(found).values():
        layer.lora_b.set_value(0.3 * jax.random.normal(jax.random.key(3), layer.lora_b.shape))
    save_model(model, folder / "base")
    save_model(merge_adapters(found), folder / "merged")
    save_adapters(found, folder / "adapter", base_model=str(folder / "base"))
    ids, positions = np.array([[5, 9, 2, 60], [1, 1, 7, 33]]), np.tile(np.arange(4), (2, 1))
    got = our_logits(found, jnp.asarray(ids), jnp.asarray(positions))
    plain = our_logits(model, jnp.asarray(ids), jnp.asarray(positions))
    assert np.abs(got - plain).max() > 0.1
    return folder, ids, positions, got


def test_merged_adapters_are_read(adapted):
    from transformers import AutoModelForCausalLM

    folder, ids, positions, got = adapted
    theirs = AutoModelForCausalLM.from_pretrained(folder / "merged")
    np.testing.assert_allclose(got, their_logits(theirs, ids, positions), atol=1e-4)


def test_an_adapter_folder_is_read_by_peft(adapted):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    folder, ids, positions, got = adapted
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    theirs = peft.PeftModel.from_pretrained(base, folder / "adapter")
    np.testing.assert_allclose(got, their_logits(theirs, ids, positions), atol=1e-4)
