"""What a run does otherwise in several processes: one writes, all watch and agree."""

from __future__ import annotations

import json
from dataclasses import replace

from rich.console import Console

from ..clusters import DistributedConfig, Watch
from ..models import check_agree, is_first, several
from ..tasks import Task
from .algorithm import Algorithm
from .run_config import RunConfig
from .settings import to_plain
from .stopping import RunStopped
from .telemetry import TelemetryConfig


def watch_processes(config: DistributedConfig) -> Watch:
    """Within its `with` block, a process that dies or fails ends the others."""
    host, _, _ = config.coordinator.rpartition(":")
    return Watch(config.heartbeat_timeout, host=host, leaves=(RunStopped,))


def check_same_run(algorithm: Algorithm, config: RunConfig, task: Task) -> None:
    """Refuse a run whose processes are not at the same work.

    Raises:
        ZootomyError: in every process.
    """
    if not several():
        return
    settings = {"algorithm": algorithm.to_dict(), **to_plain(config)}
    del settings["distributed"]
    check_agree("settings", json.dumps(settings, sort_keys=True, default=str))
    prompts = [example.prompt for part in (task.train, task.eval) for example in part]
    check_agree("prompts", json.dumps([prompts, len(task.demonstrations or ())], default=str))


def screen_of(console: Console | None) -> Console | None:
    """Where this process shows progress: the first where it is told to, the others nowhere."""
    return console if is_first() else Console(quiet=True, force_terminal=False)


def telemetry_of(config: TelemetryConfig) -> TelemetryConfig:
    """What this process tells of itself: only the first writes files."""
    return config if is_first() else replace(config, trace=False, profile_from=0, profile_to=0)
