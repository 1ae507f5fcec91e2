"""Programs compiled in a thread: who needs one waits for it, takes over, or ends the thread."""

from threading import Event, Thread

import numpy as np
import pytest
from zootomy.clusters.ahead import Ahead, StoppedError, key_of

WAIT = 60


def program():
    pass


def key(rows, kind="grpo"):
    return key_of(program, (np.zeros(rows),), {"loss": kind})


def meet(ahead, rows, kind="grpo"):
    ahead.meet(program, (np.zeros(rows),), {"loss": kind})


class Compiler:
    """A thread that compiles programs of some rows, each when it is told."""

    def __init__(self, *rows):
        self.ahead = Ahead()
        self.rows = rows
        self.begun = [Event() for _ in rows]
        self.done = [Event() for _ in rows]
        self.ahead.begin(self.work)

    def work(self):
        for rows, begun, done in zip(self.rows, self.begun, self.done, strict=True):
            self.ahead.compile(key(*rows), lambda b=begun, d=done: (b.set(), d.wait(WAIT)))

    def finish(self):
        for done in self.done:
            done.set()
        self.ahead.wait()


def test_keys_tell_programs_apart():
    x, y = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    same = key_of(program, (x, "loss"), {"rows": 2})
    assert key_of(program, (x + 1, "loss"), {"rows": 2}) == same
    other = [
        key_of(program, (y, "loss"), {"rows": 2}),
        key_of(program, (x.astype(np.int32), "loss"), {"rows": 2}),
        key_of(program, ((x, None), "loss"), {"rows": 2}),
    ]
    assert all(one != same for one in other)
    assert [one.kind == same.kind for one in other] == [True] * 3  # of other shapes alone
    assert key_of(program, (x, "other"), {"rows": 2}).kind != same.kind
    assert key_of(len, (x, "loss"), {"rows": 2}).kind != same.kind


def test_who_needs_what_is_under_way_waits_for_it():
    compiler = Compiler((2,))
    compiler.begun[0].wait(WAIT)
    passed = Event()
    waiting = Thread(target=lambda: (meet(compiler.ahead, 2), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    compiler.finish()
    assert passed.wait(WAIT)
    waiting.join()
    assert compiler.ahead.error is None


def test_who_needs_other_shapes_waits_for_none_and_ends_the_thread():
    compiler = Compiler((2,), (3,))
    compiler.begun[0].wait(WAIT)
    meet(compiler.ahead, 5)  # Else it would wait for ever.
    compiler.finish()
    assert isinstance(compiler.ahead.error, StoppedError)
    assert not compiler.begun[1].is_set()


def test_who_needs_another_kind_lets_it_go_on():
    compiler = Compiler((2,), (3,))
    compiler.begun[0].wait(WAIT)
    meet(compiler.ahead, 2, "the score of a reward model")
    compiler.finish()
    assert compiler.ahead.error is None
    assert compiler.begun[1].is_set()


def test_who_comes_first_does_it_and_ends_the_thread():
    compiler = Compiler((2,), (3, "another"), (4, "third"))
    compiler.begun[0].wait(WAIT)
    meet(compiler.ahead, 3, "another")
    compiler.finish()
    assert isinstance(compiler.ahead.error, StoppedError)
    assert not compiler.begun[1].is_set()


def test_what_is_done_is_met_at_once():
    compiler = Compiler((2,), (3,))
    compiler.done[0].set()
    compiler.begun[1].wait(WAIT)
    meet(compiler.ahead, 2)
    assert not compiler.ahead._stop.is_set()
    compiler.finish()
    assert compiler.ahead.error is None


def test_it_is_begun_once_and_meets_nobody_before_and_after():
    ahead, seen = Ahead(), []
    meet(ahead, 2)
    ahead.wait()
    for name in ("first", "second"):
        ahead.begin(lambda name=name: seen.append(name))
        ahead.wait()
    assert seen == ["first"]
    assert not ahead.going
    meet(ahead, 2)
    assert not ahead._stop.is_set()


def test_what_goes_wrong_is_kept_and_nobody_waits():
    def fails():
        ahead.compile(key(2), lambda: 1 / 0)

    ahead = Ahead()
    ahead.begin(fails)
    ahead.wait()
    assert isinstance(ahead.error, ZeroDivisionError)
    assert ahead.error.__traceback__ is None
    meet(ahead, 2)


def test_it_stops_before_the_next_program():
    compiler = Compiler((2,), (3,))
    compiler.begun[0].wait(WAIT)
    compiler.ahead.stop()
    compiler.finish()
    with pytest.raises(StoppedError):
        compiler.ahead.compile(key(7), lambda: None)
    assert not compiler.begun[1].is_set()
