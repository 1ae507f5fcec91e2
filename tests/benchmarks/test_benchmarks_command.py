"""`zootomy bench`."""

from zootomy import cli
from zootomy.commands import benchmarks


def test_an_unknown_section_is_a_sentence(capfd):
    assert cli.main(["bench", "--only", "train,sleep"]) == 2
    assert capfd.readouterr().err == (
        "error: There is no section 'sleep'; choose from step, generation, long_tail, logps, "
        "train, weights, memory, curves.\n"
    )


def test_an_unknown_peer_is_a_sentence(capfd):
    assert cli.main(["bench", "--peers", "trl"]) == 2
    assert capfd.readouterr().err == (
        "error: There is no peer 'trl'; choose from tunix, torch, vllm.\n"
    )


def test_an_installed_package_has_no_benchmarks(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarks, "SCRIPT", tmp_path / "bench.py")
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err == (
        "error: The benchmarks are in the repository and not in an installed package. Clone it, "
        "`pip install --editable .`, and run `zootomy bench` or `make bench` there.\n"
    )
