"""The vanilla engine against the trainer's forward pass, and against itself in other batches."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model, token_logps
from zootomy.rollout import (
    Request,
    RolloutConfig,
    RolloutEngine,
    SamplingParams,
    VanillaEngine,
    make_engine,
)
from zootomy.rollout.noise import key_of
from zootomy.rollout.vanilla import _words

VOCABULARY = 23
CONFIG = RolloutConfig(max_prompt_tokens=12, max_new_tokens=10)
# ragged, with a prompt of one token and one of the largest length
REQUESTS = [
    Request((3, 1, 4, 1, 5), n=2),
    Request((9,), n=1),
    Request((2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3), n=3),
    Request((8, 4), n=2),
]
PLAIN = CONFIG.sampling()
STOPPING = CONFIG.sampling(stop_ids=(7, 11, 2))
GREEDY = dataclasses.replace(PLAIN, temperature=0.0)


def small_model(seed=0):
    # wide weights, so that the distributions are far from uniform
    preset = dataclasses.replace(PRESETS["tiny"], initializer_range=0.3, max_positions=64)
    return make_model(preset, seed=seed, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def engine(model):
    return VanillaEngine(CONFIG, model)


@pytest.fixture(scope="module")
def trainer(model):
    """The trainer's log-probabilities: whole rows, no cache, through the chunked head."""
    width = CONFIG.max_prompt_tokens + CONFIG.max_new_tokens

    @nnx.jit
    def logps(model, tokens, segments, targets, temperature):
        positions = jnp.arange(width)[None]
        hidden = model(tokens, positions, segments)
        return token_logps(hidden, model.head_kernel(), targets, temperature=temperature)[0]

    def run(prompt, completion, temperature=1.0):
        row = np.concatenate([prompt, completion]).astype(np.int32)
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : len(row)] = row
        segments = (np.arange(width) < len(row)).astype(np.int32)[None]
        targets = np.roll(tokens, -1, axis=1)
        out = np.asarray(logps(model, tokens, segments, targets, jnp.float32(temperature)))
        return out[0, len(prompt) - 1 : len(row) - 1]

    return run


def flat(completions):
    return [(c.tokens.tolist(), c.stop_reason) for group in completions for c in group]


