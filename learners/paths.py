"""Where the files and folders are that a run's settings name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .run_config import RunConfig
from .settings import with_settings

# Beside `task.name` and `task.rewards`, which may also name what is no file.
PATHS = (
    "model.path", "reference.path", "critic.path", "reward_model.path",
    "task.eval_file", "task.tokenizer", "rollout.vllm.model", "rollout.vllm.hf_config_path",
    "rollout.sglang_jax.model",
)  # fmt: skip


def with_whole_paths(config: RunConfig) -> RunConfig:
    """The settings with whole paths in place of relative ones, of all that is there.

    So they can be read again from another working directory.
    """
    changes: dict[str, str] = {name: _value(config, name) for name in PATHS}
    for name, model in config.reward_models.items():
        changes[f"reward_models.{name}.path"] = model.path
    if config.task.is_dataset:
        changes["task.name"] = config.task.name
    whole: dict[str, Any] = {name: whole_path(path) for name, path in changes.items()}
    whole["task.rewards"] = tuple(_whole_function(spec) for spec in config.task.rewards)
    whole["folder"] = os.path.abspath(config.folder)
    return with_settings(config, whole)


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = vars(config)[part]
    return config


def whole_path(path: str) -> str:
    """A path from the root on; one at which there is nothing, as it is."""
    return os.path.abspath(path) if path and Path(path).exists() else path


def _whole_function(spec: str) -> str:
    """`path.py:function`, of which the function may be left out."""
    if spec.endswith(".py"):
        return whole_path(spec)
    path, colon, name = spec.rpartition(":")
    return f"{whole_path(path)}:{name}" if colon else spec
