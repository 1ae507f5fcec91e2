"""Pictures and tables of runs."""

import math

import numpy as np
import pytest
from zootomy.monitor import MonitorError, RunLog, compare_runs, plot_runs, read_log, summarize
from zootomy.monitor.plots import band, smooth
from zootomy.monitor.report import spread


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two algorithms; three seeds of the first, the last of which is one evaluation short."""
    root = tmp_path_factory.mktemp("runs")

    def run(name, accuracies, rewards):
        with RunLog(root / name, tensorboard=False) as log:
            for step in range(max(len(accuracies), len(rewards))):
                metrics = {"kl": math.nan} if step == 1 else {}
                if step < len(accuracies):
                    metrics["eval/accuracy"] = accuracies[step]
                if step < len(rewards):
                    metrics["reward/mean"] = rewards[step]
                log.write(step, metrics)
        return root / name

    return {
        "grpo": [
            run("grpo-0", [0.2, 0.5, 0.8], [0.1, 0.3, 0.5]),
            run("grpo-1", [0.4, 0.9, 0.6], [0.3, 0.5, 0.7]),
            run("grpo-2", [0.3, 0.7], [0.2]),
        ],
        "rloo": [run("rloo-0", [0.1, 0.95], [0.0, 0.9])],
    }


def test_band_is_mean_and_sample_deviation_over_seeds(runs):
    logs = [read_log(folder) for folder in runs["grpo"]]
    steps, mean, deviation = band(logs, "eval/accuracy")
    assert steps.tolist() == [0, 1, 2]
    # Step 0: (.2+.4+.3)/3 = .3, deviation sqrt((.01+.01+0)/2) = .1; step 2 has two seeds.
    np.testing.assert_allclose(mean, [0.3, 0.7, 0.7])
    np.testing.assert_allclose(deviation, [0.1, 0.2, math.sqrt(0.02)])
    assert band(logs, "kl")[0].size == 0


def test_smoothing_keeps_a_constant_to_its_ends():
    np.testing.assert_allclose(smooth(np.full(7, 3.0), 5), 3.0)
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 6.0]), 3), [1.5, 3.0, 4.5])


def test_pictures(runs, tmp_path):
    for name, given in (
        ("groups", runs),
        ("several", runs["grpo"]),
        ("one", runs["rloo"][0]),
    ):
        path = plot_runs(given, tmp_path / "new" / f"{name}.png", title=name)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_pictures_of_nothing(tmp_path):
    with RunLog(tmp_path / "empty", tensorboard=False) as log:
        log.write(0, {"other": 1.0})
    with pytest.raises(MonitorError, match=r"None of the curves reward/mean, .* is in the runs em"):
        plot_runs(tmp_path / "empty", tmp_path / "x.png")
    with pytest.raises(MonitorError, match="is no run folder"):
        plot_runs(tmp_path / "none", tmp_path / "x.png")
    with pytest.raises(MonitorError, match="There is no run to draw"):
        plot_runs({"grpo": []}, tmp_path / "x.png")


def test_table(runs):
    lines = compare_runs(runs).splitlines()
    assert " ".join(lines[0].split()) == ("run seeds accuracy before final best reward steps time")
    # Best final accuracy first. grpo: finals .8 .6 .7 -> 70 ± 10; bests .8 .9 .7 -> 80 ± 10;
    # rewards: means of the last ten .3 .5 .2 -> .333 ± .153.
    assert lines[2].split()[:6] == ["rloo", "1", "10.0", "95.0", "95.0", "0.450"]
    assert " ".join(lines[3].split()[:-2]) == (
        "grpo 3 30.0 ± 10.0 70.0 ± 10.0 80.0 ± 10.0 0.333 ± 0.153"
    )
    assert lines[3].split()[-2] == "2"
    markdown = compare_runs(runs, markdown=True).splitlines()
    assert markdown[0].startswith("| run ")
    assert markdown[1].startswith("| ---")
    assert all(line.count("|") == 9 for line in markdown)


def test_summaries_of_runs_without_values(runs, tmp_path):
    with RunLog(tmp_path / "plain", tensorboard=False) as log:
        log.write(3, {"kl": 0.1})
    summary = summarize("plain", [tmp_path / "plain"])
    assert (summary.final, summary.reward, summary.steps) == ([], [], 3)
    lines = compare_runs({"plain": [tmp_path / "plain"], **runs}).splitlines()
    assert lines[-1].split() == ["plain", "1", "-", "-", "-", "-", "3", "0:00"]
    assert spread([]) == "-"
    RunLog(tmp_path / "new", tensorboard=False).close()
    with pytest.raises(MonitorError, match="has logged nothing yet"):
        summarize("new", [tmp_path / "new"])
    with pytest.raises(MonitorError, match="'x' has no runs"):
        summarize("x", [])
    with pytest.raises(MonitorError, match="no runs to compare"):
        compare_runs({})