def message(call, *args, **kwargs):
    with pytest.raises(ZootomyError) as error:
        call(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_rollout_logp_is_the_trainers(engine, trainer, temperature):
    sampling = dataclasses.replace(STOPPING, temperature=temperature)
    found = engine.generate(REQUESTS, sampling, seed=4)
    for request, group in zip(REQUESTS, found, strict=True):
        assert len(group) == request.n
        for completion in group:
            want = trainer(request.prompt, completion.tokens, temperature)
            assert completion.tokens.dtype == np.int32
            assert completion.logp.dtype == np.float32
            np.testing.assert_allclose(completion.logp, want, atol=1e-4)


def test_greedy_is_the_argmax_at_every_token_and_its_logp_is_at_temperature_one(engine, trainer):
    for request, group in zip(REQUESTS, engine.generate(REQUESTS, GREEDY), strict=True):
        for completion in group:
            np.testing.assert_allclose(
                completion.logp, trainer(request.prompt, completion.tokens), atol=1e-4
            )
            for t, logp in enumerate(completion.logp[:3]):
                before = completion.tokens[:t].tolist()
                best = max(trainer(request.prompt, [*before, v])[-1] for v in range(VOCABULARY))
                assert logp == pytest.approx(best, abs=1e-4)


def test_any_of_several_stop_ids_ends_a_row_and_is_its_last_token_with_a_logp(engine):
    # An engine that knows one stop id only runs over the others: [5, 9, 7, 7] for stops {2, 9}
    # has the actions [5, 9], four when only 2 is known.
    reasons = set()
    for seed in range(3):
        for tokens, logp, reason in (
            (c.tokens.tolist(), c.logp, c.stop_reason)
            for group in engine.generate(REQUESTS, STOPPING, seed=seed)
            for c in group
        ):
            reasons.add((reason, tokens[-1] if reason == "stop" else None))
            stops = [t for t in tokens if t in STOPPING.stop_ids]
            assert stops == ([tokens[-1]] if reason == "stop" else [])
            assert len(logp) == len(tokens)
            assert reason == "stop" or len(tokens) == STOPPING.max_new_tokens
    assert {("length", None), ("stop", 7), ("stop", 11), ("stop", 2)} == reasons


def test_stop_ids_cut_the_rows_and_change_nothing_before(engine):
    free = engine.generate(REQUESTS, PLAIN, seed=8)
    stopped = engine.generate(REQUESTS, STOPPING, seed=8)
    for (whole, _), (cut, reason) in zip(flat(free), flat(stopped), strict=True):
        at = next((i for i, t in enumerate(whole) if t in STOPPING.stop_ids), None)
        assert cut == (whole if at is None else whole[: at + 1])
        assert reason == ("length" if at is None else "stop")


def test_a_completion_may_be_its_stop_token_alone(engine, trainer):
    everything = dataclasses.replace(PLAIN, stop_ids=tuple(range(VOCABULARY)))
    for request, group in zip(REQUESTS, engine.generate(REQUESTS, everything, 0), strict=True):
        for completion in group:
            assert completion.tokens.shape == (1,)
            assert completion.stop_reason == "stop"
            want = trainer(request.prompt, completion.tokens)
            np.testing.assert_allclose(completion.logp, want, atol=1e-4)


def test_a_stop_token_at_the_length_limit_is_a_stop(engine):
    whole = flat(engine.generate(REQUESTS, PLAIN, seed=8))
    last = whole[0][0][3]
    sampling = dataclasses.replace(PLAIN, max_new_tokens=4, stop_ids=(last,))
    tokens, reason = flat(engine.generate(REQUESTS, sampling, seed=8))[0]
    assert last not in tokens[:-1]
    assert (tokens[-1], reason) == (last, "stop")


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_shorter_limit_cuts_the_same_tokens(engine, limit):
    whole = flat(engine.generate(REQUESTS, PLAIN, seed=8))
    cut = flat(engine.generate(REQUESTS, dataclasses.replace(PLAIN, max_new_tokens=limit), seed=8))
    assert cut == [(tokens[:limit], "length") for tokens, _ in whole]


def test_a_seed_reproduces_and_no_seed_never_repeats(engine, model):
    seeded = flat(engine.generate(REQUESTS, PLAIN, seed=5))
    own = [flat(engine.generate(REQUESTS, PLAIN)) for _ in range(2)]
    assert seeded == flat(engine.generate(REQUESTS, PLAIN, seed=5))
    assert seeded != flat(engine.generate(REQUESTS, PLAIN, seed=6))
    assert seeded != flat(engine.generate(REQUESTS, PLAIN, seed=5 + 2**32))
    assert own[0] != own[1]
    # a new engine of the same settings repeats the run
    again = VanillaEngine(CONFIG, model)
    again._programs = engine._programs
    first = [flat(again.generate(REQUESTS, PLAIN)) for _ in range(2)]
    other = VanillaEngine(dataclasses.replace(CONFIG, seed=1), model)
    other._programs = engine._programs
    assert first[0] != first[1]
    assert flat(other.generate(REQUESTS, PLAIN)) != first[0]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**62 - 5])
def test_a_seed_is_a_key_32_bits_at_a_time(seed):
    key = jax.random.key(seed % 2**32)
    if seed >> 32:
        key = jax.random.fold_in(key, seed >> 32)
    np.testing.assert_array_equal(key_of(_words(seed)), jax.random.key_data(key))


def test_completions_of_one_prompt_differ(engine):
    tokens = [t for t, _ in flat(engine.generate([Request((3, 1), n=6)], PLAIN, seed=0))]
    assert len({tuple(t) for t in tokens}) == 6


def test_a_batch_of_one_gives_what_a_larger_batch_gives(engine):
    for sampling in (PLAIN, STOPPING, GREEDY):
        large = engine.generate(REQUESTS, sampling, seed=3)
        alone = engine.generate([Request(REQUESTS[0].prompt, n=1)], sampling, seed=3)
        assert flat(alone) == flat([large[0][:1]])
        np.testing.assert_allclose(alone[0][0].logp, large[0][0].logp, atol=1e-5)


def test_rows_wait_for_slots_and_come_out_the_same(engine, model):
    requests = [Request(r.prompt, n=3) for r in REQUESTS * 2]
    few = VanillaEngine(dataclasses.replace(CONFIG, max_slots=3, prefill_tokens=30), model)
    for sampling in (STOPPING, GREEDY):
        want = engine.generate(requests, sampling, seed=1)
        found = few.generate(requests, sampling, seed=1)
        assert flat(found) == flat(want)
        for some, all_ in zip(found, want, strict=True):
            for a, b in zip(some, all_, strict=True):
                np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)
    assert few.compilations == {"prepare": 1, "read": 1, "fill": 1, "decode": 1}


