"""A run with everything at once, and what two runs are compared by."""

import json
from pathlib import Path

import numpy as np
import pytest
import zootomy as z
from rich.console import Console
from safetensors.numpy import load_file
from zootomy.clusters import ClusterConfig, OptimizerConfig
from zootomy.learners import Algorithm, BatchConfig, EvaluationConfig, Learner, WarmupConfig
from zootomy.learners.run import train
from zootomy.learners.run_config import CheckpointConfig, ModelSource, RunConfig
from zootomy.tasks import TaskConfig

QUIET = Console(quiet=True)
EVEN = f"{Path(__file__).with_name('run_rewards.py')}:even"


def config(folder: Path, steps: int = 5) -> RunConfig:
    return RunConfig(
        # Right sums are out of reach; without another reward no weight would ever change.
        task=TaskConfig(
            name="arithmetic", options={"terms": 2}, train_size=23, eval_size=6, rewards=(EVEN,)
        ),
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


def train_interrupted(algorithm: Algorithm, given: RunConfig, after: int) -> None:
    """A run that Ctrl-C ends between two steps, with nothing saved but what was due."""
    step = Learner.step

    def stops(self, on_batch):
        if self.steps_done == after:
            raise KeyboardInterrupt
        return step(self, on_batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", stops)
        with pytest.raises(KeyboardInterrupt):
            train(algorithm, given, console=QUIET)


def assert_same_weights(folder: Path, other: Path) -> None:
    """Two runs ended with the same weights, bit for bit."""
    ours, theirs = weights(folder), weights(other)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
