"""TensorBoard's files: written beside the run, whole when closed, and never failing unheard."""

import subprocess
import sys
import threading
import time

import pytest
from event_files import events
from zootomy.monitor.board import Board


def test_closing_writes_what_waits_with_the_time_at_which_it_came(tmp_path):
    before = time.time()
    board = Board(tmp_path / "made" / "here", seconds=60.0)
    board.add(3, {"loss": 0.5, "nan": float("nan"), "reward": 2.0})
    after = time.time()
    board.add(4, {"nan": float("nan")})  # Nothing to show: no event.
    assert events(tmp_path / "made" / "here") == []
    board.close()
    board.close()
    (event,) = events(tmp_path / "made" / "here")
    assert event.step == 3
    assert before <= event.wall_time <= after
    assert [(v.tag, v.simple_value) for v in event.summary.value] == [("loss", 0.5), ("reward", 2)]


def test_a_thread_writes_while_the_run_goes_on(tmp_path):
    board = Board(tmp_path, seconds=0.01)
    board.add(1, {"loss": 1.0})
    for _ in range(1000):
        if events(tmp_path):
            break
        time.sleep(0.01)
    assert [event.step for event in events(tmp_path)] == [1]
    board.add(2, {"loss": 0.5})
    board.close()
    assert [event.step for event in events(tmp_path)] == [1, 2]
    assert not any(thread.name == "tensorboard" for thread in threading.enumerate())


@pytest.mark.parametrize("seconds", [0.01, 60.0])
def test_what_stops_a_writing_stops_the_run(tmp_path, seconds):
    board = Board(tmp_path, seconds=seconds)
    board.add(1, {"loss": "no number"})  # type: ignore[dict-item]
    if seconds < 1:
        board._thread.join(10)
        with pytest.raises(TypeError, match="must be real number"):
            board.add(2, {"loss": 1.0})
    with pytest.raises(TypeError, match="must be real number"):
        board.close()


def test_a_process_that_closes_nothing_leaves_what_it_has_logged(tmp_path):
    code = "import sys; from zootomy.monitor import RunLog; RunLog(sys.argv[1]).write(7, {'a': 1})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    assert [event.step for event in events(tmp_path / "tensorboard")] == [7]


def test_a_run_resumed_within_a_second_keeps_its_file(tmp_path):
    for step in (1, 2, 3):
        board = Board(tmp_path, purge_step=step)
        board.add(step, {"loss": 1.0})
        board.close()
    assert [e.step for e in events(tmp_path) if e.HasField("summary")] == [1, 2, 3]