def test_a_prompt_is_held_once_where_all_its_completions_have_slots(engine, model, monkeypatch):
    seen = []
    decode = engine._programs.decode

    def watched(weights, state, *rest, **named):
        held = state.prompts and (state.prompts.slots.batch, state.prompts.slots.capacity)
        seen.append((held, state.cache.batch, state.cache.capacity))
        return decode(weights, state, *rest, **named)

    monkeypatch.setattr(engine._programs, "decode", watched)
    held_by = {
        # four prompts of up to 12 tokens, one not used; three slots of 10 from each
        (3, 3, 3): ((4, 12), 12, 10),
        (3, 2): (None, 6, 22),  # not as many from each: one a slot, and one slot idle
        (1, 1): (None, 2, 22),
        (5,): ((1, 12), 5, 10),
    }
    for counts, held in held_by.items():
        requests = [
            Request(request.prompt, n=n) for request, n in zip(REQUESTS, counts, strict=False)
        ]
        found = engine.generate(requests, STOPPING, seed=4)
        assert seen.pop() == held
        # What a completion says does not depend on what it shares.
        alone = VanillaEngine(dataclasses.replace(CONFIG, max_slots=1), model)
        assert flat(alone.generate(requests, STOPPING, seed=4)) == flat(found)


def test_slots_get_more_room_as_rows_grow(trainer, model, monkeypatch):
    # room for 14 tokens, then for all 22 in one call, each row exact across the border
    monkeypatch.setattr("zootomy.rollout.vanilla.SMALLEST_ROOM", 14)
    monkeypatch.setattr("zootomy.rollout.vanilla_run.HEADROOM", 1)
    growing = VanillaEngine(CONFIG, model)
    requests = [Request((9,), n=2), Request((8, 4, 1, 6, 2, 7, 3))]
    for request, group in zip(requests, growing.generate(requests, PLAIN, seed=2), strict=True):
        for completion in group:
            want = trainer(request.prompt, completion.tokens)
            np.testing.assert_allclose(completion.logp, want, atol=1e-4)
    assert growing.compilations["decode"] == 2
    assert growing.compilations["grow"] == 1


def test_the_last_rows_move_to_fewer_slots_and_stay_exact(trainer, model, monkeypatch):
    monkeypatch.setattr("zootomy.rollout.scheduler.WORTH_SHRINKING", 2)
    shrinking = VanillaEngine(CONFIG, model)
    often = dataclasses.replace(PLAIN, stop_ids=tuple(range(6)))
    found = shrinking.generate(REQUESTS, often, seed=11)
    assert shrinking.compilations == {"prepare": 1, "read": 1, "fill": 1, "decode": 2, "keep": 1}
    lengths = sorted(len(c.tokens) for group in found for c in group)
    assert lengths[-3] < lengths[-1]  # 8 slots were left for 2
    for request, group in zip(REQUESTS, found, strict=True):
        for completion in group:
            assert (completion.tokens[-1] in often.stop_ids) == (completion.stop_reason == "stop")
            want = trainer(request.prompt, completion.tokens)
            np.testing.assert_allclose(completion.logp, want, atol=1e-4)


def test_no_setting_of_a_call_compiles_again(engine, caplog):
    engine.generate(REQUESTS, PLAIN)
    engine.generate(REQUESTS, dataclasses.replace(PLAIN, top_k=3), seed=1)
    before = engine.compilations
    for settings in (
        {"temperature": 0.3},
        {"temperature": 0.0},
        {"max_new_tokens": 3},
        {"stop_ids": (1, 2, 3)},
        {"min_p": 0.2},
        {"top_p": 0.5},
        {"top_k": 4, "top_p": 0.9},
    ):
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            engine.generate(REQUESTS, dataclasses.replace(PLAIN, **settings), seed=9)
    assert engine.compilations == before
    assert [r.message for r in caplog.records if "Finished XLA" in r.message] == []


def test_random_lengths_and_counts_compile_a_handful(model):
    config = dataclasses.replace(CONFIG, max_slots=4, prefill_tokens=4 * 12)
    engine = VanillaEngine(config, model)
    rng = np.random.default_rng(0)
    for _ in range(10):
        requests = [
            Request(tuple(rng.integers(0, VOCABULARY, rng.integers(1, 13)).tolist()), n=2)
            for _ in range(rng.integers(3, 9))
        ]
        length = int(rng.integers(1, 11))
        engine.generate(requests, dataclasses.replace(STOPPING, max_new_tokens=length))
    # 3 to 8 prompts are read by 4 at a time into 4 slots, whatever their lengths
    assert engine.compilations == {"prepare": 1, "read": 1, "fill": 1, "decode": 1}


