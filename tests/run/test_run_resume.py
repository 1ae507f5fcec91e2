"""A run that is interrupted and resumed ends with the weights of the one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zootomy as z
from rich.console import Console
from safetensors.numpy import load_file
from zootomy.clusters import ClusterConfig, OptimizerConfig
from zootomy.learners import BatchConfig, EvaluationConfig, Learner, WarmupConfig
from zootomy.learners.run import train
from zootomy.learners.run_config import (
    CheckpointConfig,
    ModelSource,
    RewardModelConfig,
    RunConfig,
    read_yaml,
    write_yaml,
)
from zootomy.tasks import TaskConfig

QUIET = Console(quiet=True)


def config(folder: Path, steps: int = 5) -> RunConfig:
    return RunConfig(
        task=TaskConfig(name="arithmetic", options={"terms": 2}, train_size=23, eval_size=6),
        model=ModelSource(preset="tiny"),
        rollout=z.RolloutConfig(max_prompt_tokens=4, max_new_tokens=3),
        batch=BatchConfig(full=4, mini=2, group_size=2, epochs=2),
        # A schedule, and an optimizer with moments: both must go on where they were.
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="linear"),
        critic_optimizer=OptimizerConfig(learning_rate=1e-3),
        cluster=ClusterConfig(micro_rows=4),
        warmup=WarmupConfig(steps=2, batch=4),
        evaluation=EvaluationConfig(every=2, size=6),
        checkpoint=CheckpointConfig(every=2),
        steps=steps,
        folder=str(folder),
    )


# Everything at once: a critic, a reference, a controller that moves, whitening, a correction.
ALGORITHM = z.algorithm(
    "ppo+tis", controller=z.block("adaptive_kl", coef=0.05, target=0.01, horizon=100)
)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model" / "model.safetensors")


def log(folder: Path) -> list[dict]:
    """The metrics without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not k.startswith("time") and k != "tokens_per_second"}
        for line in lines
    ]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(ALGORITHM, config(folder), console=QUIET)
    return folder


@pytest.mark.parametrize("interrupted_at", [3, 4])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(
    uninterrupted, tmp_path, monkeypatch, interrupted_at
):
    step = Learner.step

    def stops(self):
        if self.steps_done == interrupted_at:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Learner, "step", stops)
    with pytest.raises(KeyboardInterrupt):
        train(ALGORITHM, config(tmp_path), console=QUIET)
    monkeypatch.setattr(Learner, "step", step)
    train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)

    want = weights(uninterrupted)
    got = weights(tmp_path)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    # The log reads as if nothing had happened: same batches, same controller, no step twice.
    assert log(tmp_path) == log(uninterrupted)


def test_the_run_folder_holds_the_resolved_config(uninterrupted):
    algorithm, read = read_yaml(uninterrupted / "run.yaml")
    assert algorithm == ALGORITHM.resolve_length(3)
    assert read == config(uninterrupted)
    assert (uninterrupted / "curves.png").stat().st_size > 10_000
    assert (uninterrupted / "samples.md").is_file()
    assert list((uninterrupted / "tensorboard").iterdir())


def test_a_folder_with_a_run_is_not_overwritten(uninterrupted):
    with pytest.raises(z.ZootomyError) as caught:
        train(ALGORITHM, config(uninterrupted), console=QUIET)
    assert str(caught.value) == (
        f"{str(uninterrupted)!r} holds a run already. Pass --resume to go on with it, or choose "
        f"another folder."
    )


def test_resuming_where_nothing_began_is_an_error(tmp_path):
    with pytest.raises(z.ZootomyError, match="There is no run to resume in"):
        train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)


