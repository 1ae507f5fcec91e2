"""The run log: one axis, no NaN in JSON, whole again after a kill and a resume."""

import json
import math

import pytest
from event_files import events
from zootomy.monitor import MonitorError, RunLog, read_log, series
from zootomy.monitor.log import METRICS_FILE, TENSORBOARD_FOLDER


def write(folder, steps, **options):
    with RunLog(folder, tensorboard=False, **options) as log:
        for step in steps:
            log.write(step, {"reward/mean": step / 10})


def steps(folder):
    return [record["step"] for record in read_log(folder)]


def test_lines_are_json_without_nan(tmp_path):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(1, {"kl": math.nan, "grad_norm": math.inf, "reward/mean": 0.5})
        log.write(2, {"kl": 0.1})
    text = (tmp_path / METRICS_FILE).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    first, second = map(json.loads, text.splitlines())
    assert first["kl"] is None
    assert first["grad_norm"] is None
    assert first["nonfinite"] == ["grad_norm", "kl"]
    assert first["reward/mean"] == 0.5
    assert "nonfinite" not in second
    records = read_log(tmp_path)
    assert math.isnan(records[0]["kl"])
    assert series(records, "reward/mean") == ([1], [0.5])


def test_a_step_may_come_in_parts(tmp_path):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(1, {"reward/mean": 0.5})
        log.write(1, {"eval/accuracy": 0.25})
    (record,) = read_log(tmp_path)
    assert record["reward/mean"] == 0.5
    assert record["eval/accuracy"] == 0.25


def test_one_axis_that_only_goes_up(tmp_path):
    # Fault 78: every metric has the learner step as its axis.
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(2, {"a": 1})
        with pytest.raises(MonitorError, match="Step 1 comes after step 2 was logged"):
            log.write(1, {"b": 1})
        with pytest.raises(MonitorError, match="Metric 'a' was logged for step 2 already"):
            log.write(2, {"a": 1})
        with pytest.raises(MonitorError, match="cannot be named 'step'"):
            log.write(3, {"step": 1})


def test_resume_cuts_back_to_the_step(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, [6, 7, 8], resume_step=5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]
    write(tmp_path, [], resume_step=0)
    assert steps(tmp_path) == []


def test_resume_after_a_kill_in_the_middle_of_a_line(tmp_path):
    write(tmp_path, [1, 2, 3])
    path = tmp_path / METRICS_FILE
    path.write_text(path.read_text()[:-20])
    assert steps(tmp_path) == [1, 2]
    write(tmp_path, [3, 4], resume_step=2)
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_what_was_logged_of_the_resumed_step_is_not_logged_twice(tmp_path):
    write(tmp_path, [1, 2])
    with RunLog(tmp_path, resume_step=2, tensorboard=False) as log:
        log.write(2, {"eval/accuracy": 0.5})
        with pytest.raises(MonitorError, match="'reward/mean' was logged for step 2 already"):
            log.write(2, {"reward/mean": 0.5})


def test_a_new_run_does_not_write_into_an_old_one(tmp_path):
    write(tmp_path, [1])
    with pytest.raises(MonitorError, match="exists already; resume its run, or choose another"):
        RunLog(tmp_path)


def test_no_log_and_broken_lines(tmp_path):
    with pytest.raises(MonitorError, match="is no run folder: it holds no metrics"):
        read_log(tmp_path)
    (tmp_path / METRICS_FILE).write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(MonitorError, match=r"metrics\.jsonl:2: not valid JSON"):
        read_log(tmp_path)
    (tmp_path / METRICS_FILE).write_text('{"loss": 1}\n')
    with pytest.raises(MonitorError, match=r"metrics\.jsonl:1: expected an object with a whole"):
        read_log(tmp_path)


def scalars(folder):
    """Every (step, tag, value) of a folder's event files, in the order written."""
    found = []
    for event in events(folder / TENSORBOARD_FOLDER):
        if event.HasField("session_log"):
            found.append((event.step, "purge", event.session_log.status))
        found += [(event.step, v.tag, round(v.simple_value, 4)) for v in event.summary.value]
    return found


def test_tensorboard_has_the_same_names_and_steps(tmp_path):
    with RunLog(tmp_path) as log:
        log.write(1, {"reward/mean": 0.5, "kl": math.nan})
        log.write(2, {"reward/mean": 0.75, "kl": 0.25})
        log.write(3, {"kl": math.nan})
    assert scalars(tmp_path) == [
        (1, "reward/mean", 0.5), (2, "reward/mean", 0.75), (2, "kl", 0.25),
    ]  # fmt: skip


def test_tensorboard_purges_what_a_resume_repeats(tmp_path):
    with RunLog(tmp_path) as log:
        log.write(1, {"a": 1})
        log.write(2, {"a": 2})
    with RunLog(tmp_path, resume_step=1) as log:
        log.write(2, {"a": 3})
    assert (2, "purge", 1) in scalars(tmp_path)
    assert [record["a"] for record in read_log(tmp_path)] == [1, 3]
