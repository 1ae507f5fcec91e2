"""The example of a user's block: its numbers by hand, and the command lines in its docstring."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from zootomy import ZootomyError, algorithm, get
from zootomy.cli import main
from zootomy.registry import load_plugin, registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_block.py"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example as a loaded plug-in, from a copy: a file is loaded once a process."""
    saved = registry.snapshot()
    file = tmp_path_factory.mktemp("custom_block") / EXAMPLE.name
    shutil.copyfile(EXAMPLE, file)
    module = sys.modules[load_plugin(file)]
    yield module
    registry.restore(saved)


def test_bare(example):
    # Good: −0.5 · 2 = −1 and not −2; bad: −1 · −1 = 1; past the end 0 and not −0.5 · 2.
    np.testing.assert_array_equal(example.by_hand(), [[-1, -1, 0], [1, 1, 1]])


def test_ratio_and_mask(example):
    loss = get("policy_loss", "weighted_reinforce")
    log_ratio = np.log(np.array([[2.0, 0.5, 1.0]]))
    logp, mask = np.full((1, 3), -1.0), np.array([[1, 1, 0]])
    found = loss(log_ratio, np.array([[3.0, -4.0, np.nan]]), logp, logp, mask)
    # −0.1 · 2 · 3 = −0.6 and −1 · 0.5 · −4 = 2.
    np.testing.assert_allclose(found.loss, [[-0.6, 2.0, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(found.stats["good_share"], [[1, 0, 0]])


def test_in_an_algorithm(example):
    mine = example.in_an_algorithm()
    assert mine.override({"policy_loss": "ppo_clip"}) == algorithm("dr_grpo")
    assert "policy_loss: ppo_clip → weighted_reinforce" in algorithm("dr_grpo").diff(mine)
    with pytest.raises(ZootomyError, match="positive"):
        mine.override({"policy_loss.positiv": 0.2})


def test_assembled(example):
    # Advantages ±0.5, a token weighs 1/4: −0.5 · 0.5 / 4 and 0.5 / 4; the other prompt is silent.
    gradient = example.assembled(example.in_an_algorithm())
    np.testing.assert_allclose(gradient.ravel(), [-0.0625, 0.125, 0, 0])


def test_trains(example):
    rewards = example.trained(example.in_an_algorithm(), steps=2)
    assert len(rewards) == 2
    assert all(0 < reward < 1 for reward in rewards)


def test_its_command_lines_are_true(example, tmp_path, capsys):
    text = example.__doc__.replace("\\\n", " ").replace(
        "examples/custom_block.py", example.__file__
    )
    show, train = (shlex.split(line) for line in re.findall(r"^ +zootomy (.*)$", text, re.M))
    assert main(show) == 0
    assert "arXiv:2506.01347" in capsys.readouterr().out
    # What `train` is told is what a config file of the same words holds.
    given = dict(zip(train[1::2], train[2::2], strict=True))
    assert list(given) == ["--plugin", "--algorithm", "--policy_loss", "--policy_loss.positive"]
    config = {
        "algorithm": {
            "base": given["--algorithm"],
            "policy_loss": given["--policy_loss"],
            "policy_loss.positive": float(given["--policy_loss.positive"]),
        }
    }
    (tmp_path / "same.yaml").write_text(yaml.safe_dump(config))
    assert main(["diff", "--plugin", example.__file__, "dr_grpo", str(tmp_path / "same.yaml")]) == 0
    assert "ppo_clip → weighted_reinforce" in capsys.readouterr().out
