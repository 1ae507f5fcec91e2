"""The example of PPO with a critic and a reward model, cut down to the least work."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from zootomy.learners.run import train
from zootomy.learners.run_config import read_yaml
from zootomy.models import RewardModel, load_scalar_model
from zootomy.tasks import make_task

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    name = "example_reward_model"
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "reward_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def test_pairs(example):
    task = make_task(read_yaml(EXAMPLES / "ppo.yaml")[1].task)
    pairs = example.make_pairs(task, 40, seed=1)
    stops = 0
    for pair in pairs:
        numbers = [int(n) for n in pair.prompt.rstrip("=").split("+")]
        chosen, rejected = pair.chosen.split(","), pair.rejected.split(",")
        assert chosen == [str(sum(numbers[:n])) for n in range(2, 5)]
        assert rejected != chosen
        stops += rejected == chosen[: len(rejected)]
    assert 10 < stops < 30
    tokens, last = example.encode(task, pairs)
    assert tokens.shape == (80, example.WIDTH)
    stop = task.tokenizer.stop_ids[0]
    for row, end in zip(tokens, last, strict=True):
        assert row[end] == stop
        assert not row[end + 1 :].any()
    read = task.tokenizer.decode(tokens[40][: last[40]].tolist())
    assert read == pairs[0].prompt + pairs[0].rejected


@pytest.mark.slow
def test_reward_model_and_run(example, tmp_path, capsys):
    folder = str(tmp_path / "reward-model")
    example.main(["--folder", folder, "--steps", "60", "--batch", "16", "--preset", "tiny"])
    assert "further pairs are ordered rightly" in capsys.readouterr().out
    assert isinstance(load_scalar_model(folder), RewardModel)
    algorithm, run = read_yaml(EXAMPLES / "ppo.yaml")
    least = replace(
        run,
        steps=2,
        critic_warmup=1,
        folder=str(tmp_path / "run"),
        model=replace(run.model, preset="tiny"),
        reward_models={"judge": replace(run.reward_models["judge"], path=folder)},
        critic=replace(run.critic, path=folder),
        warmup=replace(run.warmup, steps=2, batch=4),
        batch=replace(run.batch, full=4, group_size=2),
        evaluation=replace(run.evaluation, every=0, size=4),
        optimizer=replace(run.optimizer, warmup_steps=0),
        checkpoint=replace(run.checkpoint, every=0),
    )
    train(algorithm, least, console=Console(quiet=True))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = [entry for entry in map(json.loads, lines) if entry["step"] > 0]
    # The critic learns alone first, then both; the model counts beside the function.
    assert "policy_loss" not in first
    assert "value_loss" in first
    assert "policy_loss" in second
    for name in ("reward/answer/mean", "reward/judge/mean", "reward/judge/raw_mean"):
        assert name in second
