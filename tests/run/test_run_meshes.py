"""Runs on meshes: sampling beside learning, resumed bit for bit, and the same on one device."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zootomy as z
from run_kit import EVEN, QUIET, assert_same_weights, log, train_interrupted, weights
from zootomy.clusters import ClusterConfig, OptimizerConfig
from zootomy.learners import BatchConfig, DoubtfulChoiceWarning, EvaluationConfig
from zootomy.learners.checks import check_options
from zootomy.learners.run import build_model, train
from zootomy.learners.run_config import (
    CheckpointConfig,
    CriticConfig,
    ModelSource,
    ReferenceConfig,
    RunConfig,
    read_yaml,
)
from zootomy.models import make_model, named_arrays, save_model
from zootomy.tasks import TaskConfig, make_task

APART = ClusterConfig(
    mesh="fsdp=2", role_to_mesh={"rollout": "data=1@2", "reference": "tensor=2@4"},
    axis_rules={"vocab": "none"}, micro_rows=4,
)  # fmt: skip
ALGORITHM = z.algorithm("grpo+tis", kl_placement="loss")


def config(folder: Path, **changes) -> RunConfig:
    given = RunConfig(
        task=TaskConfig(
            name="arithmetic", options={"terms": 2}, train_size=23, eval_size=6, rewards=(EVEN,)
        ),
        model=ModelSource(preset="tiny"),
        rollout=z.RolloutConfig(max_prompt_tokens=4, max_new_tokens=3),
        batch=BatchConfig(full=4, mini=2, group_size=2),
        optimizer=OptimizerConfig(learning_rate=1e-2, schedule="linear"),
        cluster=APART,
        evaluation=EvaluationConfig(every=2, size=6),
        checkpoint=CheckpointConfig(every=2),
        max_staleness=1,
        reference=ReferenceConfig(refresh_steps=2),
        steps=4,
        folder=str(folder),
    )
    return replace(given, **changes)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    train(ALGORITHM, config(folder), console=QUIET)
    return folder


def test_one_step_off_is_resumed_bit_for_bit(uninterrupted, tmp_path):
    train_interrupted(ALGORITHM, config(tmp_path), after=3)
    train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)
    assert_same_weights(tmp_path, uninterrupted)
    assert log(tmp_path) == log(uninterrupted)


def test_every_batch_but_the_first_is_one_update_old(uninterrupted):
    steps = [line for line in log(uninterrupted) if line["step"] > 0]
    assert [line["staleness"] for line in steps] == [0.0, 1.0, 1.0, 1.0]


def test_the_meshes_are_written_with_the_run(uninterrupted):
    read = read_yaml(uninterrupted / "run.yaml")[1]
    assert read == config(uninterrupted)
    assert read.cluster.role_to_mesh == {"rollout": "data=1@2", "reference": "tensor=2@4"}


@pytest.mark.slow
def test_on_one_device_without_overlap_it_is_the_same_run(tmp_path):
    """Of plain gradients: Adam would make steps of a full learning rate out of rounding errors."""
    sgd = OptimizerConfig(name="sgd", learning_rate=0.1)
    apart, alone = tmp_path / "apart", tmp_path / "alone"
    train(ALGORITHM, config(apart, optimizer=sgd), console=QUIET)
    one = ClusterConfig(micro_rows=4)
    train(ALGORITHM, config(alone, optimizer=sgd, cluster=one), console=QUIET)
    start = dict(named_arrays(build_model(config(alone), make_task(config(alone).task))))
    moved = [np.abs(weights(apart)[name] - np.asarray(start[name])).max() for name in start]
    assert max(moved) > 1e-3
    for name, array in weights(apart).items():
        np.testing.assert_allclose(weights(alone)[name], array, atol=1e-5, err_msg=name)
    for ours, theirs in zip(log(alone), log(apart), strict=True):
        for key in ("reward/mean", "staleness", "completions/mean_length"):
            assert ours.get(key) == theirs.get(key)


@pytest.mark.slow
def test_a_reference_of_its_own_from_a_folder(tmp_path):
    save_model(make_model("tiny", seed=5, vocab_size=17), tmp_path / "reference")
    own = config(
        tmp_path / "run",
        steps=1,
        reference=ReferenceConfig(path=str(tmp_path / "reference")),
    )
    train(ALGORITHM, own, console=QUIET)
    (line,) = [entry for entry in log(tmp_path / "run") if entry["step"] == 1]
    # Against a snapshot of itself the first step's KL is 0.
    assert line["kl"] > 1e-3


@pytest.mark.parametrize(
    "name, changes, message",
    [
        (
            "dr_grpo",
            {"reference": ReferenceConfig(path="x")},
            "reference.path is 'x', but algorithm 'dr_grpo' compares with no reference, so it has "
            "no effect. Add a term that does (a kl_placement, or the regularizer 'kl' or "
            "'distillation'), or leave reference.path empty.",
        ),
        (
            "dr_grpo",
            {"critic": CriticConfig(path="x")},
            "critic.path is 'x', but algorithm 'dr_grpo' has no critic, so it has no effect. Set "
            "value_loss to 'clipped_mse', or leave critic.path empty.",
        ),
        (
            "dr_grpo",
            {"critic": CriticConfig(shared=True)},
            "critic.shared is true, but algorithm 'dr_grpo' has no critic, so it has no effect. "
            "Set value_loss to 'clipped_mse', or leave critic.shared out.",
        ),
        (
            "dr_grpo",
            {"reference": ReferenceConfig(refresh_steps=2)},
            "reference.refresh_steps is 2, but algorithm 'dr_grpo' has no reference. Set it to 0.",
        ),
    ],
)
def test_settings_without_an_effect_are_refused(tmp_path, name, changes, message):
    given = config(tmp_path, cluster=ClusterConfig(micro_rows=4))
    given = replace(given, **{"max_staleness": 0, "reference": ReferenceConfig(), **changes})
    with pytest.raises(z.ZootomyError) as error:
        train(z.algorithm(name), given, console=QUIET)
    assert str(error.value) == message


def test_stale_batches_without_a_correction_are_doubtful(tmp_path):
    given = config(tmp_path)
    actor = build_model(given, make_task(given.task))
    # Made in its places: no device ever held the whole of it.
    kernel = actor.layers[0].mlp.gate_proj.kernel[...]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(16, 96)}
    cluster = z.Cluster(
        given.cluster, actor=actor, optimizer=given.optimizer, total_steps=1, max_tokens=7
    )
    with pytest.warns(DoubtfulChoiceWarning, match=r"add a correction, as in rloo\+tis"):
        check_options(z.algorithm("rloo"), cluster, 1, 0)
    assert check_options(z.algorithm("rloo+tis"), cluster, 1, 0) == 0
