"""How a call is dealt to lanes, and that lanes sample what one lane samples."""

import contextlib
import dataclasses
import gc
import subprocess
import sys
import threading
import weakref
from itertools import chain

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import Request, RolloutConfig, VanillaEngine, lanes, vanilla, vanilla_run
from zootomy.rollout.lanes import LANE_ROWS, SMALL_LAYER, Places, deal, lane_rows

VOCABULARY = 23
CONFIG = RolloutConfig(max_prompt_tokens=12, max_new_tokens=10, max_slots=12)
PROMPTS = [(3, 1, 4, 1, 5), (9,), (2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3), (8, 4), (6, 6, 6)]
ALIKE = [Request(prompt, n=2) for prompt in PROMPTS[:4]]  # 8 completions have 12 slots
WAITING = [Request(prompt, n=4) for prompt in PROMPTS]  # 20 completions wait for 12 slots
STOPPING = CONFIG.sampling(stop_ids=(7, 11, 2))


def dealt(counts, *, max_slots=64, most=2, rows=16, parts=1):
    lengths = [1] * len(counts)
    return deal(counts, lengths, max_slots=max_slots, most=most, rows=rows, parts=parts)


def test_requests_go_to_lanes_of_one_shape():
    # 8 x 4 = 32 rows are two lanes of 16; the seven of a slower call are 4 and 3 prompts of 4 slots
    assert dealt([4] * 8) == Places([[0, 2, 4, 6], [1, 3, 5, 7]], 16, 4)
    assert dealt([5] * 7) == Places([[0, 2, 4, 6], [1, 3, 5]], 20, 5)
    # 31 rows are too few for two lanes of 16, and 8 x 4 for two of 32
    assert dealt([31]) == Places([[0]], 31, 31)
    assert len(dealt([1] * 31).lanes) == 1
    assert len(dealt([4] * 8, rows=32).lanes) == 1
    # 256 completions wait for 64 slots, 32 a lane: no slot keeps its prompt
    assert dealt([4] * 64)[1:] == (32, 1)
    # no more lanes than cores, requests, or fillings of the slots that are allowed
    assert len(dealt([16] * 64, most=3, max_slots=640).lanes) == 3
    assert len(dealt([64], most=3).lanes) == 1
    assert len(dealt([4] * 64, max_slots=31).lanes) == 1
    # counts that differ: 9 + 5 and 5 + 5 + 3 + 3, but 30 beside 5 + 3 leaves one core alone
    assert dealt([3, 5, 9, 5, 3, 5], rows=15) == Places([[2, 5], [1, 3, 0, 4]], 16, 1)
    assert dealt([30, 5, 3]) == Places([[0, 1, 2]], 48, 1)
    # in four lanes one would have 2 x 16 of 80 completions, 1.6 times the mean; in three 1.2
    assert dealt([16] * 5, most=4, max_slots=640).lanes == [[0, 3], [1, 4], [2]]
    # 3 x 12 completions would wait in a lane of 32 slots
    assert dealt([12] * 5) == Places([[0, 1, 2, 3, 4]], 60, 12)
    assert len(dealt([12] * 5, max_slots=72).lanes) == 2
    # each lane has a long and a short prompt to read
    places = deal([16] * 4, [9, 8, 2, 1], max_slots=64, most=2, rows=16, parts=1)
    assert places.lanes == [[0, 2], [1, 3]]


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    max_slots=st.integers(1, 200),
    most=st.integers(1, 9),
    rows=st.integers(1, 40),
)
def test_every_request_has_one_lane_and_slots_hold_out(counts, max_slots, most, rows):
    places = dealt(counts, max_slots=max_slots, most=most, rows=rows)
    assert sorted(chain.from_iterable(places.lanes)) == list(range(len(counts)))
    assert all(places.lanes)
    assert len(places.lanes) * places.slots <= max_slots
    assert places.slots % places.shared == 0
    loads = [sum(counts[request] for request in lane) for lane in places.lanes]
    assert max(loads) * len(loads) <= lanes.UNEVEN * sum(loads)
    if places.shared > 1 or sum(counts) <= max_slots:
        assert max(loads) <= places.slots  # nothing waits that had a slot in one lane


