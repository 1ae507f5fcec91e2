"""The vLLM engine around a stand-in of vLLM: calls, streams, updates, sleep, ends."""

import dataclasses
import json
import sys
import threading
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import (
    Abortable,
    Request,
    RolloutConfig,
    StreamingEngine,
    engines,
    keeps_arrays,
    make_engine,
)
from zootomy.rollout.transfer import TransferError
from zootomy.rollout.vllm import VllmConfig, engine, process
from zootomy.rollout.vllm.names import FUSED, RULES, expected_shapes
from zootomy.rollout.vllm.weights import huggingface_shapes
from zootomy.rollout.weights import named_params

SIZES = dataclasses.replace(PRESETS["tiny"], vocab_size=23, num_layers=1, head_dim=32)
LIMITS = {"max_prompt_tokens": 4, "max_new_tokens": 12}
REQUESTS = [Request((3, 1), n=2), Request((9,), n=1), Request((2, 6, 5), n=2)]
PLAIN = RolloutConfig(**LIMITS).sampling()


class StandIn:
    """What of `vllm.LLM` the engine uses; the request that was added last ends first.

    Each step gives every request the token `number of weights loaded`.
    """

    shapes: ClassVar[dict] = {}
    folder = ""
    made: ClassVar[list] = []

    def __init__(self, model, **arguments):
        self.arguments, self.log, self.weights, self.fails = arguments, [], 0, None
        StandIn.folder = model
        self.config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        self.llm_engine = self
        self.engine_core = types.SimpleNamespace(shutdown=self.shutdown)
        self.running, self.steps, self.logprob = {}, 0, -0.5
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        StandIn.made.append(self)

    def apply_model(self, function):
        return [dict(self.shapes)]

    def collective_rpc(self, method, args=(), kwargs=None):
        if method != "reload_weights":
            self.log.append("empty_cache")
            return
        for i, (_, array) in enumerate(kwargs["weights_iterator"]):
            self.weights = float(array[0])
            if self.fails and i == 2:
                error, self.fails = self.fails, None
                raise error
        self.log.append("load")

    def reset_prefix_cache(self):
        return True

    def sleep(self, level):
        self.log.append(f"sleep {level}")

    def wake_up(self):
        self.log.append("wake")

    def shutdown(self):
        self.log.append("shutdown")

    def add_request(self, key, prompt, parameters):
        self.running[key] = [0, 2 + len(prompt["prompt_token_ids"]), parameters.max_tokens]
        # later ones are shorter
        self.running[key][1] = max(1, 12 - 2 * len(self.running))

    def abort_request(self, keys):
        for key in keys:
            self.running.pop(key, None)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.entered.set()
        assert self.go_on.wait(20)
        self.steps += 1
        if self.fails:
            error, self.fails = self.fails, None
            raise error
        outputs = []
        for key, row in list(self.running.items()):
            row[0] += 1
            done = row[0] == min(row[1:])
            if done:
                del self.running[key]
            entry = types.SimpleNamespace(logprob=self.logprob)
            token = int(self.weights)
            one = types.SimpleNamespace(
                token_ids=[token],
                logprobs=[{token: entry}],
                finish_reason=("stop" if row[0] < row[2] else "length") if done else None,
            )
            outputs.append(types.SimpleNamespace(request_id=key, outputs=[one]))
        return outputs


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    module = types.ModuleType("vllm")
    module.LLM = StandIn
    module.SamplingParams = lambda **given: types.SimpleNamespace(**given)
    kinds = types.ModuleType("vllm.sampling_params")
    kinds.RequestOutputKind = types.SimpleNamespace(DELTA=1)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    monkeypatch.setattr(engines, "check_extra", lambda name: name)
    monkeypatch.setattr(engine, "import_extra", lambda name: module)
    monkeypatch.setattr(engine, "find_platform", lambda: "cuda")
    monkeypatch.setattr(engine, "check_accelerator", lambda platform: None)
    monkeypatch.setattr(engine, "release", lambda: None)
    # Without torch, an array goes as it is.
    monkeypatch.setattr(
        engine, "tensors", lambda parts: ((p.name, np.ravel(p.array)) for p in parts)
    )
    StandIn.made.clear()


@pytest.fixture(scope="module")
def model():
    made = make_model(SIZES)
    StandIn.shapes = expected_shapes(huggingface_shapes(named_params(made)), RULES, FUSED)
    return made


