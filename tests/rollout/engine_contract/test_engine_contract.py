"""What every rollout engine promises, tried on every engine that is installed."""

import dataclasses
import threading

import numpy as np
import pytest
from engines_under_contract import (
    GREEDY,
    LIMITS,
    PLAIN,
    REQUESTS,
    VOCABULARY,
    flat,
    message,
    open_engine,
    same,
)
from zootomy import ZootomyError
from zootomy.rollout import Request, RolloutConfig, RolloutEngine, make_engine, stream
from zootomy.rollout.weights import named_params

# Log-probabilities in float32, of programs that add up in other orders, and of two libraries. With
# logits as wide as here, at a temperature of 0.6, each is within 1.3e-5 of float64.
EXACT, CLOSE = 3e-5, 2e-4


@pytest.fixture(autouse=True)
def _fills(table):
    """Every property is a row of the table."""


def test_token_ids_in_and_out(engine):
    assert isinstance(engine, RolloutEngine)
    groups = engine.generate(REQUESTS, PLAIN, seed=3)
    assert [len(group) for group in groups] == [request.n for request in REQUESTS]
    for one in flat(groups):
        assert one.tokens.dtype == np.int32
        assert one.logp.dtype == np.float32
        assert ((one.tokens >= 0) & (one.tokens < VOCABULARY)).all()
        assert (one.logp <= 1e-6).all()


def test_completions_of_a_prompt_differ(engine):
    (group,) = engine.generate([Request((3, 1, 4), n=6)], PLAIN, seed=0)
    assert len({tuple(one.tokens) for one in group}) > 1


def test_equal_requests_of_a_call_differ(engine):
    one, two = engine.generate([Request((3, 1, 4), n=2), Request((3, 1, 4), n=2)], PLAIN, seed=0)
    assert not same(one, two)


