"""Joining the processes of a run, by `jax.distributed`."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import jax

from ..registry import ZootomyError

DETECT = "auto"
# JAX ends a process that has lost the others without a word on what happened; it is to come second.
_LATER = 10
_POLL = 0.2


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """The processes of a run; each is started with the same settings but `process`.

    Attributes:
        coordinator: `HOST:PORT` of process 0, at which the others find it; `auto` asks SLURM, Open
            MPI, Kubernetes or the TPU's metadata for all of this; empty: one process.
        processes: how many there are; None with `auto`.
        process: the number of this one, from 0; None with `auto`.
        start_timeout: seconds that a process waits for the others at the start.
        heartbeat_timeout: seconds of silence after which a process counts as dead, and ends the
            others.

    Raises:
        ZootomyError: for numbers that do not go together.
    """

    coordinator: str = ""
    processes: int | None = None
    process: int | None = None
    start_timeout: int = 300
    heartbeat_timeout: int = 45

    def __post_init__(self) -> None:
        numbers = {"processes": self.processes, "process": self.process}
        given = [name for name, value in numbers.items() if value is not None]
        if self.coordinator in ("", DETECT) and given:
            why = "without distributed.coordinator" if not self.coordinator else "beside 'auto'"
            raise ZootomyError(
                f"distributed.{given[0]} has no effect {why}; give distributed.coordinator as "
                "HOST:PORT of process 0."
            )
        for name in ("start_timeout", "heartbeat_timeout"):
            if vars(self)[name] < 1:
                raise ZootomyError(f"distributed.{name} must be 1 or more, got {vars(self)[name]}.")
        if self.coordinator in ("", DETECT):
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise ZootomyError(
                f"distributed.coordinator is HOST:PORT of process 0, or 'auto'; got "
                f"{self.coordinator!r}."
            )
        if self.processes is None or self.process is None:
            raise ZootomyError(
                "distributed.coordinator needs distributed.processes, how many there are, and "
                "distributed.process, the number of this one; or 'auto' as coordinator."
            )
        if not 0 <= self.process < self.processes:
            raise ZootomyError(
                f"distributed.process counts from 0 to {self.processes - 1}, since there are "
                f"{self.processes} processes; got {self.process}."
            )

    @property
    def several(self) -> bool:
        """Whether there is anything to join."""
        return bool(self.coordinator)


def join_processes(config: DistributedConfig) -> None:
    """Make this process one of several, before JAX has looked for devices.

    Nothing happens for one process, or in processes that have joined already.

    Raises:
        ZootomyError: if it is too late, or the others do not come.
    """
    if not config.several or jax.distributed.is_initialized():
        return
    _check_early()
    detect = config.coordinator == DETECT
    if not detect and config.process != 0:
        _wait_for_first(config)
    try:
        jax.distributed.initialize(
            coordinator_address=None if detect else config.coordinator,
            num_processes=config.processes,
            process_id=config.process,
            cluster_detection_method=None if detect else "deactivate",
            initialization_timeout=config.start_timeout,
            heartbeat_timeout_seconds=config.heartbeat_timeout + _LATER,
        )
    except (RuntimeError, ValueError) as error:
        if detect:
            raise ZootomyError(
                f"distributed.coordinator 'auto' finds no cluster here ({_first_line(error)}). "
                "Give distributed.coordinator, processes and process."
            ) from error
        raise ZootomyError(
            f"Process {config.process} of {config.processes} could not join the others at "
            f"{config.coordinator} ({_first_line(error)}). Are all started, and can they reach "
            "process 0 there?"
        ) from error


def _check_early() -> None:
    """Refuse to join where JAX has looked for devices, before anyone is waited for."""
    try:
        # Without a coordinator it goes no further than to say so.
        jax.distributed.initialize(cluster_detection_method="deactivate")
    except RuntimeError as error:
        raise ZootomyError(
            "The processes cannot be joined any more: JAX has devices already. Call "
            "join_processes before anything else of JAX."
        ) from error
    except ValueError:
        pass


def _wait_for_first(config: DistributedConfig) -> None:
    """Wait until process 0 listens: where it never does, JAX would abort with a stack of C++."""
    host, _, port = config.coordinator.rpartition(":")
    deadline = time.monotonic() + config.start_timeout
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_POLL * 10):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ZootomyError(
                    f"Process {config.process} of {config.processes} has waited "
                    f"{config.start_timeout} s for process 0 at {config.coordinator} "
                    f"({error.strerror or error}). Is it started, and can it be reached there?"
                ) from error
            time.sleep(_POLL)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