def of(model, number):
    """Weights that are all one number, which the stand-in's tokens will be."""
    return {name: np.full(x.shape, number, np.float32) for name, x in named_params(model).items()}


def opened(policy, **knobs):
    """An engine with weights 1, and the stand-in inside."""
    config = RolloutConfig(engine="vllm", vllm=VllmConfig(**knobs), **LIMITS)
    made = make_engine(config, policy)
    made.update_weights(of(policy, 1), 1)
    (inside,) = StandIn.made
    inside.log.clear()
    return made, inside


def message(function, *args, **kwargs):
    with pytest.raises(ZootomyError) as error:
        function(*args, **kwargs)
    return str(error.value)


def test_a_stream_gives_what_generate_gives_in_the_order_of_the_ends(model):
    made, _ = opened(model)
    assert isinstance(made, StreamingEngine)
    assert isinstance(made, Abortable)
    want = made.generate(REQUESTS, PLAIN, seed=0)
    found = list(made.stream(REQUESTS, PLAIN, seed=0))
    # five requests end after 10, 8, 6, 4 and 2 steps
    assert [(f.request, f.index) for f in found] == [(2, 1), (2, 0), (1, 0), (0, 1), (0, 0)]
    assert [len(f.completion.tokens) for f in found] == [2, 4, 6, 8, 10]
    for f in found:
        same = want[f.request][f.index]
        assert f.completion.tokens.tolist() == same.tokens.tolist()
        assert (f.completion.stop_reason, f.completion.version) == ("stop", 1)


def test_vllm_goes_on_while_the_caller_looks_at_a_completion(model):
    made, inside = opened(model)
    stream = made.stream(REQUESTS, PLAIN, seed=0)
    next(stream)
    # all ten steps are done although nobody asks for more
    while inside.running:
        pass
    assert inside.steps == 10
    assert len(list(stream)) == 4


def test_a_stream_that_nobody_reads_to_its_end_is_dropped(model):
    made, inside = opened(model)
    inside.go_on.clear()
    stream = made.stream(REQUESTS, PLAIN, seed=0)
    threading.Timer(0.05, inside.go_on.set).start()
    next(stream)
    stream.close()
    assert not inside.running
    assert [len(g) for g in made.generate(REQUESTS, PLAIN, seed=0)] == [2, 1, 2]


def test_errors_of_a_stream_reach_the_reader(model):
    made, inside = opened(model)
    assert message(list, made.stream([Request((99,))], PLAIN)) == (
        "prompt 0 holds token 99, outside the vocabulary of 23 tokens"
    )
    inside.fails = RuntimeError("a kernel is broken")
    assert message(list, made.stream(REQUESTS, PLAIN)) == (
        "vLLM failed while sampling (RuntimeError): a kernel is broken"
    )
    assert not inside.running
    assert len(list(made.stream(REQUESTS, PLAIN))) == 5


def test_an_update_waits_for_a_stream(model):
    made, inside = opened(model)
    inside.go_on.clear()
    stream = made.stream(REQUESTS, PLAIN, seed=0)
    assert inside.entered.wait(20)
    update = threading.Thread(target=made.update_weights, args=(of(model, 2), 2))
    update.start()
    assert made.version == 1
    inside.go_on.set()
    assert {f.completion.version for f in stream} == {1}
    update.join()
    (one, _), *_ = made.generate(REQUESTS, PLAIN)
    assert (one.version, one.tokens[0]) == (2, 2)


def test_an_abort_ends_the_running_call_and_no_later_one(model):
    made, inside = opened(model)
    made.abort()  # nothing runs
    inside.go_on.clear()
    stream = made.stream(REQUESTS, PLAIN)
    assert inside.entered.wait(20)
    made.abort()
    inside.go_on.set()
    found = list(stream)
    assert [f.completion.stop_reason for f in found] == ["abort"] * 5
    assert [len(f.completion.tokens) for f in found] == [1] * 5
    assert {x.stop_reason for g in made.generate(REQUESTS, PLAIN) for x in g} == {"stop"}


def test_closing_ends_a_running_call_in_an_error(model):
    made, inside = opened(model)
    inside.go_on.clear()
    stream = made.stream(REQUESTS, PLAIN)
    assert inside.entered.wait(20)
    threading.Timer(0.05, inside.go_on.set).start()
    made.close()
    assert inside.log == ["shutdown"]
    assert message(list, stream) == "the engine is closed; make a new one"
    made.close()
    assert message(made.generate, REQUESTS, PLAIN) == "the engine is closed; make a new one"
    assert message(list, made.stream(REQUESTS, PLAIN)) == "the engine is closed; make a new one"


