"""The workers as child processes: one computes, the others are stopped."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parent
SETTLE = 0.2  # seconds between two measurements, so that spinning threads have come to rest
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PEERS = {"tunix": ".venv-bench-tunix", "torch": ".venv-bench-torch", "vllm": ".venv-bench-vllm"}


class PeerError(Exception):
    """A peer that cannot be measured, and why."""


@dataclass(frozen=True)
class Environment:
    """Where a worker runs.

    Attributes:
        name: `zootomy` or a peer.
        python: its interpreter.
        script: the worker.
    """

    name: str
    python: Path
    script: Path


def environment(name: str, python: Path, folder: Path) -> Environment:
    """The environment of a worker.

    Args:
        name: `zootomy` or a peer.
        python: the interpreter of this process, which is the library's own.
        folder: where the peers' virtual environments are.

    Raises:
        PeerError: if the peer's environment is not there.
    """
    script = BENCHMARKS / "peers" / f"{name}_worker.py"
    if name not in PEERS:
        return Environment(name, python, script)
    found = folder / PEERS[name] / "bin" / "python"
    if not (folder / PEERS[name] / ".ready").is_file():
        raise PeerError(f"no environment in {PEERS[name]}; `make bench-peers` makes it")
    return Environment(name, found, script)


@dataclass
class Child:
    """A worker that runs, stopped whenever nothing is asked of it.

    Args:
        environment: what to run.
        cores: threads it may use.
        log: where its standard error goes.
        variables: more environment variables.
    """

    environment: Environment
    cores: int
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._errors = self.log.open("a", encoding="utf-8")
        variables = {
            **os.environ,
            **{name: str(self.cores) for name in THREADS},
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "JAX_PLATFORMS": "cpu",
            **self.variables,
        }
        variables.pop("PYTHONPATH", None)
        if self.environment.name == "zootomy" and "PYTHONPATH" in os.environ:
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self._process = subprocess.Popen(
            [str(self.environment.python), str(self.environment.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=variables,
            start_new_session=True,
        )

    @property
    def name(self) -> str:
        """Whose worker it is."""
        return self.environment.name

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def ask(self, do: str, *, timeout: float = 300.0, **request: Any) -> dict[str, Any]:
        """Let it do something.

        Args:
            do: the operation.
            timeout: seconds that it may take.
            **request: what the operation is told.

        Returns:
            The answer.

        Raises:
            PeerError: if it fails, ends or takes too long; then it is killed.
        """
        self._signal(signal.SIGCONT)
        try:
            line = self._exchange(json.dumps({"do": do, **request}), timeout)
        finally:
            self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise PeerError(answer["error"])
        return answer

    def _exchange(self, text: str, seconds: float) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerError(f"its process has ended; see {self.log}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.kill()
                raise PeerError(f"took more than {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise PeerError(f"its process ended with code {code}; see {self.log}")
        return line

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class Children:
    """The workers of a run: started when first asked, all of them ended at the end.

    Args:
        python: this process's interpreter.
        folder: where the peers' environments are.
        cores: threads a worker may use.
        logs: a folder for what they print.
    """

    def __init__(self, python: Path, folder: Path, cores: int, logs: Path):
        self._python, self._folder, self._cores, self._logs = python, folder, cores, logs
        self._running: list[Child] = []

    def start(self, name: str, variables: Mapping[str, str] | None = None) -> Child:
        """A new worker.

        Raises:
            PeerError: if its environment is not there.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        where = environment(name, self._python, self._folder)
        child = Child(where, self._cores, self._logs / f"{name}.log", variables or {})
        self._running.append(child)
        return child

    def end(self, child: Child) -> None:
        """End a worker."""
        self._running.remove(child)
        child.kill()

    @contextlib.contextmanager
    def group(self) -> Iterator[Children]:
        """All that start within end at its end."""
        before = list(self._running)
        try:
            yield self
        finally:
            for child in [one for one in self._running if one not in before]:
                self.end(child)


@dataclass
class Contestant:
    """One column of an interleaved measurement.

    Attributes:
        label: its name in the table.
        child: the worker; None if it could not be started.
        request: what it is asked each round; `do` is the operation.
        rounds: it sits out after so many, for what is slow.
        failed: why there is no result.
        answers: what it said, a round.
    """

    label: str
    child: Child | None
    request: Mapping[str, Any]
    rounds: int | None = None
    failed: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def go(self, **more: Any) -> None:
        """One round; a failure is kept and ends its part.

        It is asked for twice, and the second answer kept: a process that has rested finds its
        threads on one core and its freed memory with the machine's host.
        """
        if self.failed or self.child is None:
            return
        request = {**self.request, **more}
        try:
            self.child.ask(**request)
            self.answers.append(self.child.ask(**request))
        except PeerError as error:
            self.failed = str(error)


def interleave(
    contestants: Sequence[Contestant],
    rounds: int,
    per_round: Sequence[Mapping[str, Any]] = (),
    *,
    warm: int = 1,
    beside: Callable[[], object] | None = None,
) -> None:
    """Measure A B C, A B C, ...

    Args:
        contestants: who takes part; their `answers` grow.
        rounds: how often.
        per_round: what is told to all in each round, e.g. a seed; the first also to the rounds
            that are not kept.
        warm: rounds before that are not kept, in which programs are compiled.
        beside: called at the end of each round that is kept.
    """
    for number in range(-warm, rounds):
        told = per_round[max(number, 0)] if per_round else {}
        for one in contestants:
            if one.rounds is not None and number >= one.rounds:
                continue
            before = len(one.answers)
            time.sleep(SETTLE)
            one.go(**told)
            if number < 0:
                del one.answers[before:]
        if number >= 0 and beside is not None:
            time.sleep(SETTLE)
            beside()
