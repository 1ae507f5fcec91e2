"""Spans as a file that trace viewers open."""

import json
import threading

from zootomy.monitor import Spans, Trace


class Clock:
    def __init__(self):
        self.now = 10.0

    def __call__(self):
        return self.now


def test_spans_become_chrome_events(tmp_path):
    clock, path = Clock(), tmp_path / "run" / "trace.json"
    trace = Trace(path, wall=lambda: 1000.0, clock=clock)
    assert json.loads(path.read_text() or "[]") == []
    spans = Spans(clock, record=trace.span)
    with spans("rollout"):
        clock.now += 2.0
        with spans("reward"):
            clock.now += 0.5
    trace.flush()
    name, inner, outer = json.loads(path.read_text())
    assert (name["ph"], name["args"]) == ("M", {"name": "MainThread"})
    # The clock stood at 10 when the wall clock stood at 1000.
    assert (outer["name"], outer["ts"], outer["dur"]) == ("rollout", 1_000_000_000, 2_500_000)
    assert (inner["name"], inner["ts"], inner["dur"]) == ("reward", 1_002_000_000, 500_000)
    assert inner["tid"] == outer["tid"] == 0
    # Whole JSON after every flush, and a thread of its own has a line of its own.
    thread = threading.Thread(target=lambda: trace.span("wait", 13.0, 1.0), name="sampler")
    thread.start()
    thread.join()
    trace.counter("memory, MiB", {"actor": 3.0})
    trace.close()
    events = json.loads(path.read_text())
    assert [e["name"] for e in events[3:]] == ["thread_name", "wait", "memory, MiB"]
    assert events[4]["tid"] == 1
    assert events[5]["args"] == {"actor": 3.0}


def test_a_resumed_run_writes_on(tmp_path):
    path = tmp_path / "trace.json"
    for resume in (False, True, True):
        trace = Trace(path, resume=resume)
        trace.span("train", 0.0, 1.0)
        trace.close()
    assert [e["name"] for e in json.loads(path.read_text())] == ["thread_name", "train"] * 3
    Trace(path).close()
    assert json.loads(path.read_text()) == []
    trace = Trace(path, resume=True)
    trace.span("sync", 0.0, 1.0)
    trace.close()
    assert len(json.loads(path.read_text())) == 2
