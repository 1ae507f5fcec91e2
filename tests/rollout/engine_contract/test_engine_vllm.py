"""What only the real vLLM can show: families, failures half-way, knobs that arrive."""

import dataclasses
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engines_under_contract import (
    GREEDY,
    LIMITS,
    PLAIN,
    REQUESTS,
    config_of,
    flat,
    message,
    open_engine,
    same,
    small_model,
)
from zootomy.models import config_fields
from zootomy.rollout import Request, RolloutConfig, make_engine
from zootomy.rollout.extras import installed
from zootomy.rollout.transfer import TransferError, shared_memory
from zootomy.rollout.vllm import VllmConfig

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(installed("vllm") is None, reason="vllm is not installed"),
]


@pytest.fixture(scope="module")
def opened_once(model):
    opened = open_engine("vllm", model)
    yield opened
    opened.close()


@pytest.fixture
def engine(opened_once, model):
    """One engine with the model's weights, whatever a test before it sent."""
    if opened_once.version != 0:
        opened_once.update_weights(model, 0)
    return opened_once


@pytest.mark.parametrize("family, changes", [
    ("llama", {"qk_norm": False, "tie_embeddings": False, "head_dim": 32}),
    # vLLM's Qwen2 has heads of hidden_size / num_heads, whatever head_dim says
    ("qwen2", {"qk_norm": False, "qkv_bias": True, "head_dim": 32}),
    ("qwen3", {"tie_embeddings": False}),
])  # fmt: skip
def test_greedy_tokens_of_every_family(family, changes):
    model = small_model(family=family, **changes)
    if family == "qwen2":  # fresh biases are 0 and would show nothing
        for layer in model.layers:
            for name in ("q_proj", "k_proj", "v_proj"):
                bias = vars(layer.self_attn)[name].bias
                bias.set_value(bias[...] + np.linspace(-1, 1, bias[...].size, dtype=np.float32))
    mine, vanilla = open_engine("vllm", model), make_engine(RolloutConfig(**LIMITS), model)
    got, want = (flat(x.generate(REQUESTS, GREEDY, seed=0)) for x in (mine, vanilla))
    mine.close()
    for a, b in zip(got, want, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=2e-4)


def test_a_load_that_dies_half_way_leaves_the_old_weights(engine, other, monkeypatch):
    from zootomy.rollout.vllm import engine as module

    before = flat(engine.generate(REQUESTS, GREEDY, seed=0))
    tensors, dead = module.tensors, []

    def dies_once(parts):
        for i, entry in enumerate(tensors(parts)):
            if i == 5 and not dead:
                dead.append(i)
                raise OSError("the line is cut")
            yield entry

    monkeypatch.setattr(module, "tensors", dies_once)
    with pytest.raises(TransferError) as error:
        engine.update_weights(other, 3)
    assert str(error.value) == (
        "vLLM failed while taking weights of version 3 (OSError: the line is cut); it goes on with "
        "version 0. Send them again."
    )
    assert engine.version == 0
    after = flat(engine.generate(REQUESTS, GREEDY, seed=0))
    assert same(before, after)
    assert [one.version for one in after] == [0] * len(after)
    engine.update_weights(other, 3)
    assert not same(before, flat(engine.generate(REQUESTS, GREEDY, seed=0)))


