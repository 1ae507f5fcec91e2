"""Batches sampled ahead: with which weights, what a checkpoint keeps of them, and what overlaps."""

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.learners.collect import Collected, Group
from zootomy.learners.in_flight import pack_batch, unpack_batch
from zootomy.learners.pipeline import Pipeline
from zootomy.monitor import Spans
from zootomy.rollout import Completion


class World:
    """Weights with a version, and a sampler that notes with which it sampled what."""

    def __init__(self, **options):
        self.version, self.threads = 0, []
        self.pipeline = Pipeline(self.collect, **options)

    def collect(self, cursor, step, spans):
        self.threads.append(threading.current_thread() is threading.main_thread())
        if step == 3 and cursor == 99:
            raise ZootomyError("no reward")
        return SimpleNamespace(cursor=cursor, step=step, version=self.version, consumed=2)

    def run(self, steps, body=lambda: None):
        """Versions of the batches that each step learned from."""
        found, cursor, spans = [], 0, Spans()
        for step in range(steps):
            batch = self.pipeline.take(cursor, step, spans)
            assert (batch.cursor, batch.step) == (cursor, step)
            cursor += batch.consumed
            with self.pipeline.ahead(batch, cursor, step + 1, spans):
                body()
            self.version += 1
            found.append(batch.version)
        return found, spans.take()


def test_without_staleness_every_batch_is_of_the_newest_weights():
    assert World().run(4)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("slow_learner", [False, True])
def test_batch_n_plus_1_is_of_the_weights_that_step_n_began_with(overlaps, slow_learner):
    world = World(max_staleness=1, overlaps=overlaps)
    # Whichever is the faster: one that gave out new weights early would show [0, 1, 1, 2] or so.
    assert world.run(4, lambda: time.sleep(0.01 * slow_learner))[0] == [0, 0, 1, 2]
    # The first batch is sampled before there is anything to learn; all others beside it.
    assert world.threads == [True, False, False, False, False]


@pytest.mark.parametrize("overlaps", [True, False])
def test_overlap_hides_the_sampling(overlaps):
    world = World(max_staleness=1, overlaps=overlaps)

    def slowly(cursor, step, spans):
        with spans("rollout"):
            time.sleep(0.05)
            return world.collect(cursor, step, spans)

    world.pipeline = Pipeline(slowly, max_staleness=1, overlaps=overlaps)
    seconds = world.run(3, lambda: time.sleep(0.2))[1]
    # 4 batches of 50 ms; 3 of them beside updates of 200 ms, or before them.
    assert seconds["time/rollout"] > 0.2
    assert (seconds["time/wait"] > 0.1) != overlaps


def test_what_goes_wrong_ahead_is_said_when_the_batch_is_asked_for():
    world = World(max_staleness=1, overlaps=True)
    batch = world.pipeline.take(0, 0, Spans())
    with world.pipeline.ahead(batch, 99, 3, Spans()):
        pass
    assert world.pipeline.state() is None
    with pytest.raises(ZootomyError, match="no reward"):
        world.pipeline.take(99, 3, Spans())


def test_a_step_that_fails_has_its_batch_again():
    world = World(max_staleness=1, overlaps=True)
    batch = world.pipeline.take(0, 0, Spans())
    with pytest.raises(KeyError), world.pipeline.ahead(batch, 2, 1, Spans()):
        raise KeyError
    assert world.pipeline.take(0, 0, Spans()) is batch


@pytest.mark.parametrize("wrong", [2, -1, True, 0.5])
def test_other_stalenesses_are_refused(wrong):
    with pytest.raises(ZootomyError) as error:
        World(max_staleness=wrong)
    assert str(error.value) == (
        "max_staleness must be 0 (each batch is sampled with the newest weights) or 1 (while the "
        f"step before learns), got {wrong!r}."
    )


def make_group(example, baseline=None):
    completions = [
        Completion(
            np.arange(length, dtype=np.int32), np.float32([-0.1, -np.pi][:length]), "stop", 7
        )
        for length in (1, 2)
    ]
    return Group(
        example, (3, 4, 5), completions, np.float32([1 / 3, np.nan]), np.array([True, False]),
        np.float32([[1 / 3, np.nan]]), teaches=example != 1, baseline=baseline, scale=0.1,
    )  # fmt: skip


def test_a_batch_comes_back_bit_for_bit():
    sampled = [make_group(0), make_group(1, float("nan")), make_group(2, 1 / 3)]
    # Rewards of single tokens, an array a completion, of other lengths.
    parts = (np.float32([1 / 3]), np.float32([0.1, -0.1]))
    sampled[0] = replace(sampled[0], token_rewards=parts)
    # The second does not teach: a copy of the third stands in for it.
    batch = Collected([sampled[0], sampled[2], sampled[2]], 5, sampled, 1, Counter(score=2))
    data = json.loads(json.dumps(pack_batch(batch), allow_nan=False))
    back = unpack_batch(data)
    assert (back.consumed, back.refills, back.failures) == (5, 1, Counter(score=2))
    assert [back.sampled.index(group) for group in back.groups] == [0, 2, 2]
    for ours, theirs in zip(back.sampled, sampled, strict=True):
        assert ours.prompt == theirs.prompt
        assert (ours.example, ours.teaches, ours.scale) == (theirs.example, theirs.teaches, 0.1)
        np.testing.assert_equal(ours.baseline, theirs.baseline)
        np.testing.assert_equal(ours.token_rewards, theirs.token_rewards)
        for name in ("rewards", "valid", "components"):
            one, other = vars(ours)[name], vars(theirs)[name]
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert (one.stop_reason, one.version) == ("stop", 7)
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_array_equal(one.logp, other.logp)
            assert one.logp.dtype == np.float32
