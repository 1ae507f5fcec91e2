"""A run that is interrupted and resumed ends with the weights of the one that was not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zootomy as z
from flax import nnx
from run_kit import ALGORITHM, QUIET, assert_same_weights, config, log, train_interrupted, weights
from zootomy.learners import WarmupConfig
from zootomy.learners.role_config import CriticConfig
from zootomy.learners.run import train
from zootomy.learners.run_config import (
    CheckpointConfig,
    ModelSource,
    RewardModelConfig,
    TelemetryConfig,
    read_yaml,
    write_yaml,
)
from zootomy.learners.run_folder import prepare_folder
from zootomy.models import (
    LoraConfig,
    RewardModel,
    add_adapters,
    load_adapters,
    load_model,
    make_model,
    merge_adapters,
    named_arrays,
    read_adapter_config,
    save_model,
)


def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(uninterrupted, tmp_path):
    train_interrupted(ALGORITHM, config(tmp_path), after=4)
    train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)
    assert_same_weights(tmp_path, uninterrupted)
    moved = {line["reward/mean"] for line in log(uninterrupted) if line["step"]}
    assert len(moved) > 1  # of a run that has something to learn
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


def test_what_a_run_names_is_found_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "models" / "judge").mkdir(parents=True)
    (tmp_path / "mine.py").touch()
    # Called as a task and a reward are that are no files.
    (tmp_path / "arithmetic").mkdir()
    (tmp_path / "math_verify").mkdir()
    given = config(Path("runs/one"))
    judge = RewardModelConfig(path="models/judge")
    given = replace(
        given,
        critic=CriticConfig(path="models/judge"),
        reward_models={"judge": judge, "gone": RewardModelConfig(path="models/gone")},
        task=replace(given.task, rewards=("mine.py:even", "math_verify", "mine.py")),
    )
    monkeypatch.chdir(tmp_path)
    prepare_folder(Path("runs/one"), ALGORITHM, given, resume=False)
    monkeypatch.chdir(tmp_path / "models")
    _, read = read_yaml(tmp_path / "runs/one/run.yaml")
    assert read.folder == str(tmp_path / "runs" / "one")
    assert read.critic.path == read.reward_models["judge"].path == str(tmp_path / "models/judge")
    assert (read.reward_models["gone"].path, read.task.name) == ("models/gone", "arithmetic")
    assert read.task.rewards == (f"{tmp_path}/mine.py:even", "math_verify", f"{tmp_path}/mine.py")
    prepare_folder(Path(read.folder), ALGORITHM, read, resume=True)
    # The words that began it go on with it, where they were said.
    monkeypatch.chdir(tmp_path)
    prepare_folder(Path("runs/one"), ALGORITHM, given, resume=True)


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


KILLED = {
    "together": {},
    "adapters, one step ahead": {"max_staleness": 1, "lora": LoraConfig(rank=2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KILLED)
def test_killed_at_random_moments_it_ends_as_the_uninterrupted_one(tmp_path, case):
    """Twenty kills without warning, some of them while a checkpoint is being written."""
    whole, killed, file = tmp_path / "whole", tmp_path / "killed", tmp_path / "run.yaml"

    def long(folder):
        saving = CheckpointConfig(every=1, keep=2)
        return replace(config(folder, steps=60), checkpoint=saving, samples=0, **KILLED[case])

    train(ALGORITHM, long(whole), console=QUIET)
    write_yaml(file, ALGORITHM, long(killed))
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run(
        [sys.executable, str(script), str(file), str(killed), "20", "0"],
        capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    tally = json.loads(done.stdout)
    print(tally)  # noqa: T201
    assert tally["exit"] == 0
    assert tally["kills"] == 20
    assert tally["while_saving"] >= 1
    # Every attempt found at least what the one before it had found.
    assert tally["found"] == sorted(tally["found"])
    for name, array in weights(whole).items():
        np.testing.assert_array_equal(weights(killed)[name], array, err_msg=name)
    assert log(killed) == log(whole)


def test_a_reward_model_from_a_folder_counts(tmp_path):
    backbone = make_model("tiny", vocab_size=17)
    save_model(RewardModel.from_decoder(backbone, rngs=nnx.Rngs(0)), tmp_path / "reward")
    with_model = replace(
        config(tmp_path / "run", steps=1),
        reward_model=RewardModelConfig(
            path=str(tmp_path / "reward"), weight=0.5, normalize=True, clip=5.0
        ),
        warmup=WarmupConfig(steps=0),
    )
    train(z.algorithm("rloo"), with_model, console=QUIET)
    (line,) = [entry for entry in log(tmp_path / "run") if entry["step"] == 1]
    # A fresh head scores everything 0, which shows that it was asked.
    assert line["reward/reward_model/mean"] == 0.0


def test_adapters_leave_a_peft_folder_and_a_merged_one_and_go_on(tmp_path, monkeypatch):
    """After a warm-up the backbone is in no other folder, and checkpoints hold adapters alone."""

    def adapted(folder):
        return replace(
            config(folder),
            steps=2,
            checkpoint=CheckpointConfig(every=1),
            lora=LoraConfig(rank=2),
            telemetry=TelemetryConfig(trace=True, memory=True, profile_from=1, profile_to=1),
        )

    train(z.algorithm("grpo"), adapted(tmp_path / "whole"), console=QUIET)
    train_interrupted(z.algorithm("grpo"), adapted(tmp_path / "cut"), after=1)

    def twice(*_, **__):
        raise AssertionError("the warm-up ran again")

    monkeypatch.setattr("zootomy.learners.run.warm_up", twice)
    train(z.algorithm("grpo"), adapted(tmp_path / "cut"), resume=True, console=QUIET)
    assert_same_weights(tmp_path / "cut", tmp_path / "whole")
    # The backbone with the adapters is what the merged folder holds.
    backbone = load_model(tmp_path / "cut" / "backbone")
    folder = tmp_path / "cut" / "adapter"
    again = add_adapters(backbone, read_adapter_config(folder), rngs=nnx.Rngs(0))
    load_adapters(again, folder)
    for name, array in named_arrays(merge_adapters(again)):
        np.testing.assert_array_equal(weights(tmp_path / "cut")[name], array, err_msg=name)
    # The run has told of itself, the resumed part after the first.
    events = json.loads((tmp_path / "cut" / "trace.json").read_text())
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert {"rollout", "reward", "reference", "train", "sync", "checkpoint"} <= set(names)
    assert names.count("sync") == 2
    assert list((tmp_path / "cut" / "profile").rglob("*.xplane.pb"))
    line = log(tmp_path / "cut")[-1]
    # The reference and the engine hold the actor's backbone; their own is adapters at the most.
    assert 4 * line["memory/rollout"] < line["memory/actor"]
    assert 4 * line["memory/reference"] < line["memory/actor"]


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
