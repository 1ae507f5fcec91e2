"""The documentation's `zootomy train` lines run, cut down to one step of the least work."""

import shlex
from dataclasses import replace

import pytest
from pages import ROOT, fences
from zootomy.cli import main
from zootomy.learners import run as runs

# The page with command lines that need what its Python registers has a test of its own.
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "extending.md"]
PAGES += [ROOT / "README.md"]
# What these lines name is the reader's own, or an engine in an environment of its own.
# The example of PPO, whose reward model is trained first, has a test of its own.
FOREIGN = (
    "examples/ppo.yaml",
    "mine.yaml",
    "my_blocks.py",
    "vllm",
    "sglang",
    "--help",
    "resume",
    "my-model",
    "data/",
    "--distributed",
)


def lines(command: str) -> list[str]:
    """Command lines that begin with a command, those continued on a further line as one."""
    found = set()
    for page in PAGES:
        for language in ("console", "bash", "text"):
            for _, text in fences(page, language):
                joined = text.replace("\\\n", " ")
                found |= {x for x in joined.splitlines() if x.startswith(f"zootomy {command} ")}
    return sorted(line for line in found if not any(word in line for word in FOREIGN))


def cut_down(config, folder):
    """The same settings where they matter to the line, on the least work."""
    return replace(
        config,
        steps=1,
        folder=str(folder),
        warmup=replace(config.warmup, steps=1, batch=2),
        task=replace(config.task, train_size=8, eval_size=4),
        evaluation=replace(config.evaluation, size=4),
        batch=replace(config.batch, full=2, mini=None, group_size=2),
        model=replace(config.model, preset="tiny"),
        optimizer=replace(config.optimizer, warmup_steps=0),
        critic_optimizer=replace(config.critic_optimizer, warmup_steps=0),
        checkpoint=replace(config.checkpoint, every=0),
        telemetry=replace(config.telemetry, profile_from=min(config.telemetry.profile_from, 1)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", lines("train"))
def test_a_training_line(line, tmp_path, monkeypatch, capsys):
    train = runs.train

    def least(chosen, run, **rest):
        if chosen.group_filter is not None:
            # A fresh model gives no group a signal.
            chosen = chosen.override({"group_filter.when_short": "train"})
        return train(chosen, cut_down(run, tmp_path), **rest)

    monkeypatch.setattr(runs, "train", least)
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "model").is_dir() or (tmp_path / "merged").is_dir()


def test_there_are_lines():
    assert len(lines("train")) >= 8
