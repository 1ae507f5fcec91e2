"""The SGLang-JAX engine's settings, names and answers, without SGLang-JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import RolloutConfig, SamplingParams
from zootomy.rollout.sglang_jax import SglangJaxConfig
from zootomy.rollout.sglang_jax.arguments import engine_arguments, sampling_arguments
from zootomy.rollout.sglang_jax.engine import (
    empty,
    new_leaves,
    path_name,
    read_output,
    with_old_rope_fields,
)
from zootomy.rollout.sglang_jax.names import engine_arrays, pad_to
from zootomy.rollout.weights import named_params

SIZES = dataclasses.replace(PRESETS["small"], vocab_size=23, num_layers=1)

WIDE = dataclasses.replace(SIZES, head_dim=128)


def message(function, *args, **kwargs):
    with pytest.raises(ZootomyError) as error:
        function(*args, **kwargs)
    return str(error.value)


def config(**knobs):
    # Weights are read from a folder only where one is named.
    folder = {"model": "a_folder"} if knobs.get("load_format") == "auto" else {}
    return RolloutConfig(engine="sglang_jax", max_prompt_tokens=8, max_new_tokens=12, max_slots=4,
                         sglang_jax=SglangJaxConfig(**knobs, **folder))  # fmt: skip


def arguments(device="cpu", mesh=None, **knobs):
    return engine_arguments(config(**knobs), WIDE, dtype="float32", device=device, mesh=mesh)


KNOBS = {
    "dtype": ("bfloat16", "dtype", "bfloat16"),
    "load_format": ("auto", "load_format", "auto"),
    "context_length": (32, "context_length", 34),
    "memory_fraction": (0.3, "mem_fraction_static", 0.3),
    "max_total_tokens": (500, "max_total_tokens", 500),
    "radix_cache": (True, "disable_radix_cache", False),
    "deterministic_sampling": (True, "enable_deterministic_sampling", True),
    "precompile": (True, "disable_precompile", False),
    "token_paddings": ((16, 64), "precompile_token_paddings", [16, 64]),
    "batch_paddings": ((4,), "precompile_bs_paddings", [4]),
    "chunked_prefill": (-1, "chunked_prefill_size", -1),
    "page_size": (16, "page_size", 16),
    "tensor_parallel": (2, "tp_size", 2),
    "data_parallel": (2, "dp_size", 2),
    "attention_backend": ("native", "attention_backend", "native"),
    "engine_arguments": ({"log_level": "info"}, "log_level", "info"),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_becomes_an_argument(knob):
    given, name, value = KNOBS[knob]
    for device in ("cpu", "tpu"):
        plain = arguments(device).get(name)
        # native attention is what a CPU has
        assert plain != value or (device, knob) == ("cpu", "attention_backend")
        assert arguments(device, **{knob: given})[name] == value


def test_a_share_of_memory_bounds_the_cache_of_a_cpu_as_well():
    assert "max_total_tokens" not in arguments(memory_fraction=0.3)
    both = arguments(memory_fraction=0.3, max_total_tokens=500)
    assert (both["mem_fraction_static"], both["max_total_tokens"]) == (0.3, 500)


def test_every_knob_is_spoken_of():
    fields = {entry.name for entry in dataclasses.fields(SglangJaxConfig)}
    assert fields == {"model", "logprobs", "start_timeout"} | set(KNOBS)


def test_defaults_are_those_of_training():
    found = arguments()
    assert found["disable_radix_cache"]
    assert not found["enable_deterministic_sampling"]
    assert found["attention_backend"] == "native"
    assert found["context_length"] == 22
    assert found["max_total_tokens"] == 4 * (20 + 2)
    assert arguments("tpu")["attention_backend"] == "fa"
    assert arguments("tpu", mesh={"tensor": 4, "data": 2})["tp_size"] == 4


@pytest.mark.parametrize("knobs, text", [
    ({"context_length": 10}, "rollout.sglang_jax.context_length is 10, below max_prompt_tokens 8 + "
                             "max_new_tokens 12 = 20; raise it, or leave it None"),
    ({"attention_backend": "fa"}, "rollout.sglang_jax.attention_backend is 'fa', whose kernels run "
                                  "on TPUs only; leave it None"),
    ({"engine_arguments": {"tp_size": 2}}, "rollout.sglang_jax.engine_arguments sets 'tp_size', "
                                           "which rollout.sglang_jax.tensor_parallel decides; set "
                                           "that one instead"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(knobs, text):
    assert message(arguments, **knobs) == text


@pytest.mark.parametrize("knobs, text", [
    ({"load_format": "auto"}, "rollout.sglang_jax.load_format is 'auto', which reads weights from "
                              "a folder, and rollout.sglang_jax.model is empty; name a folder, or "
                              "leave load_format 'dummy'"),
    ({"start_timeout": -1.0}, "rollout.sglang_jax.start_timeout is -1.0; expected a number of "
                              "seconds > 0"),
    ({"page_size": 0}, "rollout.sglang_jax.page_size is 0; expected an integer >= 1"),
    ({"token_paddings": (4, 0)}, "rollout.sglang_jax.token_paddings[1] is 0; expected an integer "
                                 ">= 1"),
    ({"memory_fraction": 0}, "rollout.sglang_jax.memory_fraction is 0; expected a number in (0, "
                             "1]"),
])  # fmt: skip
def test_wrong_knobs(knobs, text):
    assert message(SglangJaxConfig, **knobs) == text


def test_narrow_heads_are_refused_where_their_attention_does_not_fit():
    text = message(engine_arguments, config(), SIZES, dtype="float32", device="cpu")
    assert text.startswith("the policy's head_dim is 32; sglang_jax's native attention gives")


def test_sampling_parameters():
    sampling = SamplingParams(max_new_tokens=5, temperature=0.5, stop_ids=(3, 7))
    assert sampling_arguments(sampling, 9, logprobs=True) == {
        "max_new_tokens": 5, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
        "stop_token_ids": [3, 7], "ignore_eos": False, "no_stop_trim": True, "n": 1,
        "sampling_seed": 9,
    }  # fmt: skip
    assert sampling_arguments(SamplingParams(max_new_tokens=5), 9, logprobs=True)["ignore_eos"]
    cut = dataclasses.replace(sampling, top_p=0.9)
    assert sampling_arguments(cut, None, logprobs=False)["top_p"] == 0.9
    assert message(sampling_arguments, cut, None, logprobs=True).startswith(
        "sglang_jax reports log-probabilities of the whole distribution"
    )


def test_the_rotary_embedding_is_written_for_old_readers_too():
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    assert with_old_rope_fields(plain) == {**plain, "rope_theta": 5.0}
    linear = {"rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0}}
    assert with_old_rope_fields(linear)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_answers_are_read():
    meta = {
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [(-0.5, 4, ""), (-1, 2, "")],
    }
    one = read_output({"output_ids": [4, 2], "meta_info": meta}, 3, logprobs=True, limit=5)
    assert one.tokens.tolist() == [4, 2]
    assert one.logp.tolist() == [-0.5, -1.0]
    assert (one.stop_reason, one.version) == ("stop", 3)
    silent = read_output({"output_ids": [4, 2], "meta_info": meta}, 3, logprobs=False, limit=5)
    assert np.isnan(silent.logp).all()
    unread = {"meta_info": {"finish_reason": {"type": "abort"}}}
    none = read_output(unread, 3, logprobs=True, limit=5)
    assert (len(none.tokens), none.stop_reason) == (0, "abort")
    meta["output_token_logprobs"][0] = (float("nan"), 4, "")
    meta["finish_reason"] = {"type": "length"}
    assert message(
        read_output, {"output_ids": [4, 2], "meta_info": meta}, 3, logprobs=False, limit=5
    ) == (
        "sglang_jax ended a completion after 2 of 5 tokens for want of room; raise "
        "rollout.sglang_jax.context_length or max_total_tokens"
    )
    assert "likely not finite" in message(
        read_output, {"output_ids": [4, 2], "meta_info": meta}, 3, logprobs=True, limit=5
    )


def engine_state(model, heads=32):
    """A state as the runner holds it: its names, `[in, out]`, a padded vocabulary."""
    width, inner = 128, 384
    attention = {
        f"{x}_proj": {"weight": nnx.Param(jnp.zeros((width, n * heads)))}
        for x, n in (("q", 4), ("k", 2), ("v", 2))
    }
    attention["o_proj"] = {"weight": nnx.Param(jnp.zeros((4 * heads, width)))}
    attention |= {f"{x}_norm": {"scale": nnx.Param(jnp.zeros(32))} for x in "qk"}
    layer = {
        "self_attn": attention,
        "mlp": {"gate_proj": {"weight": nnx.Param(jnp.zeros((width, inner)))},
                "up_proj": {"weight": nnx.Param(jnp.zeros((width, inner)))},
                "down_proj": {"weight": nnx.Param(jnp.zeros((inner, width)))}},
        "input_layernorm": {"scale": nnx.Param(jnp.zeros(width))},
        "post_attention_layernorm": {"scale": nnx.Param(jnp.zeros(width))},
    }  # fmt: skip
    return nnx.State({"model": {
        "embed_tokens": {"embedding": nnx.Param(jnp.zeros((64, width)))},
        "layers": {0: layer}, "norm": {"scale": nnx.Param(jnp.zeros(width))},
        "rope": {"table": nnx.Param(jnp.full(3, 7.0))},
    }})  # fmt: skip


def test_leaves_are_exchanged_by_name_and_the_rest_stays():
    model = make_model(SIZES)
    state = engine_state(model)
    leaves = jax.tree.leaves(state)
    new = new_leaves(state, leaves, named_params(model), model.config)
    names = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    found = dict(zip(names, new, strict=True))
    np.testing.assert_array_equal(
        found["model.layers.0.mlp.up_proj.weight"], model.layers[0].mlp.up_proj.kernel[...]
    )
    embedding = found["model.embed_tokens.embedding"]
    np.testing.assert_array_equal(embedding[:23], model.embed_tokens.embedding[...])
    assert not embedding[23:].any()
    assert found["model.rope.table"].tolist() == [7.0, 7.0, 7.0]


def test_another_model_is_refused_with_its_names():
    model = make_model(dataclasses.replace(SIZES, intermediate_size=100))
    state = engine_state(model)
    text = message(new_leaves, state, jax.tree.leaves(state), named_params(model), model.config)
    assert "3 of another shape: model.layers.0.mlp.down_proj.weight" in text


def test_heads_are_padded_one_by_one():
    sizes = dataclasses.replace(SIZES, head_dim=2)
    kernel = jnp.arange(8.0).reshape(2, 4)  # two heads of 2
    padded = pad_to(kernel, (2, 8), "a.q_proj.weight", sizes)
    assert padded.tolist() == [[0, 1, 0, 0, 2, 3, 0, 0], [4, 5, 0, 0, 6, 7, 0, 0]]
    rows = pad_to(kernel.T, (8, 2), "a.o_proj.weight", sizes)
    assert rows[:, 0].tolist() == [0, 1, 0, 0, 2, 3, 0, 0]


def test_a_tied_head_that_the_engine_keeps_apart_is_sent():
    model = make_model(SIZES)
    shapes = {"lm_head.embedding": (23, 128)}
    named = {"embed_tokens.embedding": model.embed_tokens.embedding[...]}
    found = engine_arrays(
        named, model.config, {**shapes, "model.embed_tokens.embedding": (23, 128)}
    )
    assert found["lm_head.embedding"] is found["model.embed_tokens.embedding"]


def test_keys_and_values_that_are_no_numbers_are_emptied():
    buffers = [jnp.full((2, 3), jnp.nan, jnp.bfloat16), jnp.ones(4)]
    same = buffers
    empty(buffers)
    assert same is buffers
    assert buffers[0].dtype == jnp.bfloat16
    assert not any(x.any() for x in buffers)