def test_greedy_tokens_are_those_of_vanilla(engine, vanilla):
    got, want = (x.generate(REQUESTS, GREEDY, seed=0) for x in (engine, vanilla))
    for mine, theirs in zip(flat(got), flat(want), strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(mine.logp, theirs.logp, atol=CLOSE)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logp_is_close_to_the_trainers(engine, trainer, table, kind, temperature):
    sampling = dataclasses.replace(PLAIN, temperature=temperature)
    groups = engine.generate(REQUESTS, sampling, seed=5)
    gaps = [
        np.abs(one.logp - trainer(request.prompt, one, temperature))
        for request, group in zip(REQUESTS, groups, strict=True)
        for one in group
    ]
    gap = float(np.concatenate(gaps).max())
    table.note(kind, "logp is close to the trainers", f"within {gap:.0e}")
    assert gap < (EXACT if kind.startswith("vanilla") else CLOSE)


def test_a_stop_id_ends_a_completion_and_is_its_last_token(engine):
    stops = (7, 11, 2)
    groups = engine.generate(REQUESTS, dataclasses.replace(PLAIN, stop_ids=stops), seed=1)
    reasons = set()
    for one in flat(groups):
        reasons.add(one.stop_reason)
        inside = np.isin(one.tokens, stops)
        assert not inside[:-1].any()
        assert inside[-1] == (one.stop_reason == "stop")
    assert reasons == {"stop", "length"} or reasons == {"stop"}
    assert "stop" in reasons


def test_the_limit_ends_a_completion(engine):
    for limit in (1, 5):
        short = dataclasses.replace(PLAIN, max_new_tokens=limit)
        for one in flat(engine.generate(REQUESTS, short, seed=1)):
            assert len(one.tokens) == limit
            assert one.stop_reason == "length"


def test_the_same_seed_gives_the_same_completions(engine, kind):
    if kind == "sglang_jax":
        pytest.skip("its seeded noise is too weak to train with, and off")
    first, again, another = (engine.generate(REQUESTS, PLAIN, seed=s) for s in (11, 11, 12))
    assert same(flat(first), flat(again))
    assert not same(flat(first), flat(another))


def test_without_a_seed_every_call_has_its_own_noise(engine):
    first, again = (engine.generate(REQUESTS, PLAIN) for _ in range(2))
    assert not same(flat(first), flat(again))


def test_sampling_follows_the_distribution(engine, trainer):
    """The first token's counts over 600 draws against the trainer's probabilities."""
    once = dataclasses.replace(PLAIN, max_new_tokens=1)
    (group,) = engine.generate([Request((9, 2), n=600)], once, seed=2)
    counts = np.bincount([one.tokens[0] for one in group], minlength=VOCABULARY)
    seen = {int(one.tokens[0]): float(np.exp(one.logp[0])) for one in group}
    for token, probability in seen.items():
        spread = 5 * np.sqrt(600 * probability * (1 - probability)) + 1
        assert abs(counts[token] - 600 * probability) < spread


def test_completions_are_handed_out_as_they_end(engine, kind):
    if kind == "sglang_jax":
        pytest.skip("its answers come together")
    stopping = dataclasses.replace(PLAIN, stop_ids=(7, 11, 2))
    want = engine.generate(REQUESTS, stopping, seed=3)
    found = list(stream(engine, REQUESTS, stopping, seed=3))
    places = [(one.request, one.index) for one in found]
    assert sorted(places) == [
        (i, j) for i, request in enumerate(REQUESTS) for j in range(request.n)
    ]
    # in the order of their ends
    assert len(found[0].completion.tokens) < len(found[-1].completion.tokens)
    for one in found:
        assert same([one.completion], [want[one.request][one.index]])


def test_more_requests_than_slots(engine):
    many = [Request((1 + i % 20, 3), n=2) for i in range(2 * LIMITS["max_slots"])]
    got = engine.generate(many, GREEDY, seed=0)
    assert [len(group) for group in got] == [2] * len(many)
    assert same(got[0], got[20])  # the same prompt


@pytest.mark.parametrize("prompt, text", [
    ((), "prompt 0 is empty; a completion needs at least one token to start from (a "
         "beginning-of-text token, say)"),
    ((1,) * 13, "prompt 0 has 13 tokens; max_prompt_tokens is 12. Raise "
                "rollout.max_prompt_tokens, shorten the prompt, or set "
                "rollout.overlong_prompts='truncate' (keeps the last tokens)"),
    ((5, 23), "prompt 0 holds token 23, outside the vocabulary of 23 tokens"),
])  # fmt: skip
def test_wrong_prompts_are_refused(engine, prompt, text):
    assert message(engine.generate, [Request(prompt)], PLAIN, seed=0) == text
    assert message(engine.generate, [Request((1,))], PLAIN, seed=-1) == (
        "seed is -1; expected an integer >= 0, or None"
    )
    assert len(engine.generate([Request((1,))], PLAIN, seed=0)[0][0].tokens) > 0


def test_a_longer_completion_than_the_engine_holds_is_refused(engine):
    long = dataclasses.replace(PLAIN, max_new_tokens=LIMITS["max_new_tokens"] + 1)
    assert message(engine.generate, REQUESTS, long, seed=0) == (
        "max_new_tokens is 25; the engine was made for 24. Raise rollout.max_new_tokens, or ask "
        "for less"
    )


def test_no_requests_give_no_completions(engine):
    assert engine.generate([], PLAIN, seed=0) == []


def test_new_weights_sample_and_show_their_version(engine, model, other):
    engine.update_weights(other, 7)
    assert engine.version == 7
    fresh = make_engine(RolloutConfig(**LIMITS), other)
    got, want = (flat(x.generate(REQUESTS, GREEDY, seed=0)) for x in (engine, fresh))
    assert [one.version for one in got] == [7] * len(got)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(mine.logp, theirs.logp, atol=CLOSE)
    engine.update_weights(model, 8)
    assert flat(engine.generate(REQUESTS, GREEDY, seed=0))[0].version == 8


def test_no_cache_of_older_weights_is_used(engine, other, trainer):
    """A prompt read twice (and cached), then once more after an update."""
    repeated = [Request((2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3), n=2)]
    for _ in range(2):
        engine.generate(repeated, GREEDY, seed=0)
    engine.update_weights(other, 4)
    ((one, _),) = engine.generate(repeated, GREEDY, seed=0)
    np.testing.assert_allclose(
        one.logp, trainer(repeated[0].prompt, one, 1.0, model=other), atol=CLOSE
    )


def test_an_update_under_load_leaves_running_completions_whole(engine, model, other, trainer):
    many = [Request((1 + i % 20, 3, 8), n=4) for i in range(24)]
    results = {}
    thread = threading.Thread(
        target=lambda: results.update(old=engine.generate(many, PLAIN, seed=0))
    )
    thread.start()
    engine.update_weights(other, 9)
    new = engine.generate(many, PLAIN, seed=0)
    thread.join()
    assert {one.version for one in flat(new)} == {9}
    versions = {one.version for one in flat(results["old"])}
    assert len(versions) == 1
    used = model if versions == {0} else other
    for request, group in list(zip(many, results["old"], strict=True))[::8]:
        for one in group:
            np.testing.assert_allclose(
                one.logp, trainer(request.prompt, one, 1.0, model=used), atol=CLOSE
            )


def test_an_abort_returns_what_there_is(engine, kind):
    if kind.startswith("vanilla"):
        pytest.skip("samples a call to its end")
    many = [Request((1 + i % 20, 3), n=4) for i in range(60)]
    whole = engine.generate(many, GREEDY)
    results = {}
    thread = threading.Thread(target=lambda: results.update(got=engine.generate(many, GREEDY)))
    thread.start()
    timer = threading.Timer(0.15, engine.abort)
    timer.start()
    thread.join()
    timer.join()
    cut = 0
    for got, want in zip(flat(results["got"]), flat(whole), strict=True):
        assert got.stop_reason in ("abort", "length")
        cut += got.stop_reason == "abort"
        assert got.tokens.tolist() == want.tokens[: len(got.tokens)].tolist()
        assert len(got.logp) == len(got.tokens)
    assert cut > 0
    some, others = (engine.generate(REQUESTS, GREEDY) for _ in range(2))
    assert same(flat(some), flat(others))


def test_wrong_weights_are_refused_and_the_old_ones_stay(engine, model):
    before = flat(engine.generate(REQUESTS, GREEDY, seed=0))
    named = named_params(model)
    first = sorted(named)[0]
    lacking = {name: x for name, x in named.items() if name != first}
    assert message(engine.update_weights, lacking, 3) == (
        f"weights lack {first!r}; every parameter is sent at once"
    )
    wrong = {**named, first: named[first][:-1]}
    assert message(engine.update_weights, wrong, 3).startswith(f"weights at {first!r} have shape")
    assert engine.version == 0
    assert same(before, flat(engine.generate(REQUESTS, GREEDY, seed=0)))


def test_weights_that_are_not_finite_are_an_error_of_the_call(engine, model):
    named = {name: x * np.nan for name, x in named_params(model).items()}
    engine.update_weights(named, 5)
    text = message(engine.generate, REQUESTS, PLAIN, seed=0)
    assert "weights" in text
    assert "likely not finite" in text
    engine.update_weights(model, 6)
    assert flat(engine.generate(REQUESTS, GREEDY, seed=0))[0].version == 6


def test_closed_engines_refuse_and_new_ones_open(kind, model, vanilla, table):
    engine = open_engine(kind, model)
    engine.close()
    engine.close()
    assert message(engine.generate, REQUESTS, PLAIN, seed=0) == (
        "the engine is closed; make a new one"
    )
    assert message(engine.update_weights, model, 1) == "the engine is closed; make a new one"
    again = open_engine(kind, model)
    got, want = (x.generate(REQUESTS, GREEDY, seed=0) for x in (again, vanilla))
    assert [a.tokens.tolist() for a in flat(got)] == [b.tokens.tolist() for b in flat(want)]
    again.close()


def test_errors_are_the_libraries_own(engine):
    with pytest.raises(ZootomyError):
        engine.generate([Request((99,))], PLAIN, seed=0)
