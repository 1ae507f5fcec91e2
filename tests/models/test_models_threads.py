"""Threads that a process waits for before it ends, but for a second Ctrl-C."""

import signal
import subprocess
import sys
from threading import Event, Thread

import pytest
from zootomy.models.threads import OpenThreads

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
