"""Threads that a process waits for before it ends, but for a second Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
import weakref
from threading import Barrier, Event, Thread, current_thread, get_ident

import pytest
from zootomy.models import threads
from zootomy.models.threads import LentThread, OpenThreads

# A thread that ends when it is told, or, as one in a compiler, does not hear of it.
PROGRAM = """
import time
from threading import Event, Thread
from zootomy.models.threads import OpenThreads

told, done = Event(), Event()

def work():
    {waits}
    print("ended", flush=True)

thread = Thread(target=work, daemon=True)
held = OpenThreads(lambda: (print("told", flush=True), told.set()), [thread])
thread.start()
print("begun", flush=True)
"""


@pytest.mark.parametrize(
    ("waits", "interrupted", "code", "said"),
    [("told.wait(60)", False, 0, "ended\n"), ("time.sleep(60)", True, 130, "")],
)
def test_a_process_ends_with_its_threads_or_by_ctrl_c(waits, interrupted, code, said):
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(waits=waits)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert [child.stdout.readline() for _ in range(2)] == ["begun\n", "told\n"]
        if interrupted:
            child.send_signal(signal.SIGINT)
        assert child.stdout.read() == said
        assert child.wait(60) == code


def test_what_was_not_started_is_not_waited_for():
    told, stopped = [], Event()
    started, other = Thread(target=stopped.wait), Thread(target=stopped.wait)
    held = OpenThreads(lambda: (told.append(1), stopped.set()), [started, other])
    started.start()
    held.end()
    assert told == [1]
    assert not started.is_alive()


def test_what_is_done_is_not_stopped():
    told = []
    held = OpenThreads(lambda: told.append(1), [Thread(target=print)])
    assert held in threads._OPEN
    held.ended()
    assert held not in threads._OPEN
    assert told == []


def idle_again(thread):
    """Until a kept thread can be lent again: a moment after its work is done."""
    deadline = time.monotonic() + 60
    while thread not in threads._IDLE:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_thread_is_lent_again_and_keeps_nothing():
    threads._IDLE.clear()
    seen, held = [], [Event(), Event()]
    alive = weakref.ref(held[0])
    for wait in held:
        lent = LentThread(
            lambda wait=wait: seen.append((current_thread(), current_thread().name, wait.wait())),
            "lent",
        )
        assert lent.ident is None
        lent.start()
        assert lent.ident not in (None, get_ident())
        wait.set()
        lent.join()
        idle_again(seen[-1][0])
    assert [name for _, name, _ in seen] == ["lent", "lent"]
    assert seen[0][0] is seen[1][0]
    assert seen[0][0].name == "zootomy-kept"
    assert seen[0][0].daemon
    held.clear()
    del wait
    assert alive() is None


def test_work_at_the_same_time_has_a_thread_each():
    both = Barrier(3, timeout=60)
    lent = [LentThread(both.wait, f"lent-{n}") for n in range(2)]
    for one in lent:
        one.start()
    both.wait()
    for one in lent:
        one.join()


def test_who_does_the_work_does_not_wait_for_it():
    ended = []

    def work():
        held.end()
        ended.append(True)

    lent = LentThread(work, "lent")
    held = OpenThreads(lambda: None, [lent])
    lent.start()
    lent.join()
    assert ended


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_an_error_ends_is_not_lent_again():
    threads._IDLE.clear()

    def fail():
        failed.append(current_thread())
        raise RuntimeError

    failed, after = [], []
    for work in (fail, lambda: after.append(current_thread())):
        lent = LentThread(work, "lent")
        lent.start()
        lent.join()
        failed[0].join()
    assert after[0] is not failed[0]
    assert failed[0] not in threads._IDLE


def test_a_thread_that_an_interrupt_leaves_without_work_is_lent_again(monkeypatch):
    threads._IDLE.clear()
    start = threads._KeptThread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threads._KeptThread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LentThread(print, "lent").start()
    (kept,) = threads._IDLE
    done = LentThread(lambda: None, "lent")
    done.start()
    done.join()
    assert done.ident == kept.ident


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process can be forked")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_waits_for_no_thread_and_has_its_own():
    """It has none of its parent's, neither those at work nor those that are kept."""
    kept, hold = LentThread(lambda: None, "kept"), Event()
    working = LentThread(hold.wait, "working")
    for one in (kept, working):
        one.start()
    kept.join()
    opened = OpenThreads(lambda: None, [working])
    child = os.fork()
    if not child:
        signal.alarm(60)  # rather than wait for ever
        opened.end()
        own = LentThread(lambda: None, "own")
        own.start()
        os._exit(0 if own._done.wait(30) else 1)
    hold.set()
    working.join()
    assert os.waitpid(child, 0)[1] == 0