def test_half_the_rows_pay_with_layers_of_few_weights():
    full = np.zeros(SMALL_LAYER // 8)
    assert lane_rows([full, np.zeros(0)], layers=1) == LANE_ROWS // 2
    assert lane_rows([full, np.zeros(1, np.int8)], layers=1) == LANE_ROWS
    assert lane_rows([full, full], layers=2) == LANE_ROWS // 2


@pytest.fixture(scope="module")
def model():
    preset = dataclasses.replace(PRESETS["tiny"], initializer_range=0.3, max_positions=64)
    return make_model(preset, vocab_size=VOCABULARY)


@pytest.fixture
def make(model, monkeypatch):
    def make(cores, model=model):
        monkeypatch.setattr(vanilla, "cores", lambda: cores)
        monkeypatch.setattr(vanilla, "lane_rows", lambda params, layers: 4)
        return VanillaEngine(CONFIG, model)

    return make


def test_all_lanes_of_a_call_without_a_seed_have_its_noise(make):
    """Of calls that are counted, not of lanes: the second call is the second with any number."""
    one, two = make(1), make(2)
    for _ in range(2):
        first, second = (engine.generate(ALIKE, STOPPING) for engine in (one, two))
        for a, b in zip(chain.from_iterable(first), chain.from_iterable(second), strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()


@pytest.mark.parametrize("requests", [ALIKE, WAITING], ids=["alike", "waiting"])
def test_lanes_sample_what_one_lane_samples(make, requests):
    one, two, three = make(1), make(2), make(3)
    counts = [request.n for request in requests]
    many = [len(engine._places(counts, counts).lanes) for engine in (one, two, three)]
    assert many == [1, 2, 2 if requests is ALIKE else 3]
    expected = one.generate(requests, STOPPING, seed=3)
    for engine in (two, three):
        for a, b in zip(expected, engine.generate(requests, STOPPING, seed=3), strict=True):
            assert [c.tokens.tolist() for c in a] == [c.tokens.tolist() for c in b]
            for x, y in zip(a, b, strict=True):
                assert x.stop_reason == y.stop_reason
                np.testing.assert_allclose(x.logp, y.logp, atol=1e-5)
    found = {(i, j): c.tokens.tolist() for i, j, c in two.stream(requests, STOPPING, seed=3)}
    assert found == {
        (i, j): c.tokens.tolist() for i, group in enumerate(expected) for j, c in enumerate(group)
    }


def test_lanes_share_their_programs_and_weights(make, monkeypatch):
    engine = make(2)
    prepared = []
    prepare = engine._programs.prepare
    monkeypatch.setattr(
        engine._programs, "prepare", lambda params: prepared.append(1) or prepare(params)
    )
    for seed in range(2):
        engine.generate(ALIKE, STOPPING, seed=seed)
    assert len(prepared) == 2  # once a call, whatever the number of lanes
    compiled = engine.compilations
    assert compiled == {"prepare": 1, "read": compiled["read"], "fill": 1, "decode": 1}
    assert compiled["read"] <= 2  # prompts of 12 and 4 tokens have widths of their own


def test_lanes_share_the_budget_of_tokens_that_are_read(model, monkeypatch):
    monkeypatch.setattr(vanilla, "cores", lambda: 2)
    monkeypatch.setattr(vanilla, "lane_rows", lambda params, layers: 4)
    engine = VanillaEngine(dataclasses.replace(CONFIG, prefill_tokens=32), model)
    read, shapes = engine._programs.read, []
    monkeypatch.setattr(
        engine._programs,
        "read",
        lambda params, tokens, *rest, **named: (
            shapes.append(tokens.shape) or read(params, tokens, *rest, **named)
        ),
    )
    engine.generate([Request((1, 2, 3), n=1)] * 12, STOPPING, seed=0)
    assert shapes == [(1, 12)] * 12  # 12 tokens of 16, where 32 would read two at a time


def test_an_error_in_one_lane_reaches_the_caller_and_ends_all(make, monkeypatch):
    def refuse(run, completion, row):
        if row.request == 1:
            raise ZootomyError("request 1 is wrong")

    monkeypatch.setattr(vanilla_run.Run, "_refuse_nan", refuse)
    for _ in range(3):
        with pytest.raises(ZootomyError, match=r"^request 1 is wrong$"):
            make(2).generate(ALIKE, STOPPING, seed=1)
        assert not lane_threads()


def test_nothing_outlives_an_error(make, monkeypatch):
    runs = []

    class Tracked(vanilla_run.Run):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            runs.append(weakref.ref(self))

    monkeypatch.setattr(vanilla, "Run", Tracked)
    broken = make_model(PRESETS["tiny"], vocab_size=VOCABULARY)
    broken.norm.scale.set_value(broken.norm.scale[...] * np.nan)
    engine = make(2, broken)
    gc.disable()
    try:
        with contextlib.suppress(ZootomyError):
            engine.generate(ALIKE, STOPPING, seed=1)
        assert [run() for run in runs] == [None, None]
    finally:
        gc.enable()
    with pytest.raises(ZootomyError, match=r"weights version 0\) gave a logp of nan for request"):
        engine.generate(ALIKE, STOPPING, seed=1)


def test_a_stream_that_is_left_ends_its_lanes(make, monkeypatch):
    stopped = []
    stop = vanilla_run.Run.stop
    monkeypatch.setattr(vanilla_run.Run, "stop", lambda run: stopped.append(run) or stop(run))
    engine = make(2)
    stream = engine.stream(WAITING, STOPPING, seed=1)
    assert not lane_threads()  # nothing starts before it is looked at
    next(stream)
    stream.close()
    assert len(stopped) == 2
    assert not lane_threads()
    assert len(engine.generate(ALIKE, STOPPING, seed=1)) == 4


def test_a_run_that_is_stopped_launches_nothing_more(make, monkeypatch):
    launched = []
    run_of = vanilla_run.Run
    monkeypatch.setattr(
        vanilla, "Run", lambda *a, **k: launched.append(run_of(*a, **k)) or launched[-1]
    )
    items = make(1).stream(WAITING, STOPPING, seed=1)
    next(items)
    launched[0].stop()
    rest = len(list(items))
    assert rest < 19


def test_who_launches_a_program_may_end_a_stream_whose_lanes_wait_for_it(make):
    # as the collection of garbage does that happens while a program is traced
    engine = make(2)
    stream = engine.stream(WAITING, STOPPING, seed=1)
    next(stream)

    def close():
        with engine._programs.launching:
            stream.close()

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not lane_threads()


def test_a_process_may_end_while_lanes_decode():
    script = """
from zootomy.models import PRESETS, make_model
from zootomy.rollout import Request, RolloutConfig, VanillaEngine, vanilla
vanilla.cores, vanilla.lane_rows = lambda: 2, lambda params, layers: 4
engine = VanillaEngine(
    RolloutConfig(max_prompt_tokens=4, max_new_tokens=500, max_slots=8),
    make_model(PRESETS["tiny"], vocab_size=23),
)
stream = engine.stream([Request((1, 2), n=1)] * 30, engine.config.sampling(stop_ids=(3,)), 1)
next(stream)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_weights_on_a_mesh_have_one_lane(make, model):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    whole = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    engine = make(2, nnx.merge(graph, whole, rest))
    assert len(engine._places([2] * 4, [3] * 4).lanes) == 1


def lane_threads():
    return [thread for thread in threading.enumerate() if thread.name == "zootomy-lane"]
