"""Completions handed out as they end, prompts read in pieces, weights laid out for decoding."""

import dataclasses
import gc
import logging
from threading import Event

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError
from zootomy.models import (
    PRESETS,
    LoraConfig,
    add_adapters,
    column_head,
    column_logits,
    fuse,
    init_cache,
    make_model,
)
from zootomy.rollout import (
    Request,
    RolloutConfig,
    StreamingEngine,
    VanillaEngine,
    prefill,
    stream,
    vanilla,
    vanilla_run,
)
from zootomy.rollout.streaming import in_background

VOCABULARY = 23
CONFIG = RolloutConfig(max_prompt_tokens=12, max_new_tokens=10, max_slots=4)
REQUESTS = [
    Request((3, 1, 4, 1, 5), n=3),
    Request((9,), n=2),
    Request((2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3), n=4),
]
STOPPING = CONFIG.sampling(stop_ids=(7, 11, 2))


@pytest.fixture(scope="module")
def model():
    preset = dataclasses.replace(PRESETS["tiny"], initializer_range=0.3, max_positions=64)
    return make_model(preset, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def engine(model):
    return VanillaEngine(CONFIG, model)


class OnlyGenerates:
    """The rest of an engine, without `stream`."""

    def __init__(self, engine):
        self.engine, self.version = engine, engine.version

    def generate(self, requests, sampling, seed=None):
        return self.engine.generate(requests, sampling, seed)

    def update_weights(self, weights, version):
        self.engine.update_weights(weights, version)

    def close(self):
        self.engine.close()


def same(a, b):
    return (
        a.tokens.tolist() == b.tokens.tolist()
        and np.allclose(a.logp, b.logp, atol=1e-5)
        and (a.stop_reason, a.version) == (b.stop_reason, b.version)
    )


def all_same(found, want):
    return all(
        same(a, b)
        for some, others in zip(found, want, strict=True)
        for a, b in zip(some, others, strict=True)
    )


def test_a_stream_gives_what_generate_gives_in_the_order_of_the_ends(engine):
    want = engine.generate(REQUESTS, STOPPING, seed=3)
    found = list(engine.stream(REQUESTS, STOPPING, seed=3))
    places = [(f.request, f.index) for f in found]
    assert sorted(places) == [(r, i) for r, q in enumerate(REQUESTS) for i in range(q.n)]
    assert places != sorted(places)
    assert all(same(f.completion, want[f.request][f.index]) for f in found)


def test_the_device_decodes_on_before_the_host_has_looked(model, monkeypatch):
    """The next decoding is begun with the one before it under way, and ends at the same places."""
    seen = []

    def watched(self, state):
        seen.append(("look", np.asarray(state.active).sum().item()))
        return harvest(self, state)

    def begun(self, weights, state, free_enough):
        seen.append(("begin", free_enough))
        return decode(self, weights, state, free_enough)

    harvest, decode = vanilla_run.Run._harvest, vanilla_run.Run._decode
    monkeypatch.setattr(vanilla_run.Run, "_harvest", watched)
    monkeypatch.setattr(vanilla_run.Run, "_decode", begun)
    engine = VanillaEngine(dataclasses.replace(CONFIG, max_slots=16), model)
    found = list(engine.stream(REQUESTS, STOPPING, seed=3))
    assert len(found) == 9
    # 2 of 9 end with their first token; the first decoding is back when one of the 7 others ends.
    assert seen[:4] == [("begin", -1), ("begin", -1), ("look", 6), ("begin", -1)]
    looks = [left for what, left in seen if what == "look"]
    assert looks == sorted(looks, reverse=True)
    assert looks[-1] == 0
    # The last one was begun before it was known that nothing is left.
    assert sum(what == "begin" for what, _ in seen) == len(looks) + 1


def test_slots_that_fill_up_behind_the_hosts_back_are_given_more_room(engine, model, monkeypatch):
    """What was begun without knowing how far the slots are returns at once where one is full."""
    monkeypatch.setattr(vanilla, "SMALLEST_ROOM", 14)
    monkeypatch.setattr(vanilla_run, "HEADROOM", 1)
    narrow = VanillaEngine(CONFIG, model)
    assert narrow._rooms == (14, 22)
    requests = [REQUESTS[2]]  # 4 completions of 12 tokens, a slot each
    found = list(narrow.stream(requests, CONFIG.sampling(stop_ids=(7,)), seed=3))
    assert narrow.compilations["grow"] == 1
    (want,) = engine.generate(requests, CONFIG.sampling(stop_ids=(7,)), seed=3)
    assert sorted(one.index for one in found) == [0, 1, 2, 3]
    assert all(same(one.completion, want[one.index]) for one in found)
    assert max(len(one.tokens) for one in want) > 3  # a slot of 2 is full when the third is read


def test_an_engine_without_a_stream_gives_all_at_the_end(engine):
    plain = OnlyGenerates(engine)
    assert isinstance(engine, StreamingEngine)
    assert not isinstance(plain, StreamingEngine)
    found = list(stream(plain, REQUESTS, STOPPING, seed=3))
    assert [(f.request, f.index) for f in found] == sorted((f.request, f.index) for f in found)
    streamed = {(f.request, f.index): f for f in stream(engine, REQUESTS, STOPPING, seed=3)}
    assert all(same(f.completion, streamed[f.request, f.index].completion) for f in found)


def test_a_stream_refuses_a_wrong_call_at_once(engine):
    with pytest.raises(ZootomyError, match="prompt 0 holds token 23"):
        engine.stream([Request((23,))], STOPPING)
    assert list(engine.stream([], STOPPING)) == []


def test_a_stream_that_is_left_early_leaves_the_engine_usable(engine):
    want = engine.generate(REQUESTS, STOPPING, seed=3)
    left = engine.stream(REQUESTS, STOPPING, seed=3)
    next(left)
    left.close()
    again = engine.generate(REQUESTS, STOPPING, seed=3)
    assert all(
        same(a, b) for x, y in zip(again, want, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("budget", [1, 5, 8])
def test_a_prompt_longer_than_the_budget_is_read_in_pieces(engine, model, budget):
    # 12 tokens by 1, by 4 and by 8 (the last piece reaches beyond the prompt)
    pieces = VanillaEngine(dataclasses.replace(CONFIG, prefill_tokens=budget), model)
    want = engine.generate(REQUESTS, STOPPING, seed=5)
    found = pieces.generate(REQUESTS, STOPPING, seed=5)
    assert all_same(found, want)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("scores", "piece"), [(2 * 12**2, (2, 12)), (12 * 5, (1, 4))])
def test_prompts_whose_scores_would_leave_the_caches(
    monkeypatch, engine, model, scores, piece, cores
):
    """Eight prompts of up to 12 tokens: two at a time, or of one 4 tokens with all 12; each lane
    has half of the room. They come in one pass all the same, of which head and slots are made."""
    monkeypatch.setattr(vanilla, "CACHED_SCORES", 4 * model.config.num_heads * scores * cores)
    monkeypatch.setattr(prefill, "LEAST_PREFILL", 1)
    monkeypatch.setattr(vanilla, "cores", lambda: cores)
    monkeypatch.setattr(vanilla, "lane_rows", lambda params, layers: 4)
    fewer = VanillaEngine(dataclasses.replace(CONFIG, max_slots=8), model)
    read, seen = fewer._programs.read, []

    def counted(params, tokens, lengths, **static):
        seen.append((tokens.shape, static["piece"]))
        return read(params, tokens, lengths, **static)

    monkeypatch.setattr(fewer._programs, "read", counted)
    lengths = (12, 1, 7, 12, 3, 11, 4, 5)
    prompts = [Request(tuple((np.arange(n) + n) % VOCABULARY)) for n in lengths]
    found = fewer.generate(prompts, STOPPING, seed=5)
    assert seen == [((8 // cores, 12), piece)] * cores
    want = engine.generate(prompts, STOPPING, seed=5)
    assert all_same(found, want)
    streamed = {(i, g): one for i, g, one in fewer.stream(prompts, STOPPING, seed=5)}
    assert all(same(streamed[i, 0], group[0]) for i, group in enumerate(want))


def test_joined_projections_are_the_same_function(model):
    with_bias = dataclasses.replace(
        PRESETS["tiny"], family="qwen2", qkv_bias=True, qk_norm=False, initializer_range=0.3
    )
    adapters = LoraConfig(rank=2, pattern=r".*q_proj")
    tokens = jnp.arange(10).reshape(2, 5)
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    for config, lora in ((model.config, None), (with_bias, None), (model.config, adapters)):
        plain = make_model(config, vocab_size=VOCABULARY)
        for key, layer in enumerate(plain.layers):
            norms = [layer.input_layernorm, layer.post_attention_layernorm]
            if config.qkv_bias:
                bias = layer.self_attn.k_proj.bias
                bias[...] = jax.random.normal(jax.random.key(key), bias.shape)
            if config.qk_norm:
                norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
            for number, norm in enumerate(norms):
                norm.scale[...] = 0.5 + number + jnp.arange(norm.scale.shape[0]) / 7
        if lora is not None:
            plain = add_adapters(plain, lora, rngs=nnx.Rngs(0))
        fused = fuse(nnx.clone(plain))
        names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(fused))]
        assert ("layers.0.self_attn.qkv_proj.kernel" in names) == (lora is None)
        assert "layers.0.mlp.gate_up_proj.kernel" in names
        assert not any("gate_proj" in name for name in names)
        cache = init_cache(config, batch=2, capacity=6)
        want, want_cache = plain(tokens, positions, cache=cache)
        found, found_cache = fused(tokens, positions, cache=cache)
        np.testing.assert_allclose(found, want, atol=2e-5)
        for one, other in zip(
            jax.tree.leaves(found_cache), jax.tree.leaves(want_cache), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_over_columns_is_the_same_function(model, tied):
    config = dataclasses.replace(model.config, tie_embeddings=tied, initializer_range=0.3)
    decoder = make_model(config, vocab_size=VOCABULARY)
    hidden = jax.random.normal(jax.random.key(3), (5, config.hidden_size))
    head = column_head(decoder)
    assert head.shape == (VOCABULARY, config.hidden_size)
    found = column_logits(hidden, head)
    np.testing.assert_allclose(found, decoder.logits(hidden).T, rtol=1e-5, atol=1e-5)
    assert column_logits(hidden.astype(jnp.bfloat16), head).dtype == jnp.float32


def test_new_weights_are_laid_out_again_and_compile_nothing(engine, model, caplog):
    other = make_model(model.config, seed=1, vocab_size=VOCABULARY)
    fresh = VanillaEngine(CONFIG, other)
    fresh._programs = engine._programs
    want = fresh.generate(REQUESTS, STOPPING, seed=2)
    changed = VanillaEngine(CONFIG, model)
    changed._programs = engine._programs
    changed.generate(REQUESTS, STOPPING, seed=2)
    before = engine.compilations
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        changed.update_weights(nnx.state(other, nnx.Param), 0)
        found = changed.generate(REQUESTS, STOPPING, seed=2)
    assert engine.compilations == before
    assert [r.message for r in caplog.records if "Finished XLA" in r.message] == []
    assert all_same(found, want)


def test_the_slots_are_donated_and_the_host_waits_once_for_many_tokens(model, monkeypatch):
    engine = VanillaEngine(dataclasses.replace(CONFIG, max_slots=64), model)
    states = []
    decode = engine._programs.decode

    def recorded(weights, state, *rest, **options):
        out = decode(weights, state, *rest, **options)
        states.append((state, out))
        return out

    monkeypatch.setattr(engine._programs, "decode", recorded)
    engine.generate(REQUESTS, CONFIG.sampling(), seed=2)
    assert len(states) == 1  # one program call for the nine tokens after the first
    before, _ = states[0]
    assert all(x.is_deleted() for x in jax.tree.leaves(before.cache))


def test_prompts_of_many_lengths_compile_a_bounded_number_of_programs(model):
    config = dataclasses.replace(CONFIG, max_prompt_tokens=50, prefill_tokens=64)
    engine = VanillaEngine(config, model)
    rng = np.random.default_rng(0)
    for _ in range(10):
        requests = [
            Request(tuple(rng.integers(0, VOCABULARY, rng.integers(1, 51)).tolist()), n=2)
            for _ in range(rng.integers(3, 9))
        ]
        engine.generate(requests, dataclasses.replace(STOPPING, max_new_tokens=3))
    # widths 16, 32 and 50, of which a pass holds 4, 2 and 1 prompts
    assert engine.compilations["read"] <= 3
    assert engine.compilations["decode"] == 1


@pytest.mark.parametrize("way", ["dropped", "closed", "read"])
def test_a_stream_that_nobody_reads_is_stopped(way):
    told, begun, ready = Event(), Event(), Event()

    def forever():
        begun.set()
        while not (told.wait(0.01) or ready.is_set()):
            pass
        yield from ()

    lane = in_background([forever()], told.set)
    assert begun.wait(60)
    if way == "read":
        ready.set()
        assert list(lane) == []
    elif way == "closed":
        lane.close()
    else:
        del lane
        gc.collect()
    assert told.is_set() == (way != "read")  # What has come to its end is not stopped.
