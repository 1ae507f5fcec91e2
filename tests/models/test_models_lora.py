"""Adapters: hand-computed, on a shared backbone, merged once, and as other libraries have them."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from zootomy import ZootomyError
from zootomy.models import (
    Decoder,
    LoraConfig,
    ModelConfig,
    adapted_layers,
    add_adapters,
    load_adapters,
    load_model,
    merge_adapters,
    read_adapter_config,
    save_adapters,
    save_model,
)

TINY = ModelConfig(
    vocab_size=11, hidden_size=8, intermediate_size=12, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=4, initializer_range=0.5, qkv_bias=True, family="qwen2",
)  # fmt: skip
TOKENS = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
POSITIONS = jnp.broadcast_to(jnp.arange(5), TOKENS.shape)
LORA = LoraConfig(rank=3, alpha=6.0)


def make(config=LORA, seed=0, trained=True):
    """A plain model, and the same with adapters that add something."""
    plain = Decoder(TINY, rngs=nnx.Rngs(seed))
    adapted = add_adapters(plain, config, rngs=nnx.Rngs(7))
    if trained:
        for n, layer in enumerate(adapted_layers(adapted).values()):
            key = jax.random.key(n)
            layer.lora_b.set_value(0.3 * jax.random.normal(key, layer.lora_b.shape))
    return plain, adapted


def run(model):
    return np.asarray(logits(*nnx.split(model)))


@functools.partial(jax.jit, static_argnums=0)  # nnx.jit would give the model other arrays
def logits(graph, state):
    model = nnx.merge(graph, state)
    return model.logits(model(TOKENS, POSITIONS))


def test_a_projection_by_hand():
    class One(nnx.Module):
        def __init__(self):
            self.up_proj = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            self.up_proj.kernel.set_value(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
            self.up_proj.bias.set_value(jnp.array([10.0, 20.0]))

    one = add_adapters(One(), LoraConfig(rank=1, alpha=2.0, pattern="up_proj"), rngs=nnx.Rngs(1))
    one.up_proj.lora_a.set_value(jnp.array([[1.0], [-1.0]]))
    one.up_proj.lora_b.set_value(jnp.array([[5.0, 7.0]]))
    # x = (2, 1): x W = (5, 8); x A = 1, so the delta is 2/1 · (5, 7).
    assert one.up_proj(jnp.array([2.0, 1.0])).tolist() == [5 + 10 + 10, 8 + 20 + 14]
    # W + 2 · A B = [[1 + 10, 2 + 14], [3 - 10, 4 - 14]]
    assert merge_adapters(one).up_proj.kernel[...].tolist() == [[11.0, 16.0], [-7.0, -10.0]]


def test_fresh_adapters_say_what_the_model_says_and_share_its_arrays():
    plain, adapted = make(trained=False)
    np.testing.assert_array_equal(run(adapted), run(plain))
    ours, theirs = (dict(nnx.to_flat_state(nnx.state(m, nnx.Param))) for m in (plain, adapted))
    assert all(theirs[path][...] is ours[path][...] for path in ours)
    assert len(theirs) == len(ours) + 2 * 7 * TINY.num_layers
    # The given model is as it was.
    assert not adapted_layers(plain)
    bound = 8**-0.5
    a = np.asarray(adapted.layers[0].mlp.up_proj.lora_a[...])
    assert a.shape == (8, 3)
    assert 0.8 * bound < np.abs(a).max() <= bound
    gaussian = make(dataclasses.replace(LORA, init="gaussian"), trained=False)[1]
    spread = np.concatenate([np.ravel(x.lora_a[...]) for x in adapted_layers(gaussian).values()])
    assert abs(spread.std() - 1 / 3) < 0.05


def test_merged_once_is_the_adapter_applied():
    plain, adapted = make()
    before = run(adapted)
    merged = merge_adapters(adapted)
    # Merging in the model's own variables would add the delta to it a second time.
    np.testing.assert_array_equal(run(adapted), before)
    assert np.abs(before - run(plain)).max() > 0.1
    np.testing.assert_allclose(run(merged), before, atol=2e-5)
    # Nothing is left that could be added again, and the adapted model is as it was.
    assert merge_adapters(merged) is merged
    np.testing.assert_allclose(run(merge_adapters(adapted)), run(merged))
    assert type(merged.layers[0].mlp.up_proj) is nnx.Linear
    paths = [[path for path, _ in nnx.to_flat_state(nnx.state(m))] for m in (merged, plain)]
    assert paths[0] == paths[1]
    assert merged.embed_tokens.embedding[...] is plain.embed_tokens.embedding[...]


def test_adapted_layers_can_be_scanned():
    scanned = Decoder(TINY, rngs=nnx.Rngs(0), layers="scan")
    adapted = add_adapters(scanned, LORA, rngs=nnx.Rngs(7))
    for layer in adapted_layers(adapted).values():
        layer.lora_b.set_value(jnp.full(layer.lora_b.shape, 0.1))
    np.testing.assert_allclose(run(adapted), run(merge_adapters(adapted)), atol=2e-5)
    some = add_adapters(scanned, dataclasses.replace(LORA, pattern=r".*0\..*"), rngs=nnx.Rngs(7))
    with pytest.raises(ValueError, match="an adapter on some of them"):
        run(some)


def test_the_pattern_chooses():
    _, adapted = make(dataclasses.replace(LORA, pattern=r"layers\.1\..*\.(q|v)_proj"))
    assert list(adapted_layers(adapted)) == [
        "layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "q_proj"}, "lora.pattern 'q_proj' matches no projection of the model; it has "
         "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj in each of its layers, "
         "e.g. 'layers.0."),
        ({"pattern": ".*"}, "lora.pattern '.*' matches 'lm_head'; a head cannot be adapted."),
        ({"pattern": "("}, "lora.pattern '(' is no regular expression: missing )"),
        ({"rank": -1}, "lora.rank must be 0 or more, got -1."),
        ({"alpha": 0.0}, "lora.alpha must be above 0, got 0.0."),
        ({"init": "pissa"}, "lora.init must be kaiming or gaussian, got 'pissa'."),
        ({"base": "int8"}, "lora.base must be as_is or nf4, got 'int8'."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_sentence(changes, message):
    with pytest.raises(ZootomyError) as error:
        make(dataclasses.replace(LORA, **changes))
    assert str(error.value).startswith(message)
    with pytest.raises(ZootomyError, match="has adapters already"):
        add_adapters(make()[1], LORA, rngs=nnx.Rngs(0))


def test_as_qwix_has_it():
    import qwix

    plain, adapted = make(dataclasses.replace(LORA, pattern=r".*\.(q|o|up|down)_proj"))
    theirs = qwix.apply_lora_to_model(
        plain, qwix.LoraProvider(module_path=r".*(q|o|up|down)_proj", rank=3, alpha=6.0),
        TOKENS, POSITIONS, rngs=nnx.Rngs(0),
    )  # fmt: skip
    for ours, layer in zip(adapted.layers, theirs.layers, strict=True):
        for room, name in (
            ("self_attn", "q_proj"), ("self_attn", "o_proj"), ("mlp", "up_proj"),
            ("mlp", "down_proj"),
        ):  # fmt: skip
            source, goal = getattr(getattr(ours, room), name), getattr(getattr(layer, room), name)
            goal.kernel_lora_a.set_value(source.lora_a[...])
            goal.kernel_lora_b.set_value(source.lora_b[...])
    np.testing.assert_allclose(run(adapted), run(theirs), atol=2e-5)


def test_a_base_of_four_bits():
    plain, adapted = make(dataclasses.replace(LORA, base="nf4"))
    layer = adapted.layers[0].mlp.down_proj
    kernel = np.asarray(plain.layers[0].mlp.down_proj.kernel[...])
    quantized = layer.base.get_value()
    assert quantized.qvalue.dtype == jnp.uint4
    assert quantized.scale.shape == (1, 8)  # 12 inputs fit into one tile, for each output
    np.testing.assert_allclose(quantized.scale[0], np.abs(kernel).max(axis=0))
    # The widest gap between levels is from -1 to -0.6962, of which the nearest is half away.
    bits = merge_adapters(make(dataclasses.replace(LORA, base="nf4"), trained=False)[1])
    error = np.abs(np.asarray(bits.layers[0].mlp.down_proj.kernel[...]) - kernel)
    assert (error <= 0.1520 * np.abs(kernel).max(axis=0)).all()
    assert error.max() > 0
    np.testing.assert_allclose(run(merge_adapters(adapted)), run(adapted), atol=2e-5)

    def loss(adapters, rest):
        model = nnx.merge(graph, adapters, rest)
        return jnp.sum(model(TOKENS, POSITIONS) ** 2)

    graph, adapters, rest = nnx.split(adapted, nnx.LoRAParam, ...)
    gradients = jax.jit(jax.grad(loss))(adapters, rest)
    assert all(bool((x != 0).any()) for x in jax.tree.leaves(gradients))


def test_without_qwix_four_bits_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(ZootomyError, match=r"needs qwix: pip install 'zootomy\[lora\]'"):
        make(dataclasses.replace(LORA, base="nf4"))


def test_a_peft_folder_and_back(tmp_path):
    plain, adapted = make(
        dataclasses.replace(LORA, pattern=r".*(q|up)_proj|layers\.1\..*down_proj")
    )
    save_adapters(adapted, tmp_path, base_model="some/model")
    fields = json.loads((tmp_path / "adapter_config.json").read_text())
    assert fields["target_modules"] == ["layers.1.mlp.down_proj", "q_proj", "up_proj"]
    assert (fields["r"], fields["lora_alpha"]) == (3, 6.0)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    start = "base_model.model.model.layers.1.mlp.down_proj"
    assert tensors[f"{start}.lora_A.weight"].shape == (3, 12)
    assert tensors[f"{start}.lora_B.weight"].shape == (8, 3)
    assert len(tensors) == 2 * (2 + 2 + 1)
    again = add_adapters(plain, read_adapter_config(tmp_path), rngs=nnx.Rngs(1))
    load_adapters(again, tmp_path)
    np.testing.assert_array_equal(run(again), run(adapted))
    other = add_adapters(plain, LORA, rngs=nnx.Rngs(1))
    with pytest.raises(ZootomyError, match=r"lacks 'base_model.model.model.layers.0.mlp.down_proj"):
        load_adapters(other, tmp_path)
    with pytest.raises(ZootomyError, match="no adapters to write"):
        save_adapters(plain, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha_pattern": {"q_proj": 32}}, r"has alpha_pattern {'q_proj': 32}; only {} can be"),
        ({"use_dora": True}, "has use_dora True; only False can be read"),
        ({"target_modules": "all-linear"}, "has a pattern as target_modules; only a list"),
        ({"r": None}, "has no 'r', which PEFT writes"),
    ],
)
def test_a_peft_folder_that_asks_for_more(tmp_path, changes, message):
    save_adapters(make()[1], tmp_path)
    file = tmp_path / "adapter_config.json"
    fields = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))
    with pytest.raises(ZootomyError, match=message):
        read_adapter_config(tmp_path)


def test_a_merged_folder_and_none_of_an_adapted_model(tmp_path):
    _, adapted = make()
    save_model(merge_adapters(adapted), tmp_path / "merged")
    np.testing.assert_allclose(run(load_model(tmp_path / "merged")), run(adapted), atol=2e-5)
    with pytest.raises(ValueError, match="merge adapters into the weights first"):
        save_model(adapted, tmp_path / "adapted")


@pytest.mark.torch
def test_peft_reads_the_folder(tmp_path):
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    plain, adapted = make()
    save_model(plain, tmp_path / "base")
    save_adapters(adapted, tmp_path / "adapter", base_model=str(tmp_path / "base"))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        theirs = model(torch.tensor(np.asarray(TOKENS))).logits.numpy()
    np.testing.assert_allclose(run(adapted), theirs, atol=1e-4)
