"""Configs: sizes that do not fit, and fields of config.json that must not be lost."""

import dataclasses
import json

import pytest
from zootomy.models import ModelConfig, RopeConfig, load_config
from zootomy.models.huggingface_config import config_fields, parse_config

SMALL = dict(  # noqa: C408
    vocab_size=61,
    hidden_size=32,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)
FIELDS = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
QWEN2 = FIELDS | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = FIELDS | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_kv_heads": 3}, "num_heads (4) must be a multiple of num_kv_heads (3)"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_size": 0}, "hidden_size must be a whole number of at least 1, got 0"),
        ({"vocab_size": 2.5}, "vocab_size must be a whole number of at least 1, got 2.5"),
        ({"family": "gpt2"}, "family 'gpt2' is not supported; choose one of llama, qwen2, qwen3"),
        ({"qk_norm": True}, "family 'llama' has qk_norm=False, got True"),
        ({"family": "qwen3"}, "family 'qwen3' has qk_norm=True, got False"),
        ({"qkv_bias": True}, "qkv_bias (True) and o_bias (False) must agree"),
        ({"num_heads": 6}, "hidden_size (32) that is a multiple of num_heads (6)"),
    ],
)
def test_model_config_errors(change, message):
    with pytest.raises(ValueError) as error:
        ModelConfig(**(SMALL | change))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kind": "dynamic"}, "rope kind 'dynamic' is not supported"),
        ({"kind": "linear"}, "rope kind 'linear' needs factor"),
        ({"kind": "default", "factor": 2.0}, "rope kind 'default' does not read factor"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 3.0}, "does not read beta_fast"),
        ({"kind": "yarn", "factor": 2.0}, "rope kind 'yarn' needs original_max_positions"),
        ({"kind": "linear", "factor": "2"}, "rope factor must be a number, got '2'"),
        ({"theta": 0.0}, "rope theta must be positive, got 0.0"),
        ({"kind": "linear", "factor": -1.0}, "rope factor must be positive, got -1.0"),
    ],
)
def test_rope_config_errors(fields, message):
    with pytest.raises(ValueError) as error:
        RopeConfig(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "fields, change, message",
    [
        (FIELDS, {"hidden_act": "gelu"}, "hidden_act = 'gelu' (supported: 'silu' or 'swish')"),
        (FIELDS, {"logit_scale": 0.5}, "logit_scale = 0.5 (unknown field)"),
        (FIELDS, {"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}"),
        (FIELDS, {"auto_map": {"AutoModel": "x.Y"}}, "auto_map = "),
        (FIELDS, {"pretraining_tp": 2}, "pretraining_tp = 2 (supported: 1)"),
        (FIELDS, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 (supported: 1)"),
        (FIELDS, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (FIELDS, {"sliding_window": 128}, "sliding_window = 128 is active"),
        (FIELDS, {"rope_interleaved": True}, "rope_interleaved = True (supported: False)"),
        (FIELDS, {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        (FIELDS, {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        (FIELDS, {"model_type": "mistral"}, "model_type 'mistral' is not supported"),
        (FIELDS, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope kind 'dynamic'"),
        (FIELDS, {"rope_scaling": {"rope_type": "longrope"}}, "rope kind 'longrope'"),
        (FIELDS, {"rope_scaling": {"type": "linear"}}, "rope kind 'linear' needs factor"),
        (
            FIELDS,
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1, 2]}},
            "rope_scaling has fields that are not supported: mrope_section = [1, 2]",
        ),
        (
            FIELDS,
            {"rope_scaling": {"factor": 2.0}, "rope_parameters": {"rope_theta": 5.0}},
            "rope_scaling and rope_parameters are both given",
        ),
        (FIELDS, {"hidden_size": 33}, "hidden_size 33 is not a multiple of num_attention_heads 4"),
        (FIELDS, {"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number"),
        (FIELDS, {"rms_norm_eps": None}, "rms_norm_eps must be a number, got None"),
        (FIELDS, {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        (
            QWEN2,
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            "sliding_window = 64 is active",
        ),
        (QWEN2, {"attention_bias": False}, "attention_bias = False (supported: True)"),
        (QWEN3, {"mlp_bias": True}, "mlp_bias = True (supported: False)"),
    ],
)
def test_a_field_that_would_change_the_output_is_refused_by_name(fields, change, message):
    with pytest.raises(ValueError) as error:
        parse_config(fields | change)
    assert message in str(error.value)


def test_all_refused_fields_are_in_one_error():
    with pytest.raises(ValueError) as error:
        parse_config(FIELDS | {"logit_scale": 0.5, "hidden_act": "relu"})
    assert str(error.value) == (
        "config.json has fields that may change the output and are not supported: "
        "hidden_act = 'relu' (supported: 'silu' or 'swish'); logit_scale = 0.5 (unknown field). "
        "Remove a field only if you know that the weights do not depend on it"
    )


@pytest.mark.parametrize(
    "fields, change",
    [
        (FIELDS, {"torch_dtype": "bfloat16", "use_cache": False, "attention_dropout": 0.1}),
        (FIELDS, {"sliding_window": None, "quantization_config": None, "pretraining_tp": 1}),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": False}),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),
        (QWEN3, {"layer_types": ["full_attention"] * 2, "max_window_layers": 0}),
    ],
)
def test_harmless_fields_are_accepted(fields, change):
    assert parse_config(fields | change) == parse_config(fields)


def test_absent_fields_take_the_familys_defaults():
    llama, qwen3 = parse_config(FIELDS), parse_config(QWEN3)
    assert (llama.head_dim, llama.eos_token_ids, llama.rope.theta) == (8, (2,), 10000.0)
    assert (qwen3.head_dim, qwen3.qk_norm, qwen3.eos_token_ids) == (128, True, ())
    assert parse_config(QWEN2).qkv_bias
    assert not parse_config(QWEN2).o_bias
    alone = {name: value for name, value in FIELDS.items() if name != "num_key_value_heads"}
    assert parse_config(alone).num_kv_heads == 4


def test_older_rope_fields_mean_the_same_as_newer_ones():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    older = {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3"} | scaling}
    newer = {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0} | scaling,
    }
    assert parse_config(FIELDS | older) == parse_config(FIELDS | newer)
    assert parse_config(FIELDS | older).rope.original_max_positions == 64
    plain = FIELDS | {"rope_theta": 7.0, "rope_scaling": None}
    assert parse_config(plain).rope == RopeConfig(theta=7.0)


def test_yarn_context_and_factor_are_completed():
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert parse_config(FIELDS | {"rope_scaling": yarn}).rope.original_max_positions == 512
    top = FIELDS | {"rope_scaling": yarn, "original_max_position_embeddings": 99}
    assert parse_config(top).rope.original_max_positions == 99
    # 512 / 128 = 4
    yarn = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 128}
    assert parse_config(FIELDS | {"rope_parameters": yarn}).rope.factor == 4.0


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"eos_token_ids": (3, 5), "pad_token_id": 0, "tie_embeddings": True},
        {"family": "llama", "qkv_bias": True, "o_bias": True, "mlp_bias": True},
        {"family": "qwen2", "qkv_bias": True, "rope": RopeConfig(kind="linear", factor=2.0)},
        {"family": "qwen3", "qk_norm": True, "head_dim": 24, "bos_token_id": 7},
        {
            "rope": RopeConfig(
                kind="yarn", factor=2.0, original_max_positions=8, truncate=False, mscale=0.5
            )
        },
    ],
)
def test_written_fields_read_back(change, tmp_path):
    config = ModelConfig(**(SMALL | change))
    (tmp_path / "config.json").write_text(json.dumps(config_fields(config, "float32")))
    assert load_config(tmp_path) == config


def test_folder_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="a model folder holds config"):
        load_config(tmp_path)
    classifier = FIELDS | {"architectures": ["LlamaForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(classifier))
    with pytest.raises(ValueError, match=r"architectures \['LlamaForSequenceClassification'\]"):
        load_config(tmp_path)


def test_configs_are_hashable_and_frozen():
    config = ModelConfig(**SMALL)
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 3  # pyright: ignore