def test_knobs_arrive(model):
    knobs = VllmConfig(
        max_model_len=48, max_num_seqs=5, max_num_batched_tokens=96, kv_cache_mib=32,
        prefix_caching=False, dtype="bfloat16", engine_arguments={"block_size": 32},
    )  # fmt: skip
    opened = make_engine(dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    found = opened._llm.llm_engine.vllm_config
    assert found.model_config.max_model_len == 48
    assert found.model_config.dtype.itemsize == 2
    assert found.scheduler_config.max_num_seqs == 5
    assert found.scheduler_config.max_num_batched_tokens == 96
    assert found.cache_config.kv_cache_memory_bytes == 32 * 2**20
    assert found.cache_config.block_size == 32
    assert not found.cache_config.enable_prefix_caching
    assert len(flat(opened.generate(REQUESTS, PLAIN, seed=0))) == 8
    opened.close()


def test_another_config_than_the_policys_is_refused_with_the_names(model):
    knobs = VllmConfig(hf_overrides={"intermediate_size": 256})
    text = message(make_engine, dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    assert text.startswith("the parameters of the policy are not those of the vllm engine; 4 of")
    assert "model.layers.0.mlp.down_proj.weight (ours (128, 384), the engine's (128, 256))" in text


def test_the_other_knobs_arrive(model, tmp_path):
    """Those that cannot stand beside the ones above."""
    fields = json.dumps(config_fields(model.config, "float32"))
    (tmp_path / "config.json").write_text(fields, encoding="utf-8")
    knobs = VllmConfig(
        memory_utilisation=0.15, enforce_eager=False, hf_config_path=str(tmp_path),
        async_scheduling=False, mapping_config={"rename": {r"lm_head\.weight": "lm_head.weight"}},
    )  # fmt: skip
    opened = make_engine(dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    found = opened._llm.llm_engine.vllm_config
    assert found.cache_config.gpu_memory_utilization == 0.15
    assert found.cache_config.kv_cache_memory_bytes is None
    assert not found.model_config.enforce_eager
    assert found.model_config.hf_config_path == str(tmp_path)
    assert not found.scheduler_config.async_scheduling
    assert len(flat(opened.generate(REQUESTS, PLAIN, seed=0))) == 8
    opened.close()


def test_several_workers_take_the_weights_from_shared_memory(model, other):
    knobs = VllmConfig(tensor_parallel=2)
    opened = make_engine(dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    for version, weights in enumerate((model, other, model)):
        opened.update_weights(weights, version)
        vanilla = make_engine(RolloutConfig(**LIMITS), weights)
        got, want = (flat(x.generate(REQUESTS, GREEDY, seed=0)) for x in (opened, vanilla))
        assert same(got, want)
    opened.close()


def test_two_engines_at_once(engine, model, other):
    second = open_engine("vllm", other)
    want = [flat(x.generate(REQUESTS, PLAIN, seed=4)) for x in (engine, second)]
    assert not same(*want)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(x.generate, REQUESTS, PLAIN, 4) for x in (engine, second)]
        assert all(same(flat(call.result()), w) for call, w in zip(calls, want, strict=True))
    # the end of one leaves the other alone
    second.close()
    assert same(flat(engine.generate(REQUESTS, PLAIN, seed=4)), want[0])


def test_an_update_while_a_stream_is_open_waits_for_it(engine, model, other):
    want = engine.generate(REQUESTS, PLAIN, seed=4)
    found = engine.stream(REQUESTS, PLAIN, seed=4)
    engine.update_weights(other, 1)
    for one in found:
        assert one.completion.version == 0
        assert same([one.completion], [want[one.request][one.index]])


def test_a_stream_that_nobody_reads_to_its_end_is_dropped(engine):
    want = flat(engine.generate(REQUESTS, GREEDY, seed=0))
    found = engine.stream([Request((1, 2), n=64)], PLAIN, seed=4)
    next(found)
    found.close()
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert same(want, flat(engine.generate(REQUESTS, GREEDY, seed=0)))


@pytest.mark.parametrize("where", ["vllm", "vllm, server"])
def test_closing_ends_a_running_call_in_an_error(where, model):
    opened = open_engine(where, model)
    found = opened.stream([Request((1, 2), n=64)] * 40, PLAIN, seed=4)
    next(found)
    opened.close()
    assert message(list, found) == "the engine is closed; make a new one"
    opened.close()


def test_a_server_that_dies_while_it_samples_says_so(model):
    opened = open_engine("vllm, server", model)
    found = opened.stream([Request((1, 2), n=64)] * 40, PLAIN, seed=4)
    next(found)
    os.kill(opened.pid, signal.SIGKILL)
    text = message(list, found)
    assert text.startswith("the process of the vllm engine died (exit code -9); make a new engine.")
    assert message(opened.update_weights, model, 1).startswith("the process of the vllm engine")
    opened.close()


def test_a_transfer_that_dies_half_way_leaves_the_server_whole(model, other, monkeypatch):
    opened = open_engine("vllm, server", model)
    before = flat(opened.generate(REQUESTS, GREEDY, seed=0))
    fill, written = shared_memory.fill, []

    def dies_once(*given):
        written.append(given)
        if len(written) == 5:
            raise OSError("the line is cut")
        fill(*given)

    monkeypatch.setattr(shared_memory, "fill", dies_once)
    with pytest.raises(OSError, match="the line is cut"):
        opened.update_weights(other, 3)
    assert opened.version == 0
    after = flat(opened.generate(REQUESTS, GREEDY, seed=0))
    assert same(before, after)
    assert after[0].version == 0
    opened.update_weights(other, 3)
    assert not same(before, flat(opened.generate(REQUESTS, GREEDY, seed=0)))
    opened.close()


def test_what_vllm_refuses_at_its_start_comes_with_the_knob(model):
    knobs = VllmConfig(kv_cache_mib=10**6)
    text = message(make_engine, dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    assert text.startswith("vLLM failed while starting (")
    assert "rollout.vllm.kv_cache_mib" in text


def test_an_error_at_the_start_of_a_server_reaches_the_caller(model):
    knobs = VllmConfig(server_mode=True, engine_arguments={"no_such_argument": 1})
    text = message(make_engine, dataclasses.replace(config_of("vllm"), vllm=knobs), model)
    assert "no_such_argument" in text


def test_a_server_that_is_killed_says_so(model):
    opened = open_engine("vllm, server", model)
    os.kill(opened.pid, signal.SIGKILL)
    text = message(opened.generate, REQUESTS, PLAIN, seed=0)
    assert text.startswith("the process of the vllm engine died (exit code -9); make a new engine.")
    opened.close()