def test_an_update_that_dies_half_way_goes_back(model):
    made, inside = opened(model)
    inside.fails = OSError("the line is cut")
    with pytest.raises(TransferError) as error:
        made.update_weights(of(model, 2), 2)
    assert str(error.value) == (
        "vLLM failed while taking weights of version 2 (OSError: the line is cut); it goes on with "
        "version 1. Send them again."
    )
    (one, _), *_ = made.generate(REQUESTS, PLAIN)
    assert (one.version, one.tokens[0]) == (1, 1)
    # of the same version as those that sample
    inside.fails = OSError("again")
    with pytest.raises(TransferError):
        made.update_weights(of(model, 3), 1)
    assert inside.weights == 1
    made.update_weights(of(model, 2), 2)
    assert made.generate(REQUESTS, PLAIN)[0][0].tokens[0] == 2


def test_what_is_sent_in_one_process_is_not_copied(model):
    made, _ = opened(model)
    given = of(model, 4)
    made.update_weights(given, 2)
    held = made._accepted_weights()
    assert all(held[name] is array for name, array in given.items())
    assert keeps_arrays(made, together=False)


def test_cached_blocks_are_emptied_after_weights_that_are_not_finite(model):
    made, inside = opened(model)
    inside.logprob = float("nan")
    assert message(made.generate, REQUESTS, PLAIN) == (
        "vllm (weights version 1) gave a logp of nan for request 2, completion 1, token 0; the "
        "weights are likely not finite"
    )
    assert inside.log == ["empty_cache"]
    assert not inside.running


@pytest.mark.parametrize("level, log", [
    (0, []),
    # weights that were dropped are loaded again where no others come
    (1, ["sleep 1", "wake", "sleep 1", "wake", "load", "sleep 1"]),
    (2, ["sleep 2", "wake", "load", "sleep 2", "wake", "load", "sleep 2"]),
])  # fmt: skip
def test_memory_is_given_up_between_calls(model, level, log):
    made, inside = opened(model, sleep=level)
    for _ in range(2):
        made.generate(REQUESTS, PLAIN)
    made.update_weights(of(model, 2), 2)
    made.generate(REQUESTS, PLAIN)
    assert inside.log == (log or ["load"])


def test_vllm_reads_the_folder_that_is_named(model, tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    opened(model, model=str(tmp_path))
    assert StandIn.folder == str(tmp_path)
    StandIn.made.clear()
    opened(model)
    assert StandIn.made[0].config["vocab_size"] == 23


def test_a_server_is_a_process_of_its_own(model, monkeypatch):
    from zootomy.rollout import remote

    asked = []

    class Child:
        def __init__(self, config, sizes, dtype, mesh, timeout):
            asked.append((config.vllm.server_mode, timeout))

        def update_weights(self, weights, version):
            pass

    monkeypatch.setattr(remote, "RemoteEngine", Child)
    knobs = VllmConfig(server_mode=True, start_timeout=9.0)
    make_engine(RolloutConfig(engine="vllm", vllm=knobs, **LIMITS), model)
    assert asked == [(True, 9.0)]


def test_the_end_of_one_engine_leaves_what_a_process_shares():
    """vLLM's own `shutdown`, and its finalizer, take down the groups that other engines need."""
    log = []
    part = lambda name: types.SimpleNamespace(shutdown=lambda: log.append(name))  # noqa: E731
    core = types.SimpleNamespace(model_executor=part("executor"), scheduler=part("scheduler"))
    client = types.SimpleNamespace(
        engine_core=core,
        shutdown=lambda: log.append("all"),
        _finalizer=types.SimpleNamespace(detach=lambda: log.append("detached")),
    )
    llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(engine_core=client))
    process.keep_apart(llm)
    process.end(llm)
    assert log == ["detached", "executor", "scheduler"]


def test_two_engines_do_not_meet(model):
    made, inside = opened(model)
    StandIn.made.clear()
    other, second = opened(model)
    other.update_weights(of(model, 2), 5)
    assert inside is not second
    one, two = made.stream(REQUESTS, PLAIN), other.stream(REQUESTS, PLAIN)
    for mine, theirs in zip(one, two, strict=True):
        assert set(mine.completion.tokens) == {1}
        assert set(theirs.completion.tokens) == {2}
    made.close()
    assert len(list(other.stream(REQUESTS, PLAIN))) == 5
