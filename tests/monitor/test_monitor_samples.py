"""Sample completions."""

import json
import math

import pytest
from zootomy.monitor import MonitorError, Sample, SampleLog, choose
from zootomy.monitor.samples import MARKDOWN_FILE, SAMPLES_FILE


def test_the_choice_repeats_and_varies():
    assert choose(100, 3, step=5) == choose(100, 3, step=5)
    assert len({tuple(choose(100, 3, step=s)) for s in range(20)}) == 20
    assert choose(100, 3, step=5) != choose(100, 3, step=5, seed=1)
    assert choose(2, 5, step=0) == [0, 1]
    assert choose(0, 5, step=0) == []
    with pytest.raises(MonitorError, match="must be 0 or more"):
        choose(-1, 2, step=0)


def test_file_page_and_resume(tmp_path):
    log = SampleLog(tmp_path)
    log.write(1, [Sample("7+5=", "12", 1.0, "12"), Sample("a ``` b", "x", None)])
    log.write(2, [Sample("1+1=", "3", 0.0, "2")], kind="eval")
    log.write(3, [Sample("gone", "gone", 0.0)])
    log.close()
    log = SampleLog(tmp_path, resume_step=2)
    log.close()
    records = [json.loads(line) for line in (tmp_path / SAMPLES_FILE).read_text().splitlines()]
    assert [(r["step"], r["kind"], r["reward"]) for r in records] == [
        (1, "train", 1.0),
        (1, "train", None),
        (2, "eval", 0.0),
    ]
    page = (tmp_path / MARKDOWN_FILE).read_text()
    assert page.count("## Step") == 2
    assert "## Step 2 (eval)" in page
    assert "Reward 1, right answer `12`" in page
    assert "Reward invalid" in page
    # The fence is longer than the prompt's own.
    assert "````text\na ``` b\n````" in page
    assert "gone" not in page


def test_an_invalid_reward_is_none_not_nan(tmp_path):
    with pytest.raises(MonitorError, match="finite or None, got nan"):
        SampleLog(tmp_path).write(1, [Sample("p", "c", math.nan)])
