"""Rows, ratios and tables."""

import pytest
import report
from children import Contestant
from rows import LEFT_OUT, Row, Target, cells, from_plain, rate, to_plain

RATE = Row(
    "generation",
    512,
    "tokens/s",
    True,
    {
        "zootomy": {"value": 3000.0, "all": [3000.0]},
        "tunix": {"value": 1500.0, "all": [1500.0]},
        "transformers": {"value": 1000.0, "all": [1000.0]},
        "vllm": {"failed": "no environment"},
    },
    bound=6000.0,
    targets=(Target(2.5, ("tunix", "vllm")), Target(0.5)),
    notes=("a note",),
)
TIME = Row(
    "training step",
    512,
    "s",
    False,
    {"zootomy": {"value": 0.5, "all": [0.5]}, "tunix": {"value": 1.25, "all": [1.25]}},
    bound=0.4,
    targets=(Target(2.0, ("tunix",)),),
)


def test_ratios_are_above_one_where_we_are_better():
    assert RATE.ratio() == pytest.approx(3000 / 1500)
    assert RATE.ratio(("transformers",)) == pytest.approx(3.0)
    assert TIME.ratio() == pytest.approx(1.25 / 0.5)


def test_the_share_of_the_bound():
    assert RATE.share() == pytest.approx(3000 / 6000)
    assert TIME.share() == pytest.approx(0.4 / 0.5)


def test_targets():
    assert [RATE.reached(target) for target in RATE.targets] == [False, True]
    assert TIME.reached(TIME.targets[0]) is True
    assert RATE.reached(Target(1.0, ("vllm",))) is None


def test_the_table():
    text = report.table([RATE, TIME])
    assert (
        "| generation | 512 | 3,000 tokens/s | 1,500 tokens/s | transformers 1,000 tokens/s | "
        "failed | 2.00× | ≥ 2.5× the best (2.00) ✗; ≥ 50% of the bound (50%) ✓ | 50% |" in text
    )
    assert (
        "| training step | 512 | 0.50 s | 1.25 s |  |  | 2.50× | ≥ 2× Tunix (2.50) ✓ | 80% |"
        in text
    )


def test_the_short_table_names_the_best_of_the_others():
    text = report.short_table([RATE, TIME])
    assert "| generation | 512 | 3,000 tokens/s | 1,500 tokens/s (Tunix) | 2.00× |" in text


def test_the_short_table_names_nobody_twice():
    """Torch's users share a column of the long table, where a value bears its owner's name."""
    row = Row("step", 512, "s", False, {"zootomy": {"value": 2.0}, "trl": {"value": 1.0}})
    assert "| step | 512 | 2.00 s | 1.00 s (TRL) | 0.50× |" in report.short_table([row])
    assert "| step | 512 | 2.00 s |  | TRL 1.00 s |  | 0.50× |" in report.table([row])


def test_how_often_was_measured_is_said():
    often = Row("pass", 32_768, "s", False, {"zootomy": {"value": 2.0, "all": [2.0] * 4}})
    twice = Row("step", 512, "s", False, {"zootomy": {"value": 2.0, "all": [2.0] * 2}})
    once = "what takes a new process (first steps, memory) was measured once."
    assert report.extent([often, twice, TIME]) == (f"Medians of 2 to 4 rounds; {once}")
    assert report.extent([twice]) == f"Medians of 2 rounds; {once}"


def test_failures_are_told():
    assert report.failures([RATE]) == ["vllm, generation (V 512): no environment"]
    left = Row("x", 512, "s", False, {"vllm": {"failed": LEFT_OUT}})
    assert report.failures([left]) == []


def test_rows_go_to_json_and_back(tmp_path):
    assert from_plain(to_plain([RATE, TIME])) == [RATE, TIME]
    report.write(tmp_path, "train-512", [RATE, TIME])
    assert report.read(tmp_path, "train-512") == [RATE, TIME]
    assert report.read(tmp_path, "logps-512") is None


def test_cells_are_medians():
    some = Contestant("tunix", None, {})
    some.answers += [{"seconds": s, "tokens": 12} for s in (3.0, 1.0, 2.0)]
    none = Contestant("vllm", None, {}, failed="broken")
    assert cells([some, none], rate) == {
        "tunix": {"value": 6.0, "all": [4.0, 12.0, 6.0]},
        "vllm": {"failed": "broken"},
    }