def test_truncation_of_the_distribution_reaches_the_engine(engine, trainer):
    greedy = flat(engine.generate(REQUESTS, GREEDY))
    for settings in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        found = engine.generate(REQUESTS, dataclasses.replace(PLAIN, **settings), seed=2)
        assert flat(found) == greedy
        # the only token left has probability 1
        assert all(np.allclose(c.logp, 0, atol=1e-6) for group in found for c in group)
    # at least as likely as under the whole distribution
    top = engine.generate(REQUESTS, dataclasses.replace(PLAIN, top_p=0.6), seed=2)
    for request, group in zip(REQUESTS, top, strict=True):
        for completion in group:
            full = trainer(request.prompt, completion.tokens)
            assert (completion.logp >= full - 1e-5).all()
            assert (completion.logp - full).max() <= -np.log(0.6) + 1e-4


def test_a_prompt_too_long_is_refused_or_keeps_its_last_tokens(engine, model):
    long = tuple(range(1, 16))
    assert message(engine.generate, [REQUESTS[0], Request(long)], PLAIN) == (
        "prompt 1 has 15 tokens; max_prompt_tokens is 12. Raise rollout.max_prompt_tokens, "
        "shorten the prompt, or set rollout.overlong_prompts='truncate' (keeps the last tokens)"
    )
    cutting = VanillaEngine(dataclasses.replace(CONFIG, overlong_prompts="truncate"), model)
    cutting._programs = engine._programs
    found = flat(cutting.generate([Request(long)], PLAIN, seed=1))
    assert found == flat(engine.generate([Request(long[-12:])], PLAIN, seed=1))
    assert found != flat(engine.generate([Request(long[:12])], PLAIN, seed=1))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ((), "prompt 1 is empty; a completion needs at least one token to start from (a "
             "beginning-of-text token, say)"),
        ((1, 23), "prompt 1 holds token 23, outside the vocabulary of 23 tokens"),
        ((-1,), "prompt 1 holds token -1, outside the vocabulary of 23 tokens"),
        ((1.5,), "prompt 1 holds float64; expected integer token ids"),
    ],
)  # fmt: skip
def test_wrong_prompts(engine, prompt, text):
    assert message(engine.generate, [REQUESTS[0], Request(prompt)], PLAIN) == text


def test_wrong_calls(engine):
    ask = SamplingParams(max_new_tokens=11)
    assert message(engine.generate, REQUESTS, ask) == (
        "max_new_tokens is 11; the engine was made for 10. Raise rollout.max_new_tokens, or ask "
        "for less"
    )
    stop = dataclasses.replace(PLAIN, stop_ids=(2, 23))
    assert message(engine.generate, REQUESTS, stop) == (
        "stop id 23 is outside the vocabulary of 23 tokens"
    )
    assert message(engine.generate, REQUESTS, PLAIN, seed=-1) == (
        "seed is -1; expected an integer >= 0, or None"
    )
    assert engine.generate([], PLAIN) == []


def test_limits_beyond_the_models_positions(model):
    config = dataclasses.replace(CONFIG, max_prompt_tokens=60)
    assert message(make_engine, config, model) == (
        "max_prompt_tokens 60 + max_new_tokens 10 = 70 exceeds the model's 64 positions; lower "
        "one of them"
    )


def test_the_engine_keeps_the_protocol(model):
    engine = make_engine(CONFIG, model, version=3)
    assert isinstance(engine, RolloutEngine)
    assert engine.version == 3


def test_a_half_precision_cache_stays_near(engine, model):
    half = VanillaEngine(dataclasses.replace(CONFIG, cache_dtype="bfloat16"), model)
    state = half._programs.empty_state(prompts=1, width=3, slots=2, capacity=4)
    assert state.cache.k[0].dtype == state.prompts.slots.v[0].dtype == jnp.bfloat16
    requests = REQUESTS[:1]
    first = dataclasses.replace(PLAIN, max_new_tokens=1)
    a = half.generate(requests, first, seed=1)[0][0]
    b = engine.generate(requests, first, seed=1)[0][0]
    np.testing.assert_allclose(a.logp, b.logp, atol=0.1)
    assert not np.array_equal(a.logp, b.logp)


def test_a_model_that_gives_nan_is_named(engine, model):
    broken = VanillaEngine(CONFIG, model)
    broken._programs = engine._programs
    state = jax.tree.map(lambda x: x * jnp.nan, nnx.state(model, nnx.Param))
    broken.update_weights(state, 7)
    assert message(broken.generate, REQUESTS, PLAIN, seed=0) == (
        "the model (weights version 7) gave a logp of nan for request 0, completion 0, token 0; "
        "its weights are likely not finite"
    )
