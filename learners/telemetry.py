"""What a run can tell of itself beyond its metrics: a trace, a profile, the memory of each role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax

from ..clusters import Cluster
from ..monitor import Spans, Trace
from ..registry import ZootomyError

TRACE_FILE = "trace.json"
PROFILE_FOLDER = "profile"
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What a run tells of itself beyond its metrics.

    Attributes:
        trace: write when each part of a step began and ended to `trace.json`, which Perfetto opens.
        memory: log what each role holds on the devices, `memory/<role>` in MiB.
        profile_from: first step that `jax.profiler` records into `profile/`; 0 for none.
        profile_to: last step that it records.

    Raises:
        ZootomyError: if the last step is before the first.
    """

    trace: bool = False
    memory: bool = False
    profile_from: int = 0
    profile_to: int = 0

    def __post_init__(self) -> None:
        if self.profile_from < 0 or self.profile_to < self.profile_from:
            raise ZootomyError(
                "telemetry.profile_from and profile_to are the first and the last step to record, "
                f"counted from 1; got {self.profile_from} and {self.profile_to}."
            )
        if self.profile_to and not self.profile_from:
            raise ZootomyError(
                f"telemetry.profile_to is {self.profile_to}, but profile_from is not set."
            )


class Telemetry:
    """Follows the loop of a run; a context manager.

    Args:
        folder: the run folder.
        config: what to tell.
        resume: go on with the trace that is there.
    """

    def __init__(self, folder: Path, config: TelemetryConfig, *, resume: bool):
        self._config = config
        self._folder = folder
        self._profiling = False
        self.trace = Trace(folder / TRACE_FILE, resume=resume) if config.trace else None
        self.on_span = None if self.trace is None else self.trace.span
        self.spans = Spans(record=self.on_span)
        """For what the loop does beside the learner's steps."""

    def begin(self, step: int) -> None:
        """A step begins; counted from 1."""
        if self._config.profile_from <= step <= self._config.profile_to and not self._profiling:
            jax.profiler.start_trace(self._folder / PROFILE_FOLDER)
            self._profiling = True

    def end(self, step: int, cluster: Cluster) -> dict[str, float]:
        """A step has ended.

        Returns:
            Metrics to log with it: the times of the loop's own spans, and the memory.
        """
        if self._profiling and step >= self._config.profile_to:
            self._stop_profile()
        metrics = self.spans.take()
        if self._config.memory:
            held = {role: size / MIB for role, size in cluster.memory().items()}
            metrics |= {f"memory/{role}": size for role, size in held.items()}
            if self.trace is not None:
                self.trace.counter("memory, MiB", held)
        if self.trace is not None:
            self.trace.flush()
        return metrics

    def close(self) -> None:
        """Write what is left."""
        self._stop_profile()
        if self.trace is not None:
            self.trace.close()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_profile(self) -> None:
        if self._profiling:
            jax.profiler.stop_trace()
            self._profiling = False
