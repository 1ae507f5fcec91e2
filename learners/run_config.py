"""Everything a run is told, as one tree of frozen dataclasses, and that tree as YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..clusters import REWARD_MODEL, ClusterConfig, DistributedConfig, OptimizerConfig
from ..models import LoraConfig
from ..registry import ZootomyError, slots
from ..rollout import RolloutConfig
from ..tasks import TaskConfig
from .algorithm import Algorithm
from .batch import BatchConfig
from .evaluation import EvaluationConfig
from .pipeline import check_staleness
from .role_config import (
    CriticConfig,
    ModelSource,
    ReferenceConfig,
    RewardModelConfig,
    check_name,
)
from .settings import from_plain, to_plain
from .telemetry import TelemetryConfig
from .warmup import WarmupConfig
from .zoo import algorithm as named_algorithm


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a run writes what it needs to go on.

    Attributes:
        every: steps between checkpoints; 0 writes one at the end only.
        keep: how many of the newest stay; None keeps all.
        keep_best: how many of the best stay beside them; a checkpoint has a score if its step
            was evaluated.
        best_metric: the metric that is the score; higher is better.
        asynchronous: write while the run goes on.

    Raises:
        ZootomyError: for a negative number.
    """

    every: int = 50
    keep: int | None = 2
    keep_best: int = 1
    best_metric: str = "eval/accuracy"
    asynchronous: bool = True

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ZootomyError(f"checkpoint.every must be 0 or more, got {self.every}.")
        if self.keep_best < 0:
            raise ZootomyError(f"checkpoint.keep_best must be 0 or more, got {self.keep_best}.")
        if self.keep is not None and self.keep < 1:
            raise ZootomyError(
                f"checkpoint.keep must be 1 or more (or null for all), got {self.keep}."
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A training run, all but its algorithm.

    Attributes:
        task: what to learn.
        model: where the policy comes from.
        lora: adapters on it; with a rank of 1 or more nothing else of it is trained.
        rollout: how completions are sampled.
        batch: how many of them.
        optimizer: of the policy.
        critic_optimizer: of the critic; where there is none it has no effect, since a file may
            serve several algorithms, and is refused on the command line.
        critic_warmup: steps in which only the critic learns.
        reward_model: a model that scores completions.
        reward_models: several of them by name, with the same settings each.
        reference: what the policy is compared with.
        critic: where the critic comes from.
        max_staleness: 1 samples each batch while the step before it learns, 0 after it.
        cluster: meshes of the roles and row shapes of the passes.
        distributed: the processes that share these meshes; it is no part of a run's `run.yaml`.
        warmup: supervised steps before the first step.
        evaluation: how the policy is examined.
        checkpoint: when the run is saved.
        telemetry: what the run tells of itself beyond its metrics.
        steps: learner steps.
        seed: everything random follows from it.
        samples: completions shown and kept a step.
        folder: where the run writes.

    Raises:
        ZootomyError: for a number out of range.
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelSource = field(default_factory=ModelSource)
    lora: LoraConfig = field(default_factory=LoraConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic_optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-5)
    )
    critic_warmup: int = 0
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    reward_models: Mapping[str, RewardModelConfig] = field(default_factory=dict)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    max_staleness: int = 0
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    steps: int = 100
    seed: int = 0
    samples: int = 3
    folder: str = "runs/run"

    def __post_init__(self) -> None:
        for name in ("critic_warmup", "seed", "samples"):
            if self.__dict__[name] < 0:
                raise ZootomyError(f"{name} must be 0 or more, got {self.__dict__[name]}.")
        check_staleness(self.max_staleness)
        self.reward_model.check("reward_model", optional=True)
        for name, model in self.reward_models.items():
            check_name(name)
            model.check(f"reward_models.{name}")
        if self.steps < 1:
            raise ZootomyError(f"steps must be 1 or more, got {self.steps}.")
        if self.telemetry.profile_from > self.steps:
            raise ZootomyError(
                f"telemetry.profile_from is {self.telemetry.profile_from}, but the run has "
                f"{self.steps} steps; nothing would be recorded."
            )

    @property
    def scorers(self) -> dict[str, RewardModelConfig]:
        """Every reward model by its name; `reward_model` is that of the one without."""
        alone = {REWARD_MODEL: self.reward_model} if self.reward_model.path else {}
        return {**alone, **self.reward_models}


def without_engine(config: RunConfig) -> RunConfig:
    """The same settings with the engine that needs no start, for when nothing is sampled."""
    rollout = dataclasses.replace(config.rollout, engine="vanilla")
    return dataclasses.replace(config, rollout=rollout)


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses a name that a mapping has twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name!r} stands twice in one mapping")
        return super().construct_mapping(node, deep)


def write_yaml(path: str | Path, algorithm: Algorithm, config: RunConfig) -> None:
    """Write a run's algorithm and config, every value of them, as YAML.

    Its processes are left out: it can go on, or be repeated, in others.
    """
    data = {"algorithm": algorithm.to_dict(), **to_plain(config)}
    del data["distributed"]
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    Path(path).write_text(text, encoding="utf-8")


def read_yaml(path: str | Path) -> tuple[Algorithm, RunConfig]:
    """The algorithm and config that a YAML file describes; nothing in it is executed.

    Args:
        path: a file whose `algorithm` is a name of the zoo or a mapping of slots (with a `base`,
            slots are changes to that named algorithm); everything else is a `RunConfig`.

    Raises:
        ZootomyError: if the file cannot be read or does not fit.
    """
    file = Path(path)
    if file.is_dir():
        raise ZootomyError(
            f"{str(path)!r} is a folder and no config file; name the .yaml file in it, as in "
            f"{str(file / 'run.yaml')!r}."
        )
    if not file.is_file():
        raise ZootomyError(f"There is no config file {str(path)!r}.")
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), _Loader) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ZootomyError(f"{str(path)!r} is not YAML: {error}") from error
    if not isinstance(data, Mapping):
        raise ZootomyError(f"{str(path)!r} must hold a mapping, got {type(data).__name__}.")
    rest = {key: value for key, value in data.items() if key != "algorithm"}
    for place in slots():
        if place.name in rest:
            raise ZootomyError(
                f"{place.name} is a slot of the algorithm and stands under it in a file, as in "
                f"algorithm: {{base: grpo, {place.name}: ...}}."
            )
    return _algorithm(data.get("algorithm", "grpo")), from_plain(RunConfig, rest)


def _algorithm(data: Any) -> Algorithm:
    if isinstance(data, str):
        return named_algorithm(data)
    if not isinstance(data, Mapping):
        raise ZootomyError(f"algorithm must be a name or a mapping of slots, got {data!r}.")
    if "base" in data:
        changes = {key: value for key, value in data.items() if key != "base"}
        if not isinstance(data["base"], str):
            raise ZootomyError(f"algorithm.base must be a name, got {data['base']!r}.")
        return named_algorithm(data["base"]).override(changes)
    return Algorithm.from_dict(data)