def test_resuming_with_other_settings_is_an_error(uninterrupted):
    other = replace(config(uninterrupted), seed=1)
    with pytest.raises(z.ZootomyError, match=r"\n  seed: 0 → 1\nResume"):
        train(ALGORITHM, other, resume=True, console=QUIET)
    batch = replace(other.batch, group_size=7)
    with pytest.raises(z.ZootomyError) as caught:
        train(ALGORITHM, replace(other, batch=batch), resume=True, console=QUIET)
    assert str(caught.value) == (
        f"The run in {str(uninterrupted)!r} has other settings (its own → given):\n"
        f"  batch.group_size: {config(uninterrupted).batch.group_size} → 7\n  seed: 0 → 1\n"
        f"Resume it as it is, or start a new folder."
    )
    changed = ALGORITHM.override({"policy_loss.clip_high": 0.3})
    with pytest.raises(z.ZootomyError, match=r"policy_loss.clip_high: 0.2 → 0.3"):
        train(changed, config(uninterrupted), resume=True, console=QUIET)


def test_a_checkpoint_of_another_model_is_refused(uninterrupted, tmp_path):
    """As if someone had edited run.yaml: the arrays themselves say that they do not fit."""
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(uninterrupted, folder)
    other = replace(config(folder), model=ModelSource(preset="small"), steps=6)
    write_yaml(folder / "run.yaml", ALGORITHM.resolve_length(3), other)
    with pytest.raises(z.ZootomyError, match=r"checkpoint of step 5"):
        train(ALGORITHM, other, resume=True, console=QUIET)


@pytest.mark.slow
def test_kill_minus_nine_and_resume(uninterrupted, tmp_path):
    """The process is killed without warning after its first checkpoint."""
    folder = tmp_path / "killed"
    file = tmp_path / "run.yaml"
    write_yaml(file, ALGORITHM, config(folder, steps=5))
    command = [sys.executable, "-m", "zootomy.cli", "train", "--config", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    end = time.monotonic() + 300
    while not (folder / "checkpoints" / "2").is_dir():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < end, "no checkpoint after five minutes"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "model").exists()
    subprocess.run([*command, "--resume"], check=True, stdout=subprocess.DEVNULL)
    for name, array in weights(uninterrupted).items():
        np.testing.assert_array_equal(weights(folder)[name], array, err_msg=name)


def test_a_reward_model_from_a_folder_counts(tmp_path):
    from flax import nnx
    from zootomy.models import RewardModel, make_model, save_model

    backbone = make_model("tiny", vocab_size=17)
    save_model(RewardModel.from_decoder(backbone, rngs=nnx.Rngs(0)), tmp_path / "reward")
    with_model = replace(
        config(tmp_path / "run", steps=1),
        reward_model=RewardModelConfig(path=str(tmp_path / "reward"), weight=0.5),
        warmup=WarmupConfig(steps=0),
    )
    train(z.algorithm("rloo"), with_model, console=QUIET)
    (line,) = [entry for entry in log(tmp_path / "run") if entry["step"] == 1]
    # A fresh head scores everything 0, which shows that it was asked.
    assert line["reward/reward_model/mean"] == 0.0


def test_what_cannot_be_trained_is_refused_before_the_warm_up(tmp_path, monkeypatch):
    def too_late(*_, **__):
        raise AssertionError("the warm-up ran")

    monkeypatch.setattr("zootomy.learners.run.warm_up", too_late)
    greedy = replace(config(tmp_path), rollout=replace(config(tmp_path).rollout, temperature=0.0))
    with pytest.raises(z.ZootomyError, match=r"rollout.temperature is 0"):
        train(z.algorithm("rloo"), greedy, console=QUIET)
    short = replace(config(tmp_path).rollout, max_prompt_tokens=3)
    with pytest.raises(z.ZootomyError, match=r"^held-out prompt 0 has 4 tokens; max_prompt_toke"):
        train(z.algorithm("rloo"), replace(config(tmp_path), rollout=short), console=QUIET)
    with pytest.raises(z.ZootomyError, match=r"clip_high"):
        train(
            z.algorithm("rloo", **{"policy_loss.clip_high": -0.3}), config(tmp_path), console=QUIET
        )
