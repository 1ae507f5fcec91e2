"""An engine in a process of its own, behind the same interface.

The child is started afresh (never forked: JAX and torch hold threads), talks over a socket that
only it inherits, and reads weights from a transfer's buffers. If it dies, whoever waits is told.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..models import ModelConfig
from ..registry import ZootomyError
from .checks import CLOSED, check_positions
from .config import RolloutConfig
from .remote_child import FAILED, PART, Start
from .transfer import make_transfer
from .types import Completion, Finished, Request, SamplingParams, Weights, whole_number
from .weights import named_params

TAIL = 2000  # characters of a dead child's last words that an error shows
_CHILD = f"import sys; from {__package__}.remote_child import main; main(int(sys.argv[1]))"
_GUARD = Path(__file__).parent / "guard.py"
GUARDED = ("sglang_jax",)  # engines that signal the parent of their process
GOODBYE = 10.0  # seconds a child may take to end


class RemoteEngine:
    """The engine that `config.engine` names, in a child process.

    Args:
        config: limits and settings.
        model: sizes of the policy.
        dtype: of the policy's arithmetic.
        mesh: size by axis of the rollout mesh.
        timeout: seconds the child may take to start.

    Raises:
        ZootomyError: what the engine says at its start, or that its process died.
    """

    def __init__(
        self,
        config: RolloutConfig,
        model: ModelConfig,
        dtype: str,
        mesh: dict[str, int] | None = None,
        timeout: float = 600.0,
    ):
        check_positions(config, model.max_positions)
        self.config = config
        self._version = -1
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._streams: dict[int, SimpleQueue[Finished | None]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._closed = False
        self._transfer = make_transfer(config.transfer, other_process=True)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        handle = str(theirs.fileno())
        guarded = config.engine in GUARDED
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(_GUARD), handle, _CHILD]
            if guarded
            else [sys.executable, "-c", _CHILD, handle],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            env=_environment(),
            # A group of its own: it can be ended with all that it has started.
            start_new_session=True,
        )
        theirs.close()
        self._line = Connection(ours.detach())
        threading.Thread(target=self._listen, daemon=True, name="zootomy-engine").start()
        try:
            self._ask(Start(config, model, dtype, mesh)).result(timeout)
        except FutureTimeout:
            self.close()
            raise ZootomyError(
                f"the {config.engine} engine did not start within {timeout:g} s; raise its "
                f"start_timeout. Its last words: {self._last_words()}"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The version of the weights that sample; -1 before any were given."""
        return self._version

    @property
    def pid(self) -> int:
        """Of the child process."""
        return self._child.pid

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request; see `RolloutEngine`."""
        return self._ask(("generate", list(requests), sampling, seed)).result()

    def stream(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> Iterator[Finished]:
        """Hand the completions of `generate` out as they end; see `StreamingEngine`.

        An engine that cannot gives all of them at the end.
        """
        found: SimpleQueue[Finished | None] = SimpleQueue()
        answer = self._ask(("stream", list(requests), sampling, seed), found)
        return _read(found, answer)

    def abort(self) -> None:
        """End the running call of another thread; its completions come back as they are.

        Raises:
            ZootomyError: for an engine that samples every call to its end.
        """
        if self.config.engine == "vanilla":
            raise ZootomyError("the vanilla engine samples every call to its end")
        self._send((next(self._numbers), ("abort",)))

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; see `RolloutEngine`.

        The buffer is filled while the engine may still sample from its own weights; it changes
        over between two calls of `generate`.
        """
        version = whole_number("version", version, 0, "an integer >= 0")
        named = named_params(weights)
        if self._closed:
            raise ZootomyError(CLOSED)
        with self._sending:
            delivery = self._transfer.send(named, version)
            self._ask(("update", delivery)).result()
            self._transfer.accepted(delivery)
            self._version = version

    def close(self) -> None:
        """End the child and remove the buffers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._tell(CLOSED)
        with contextlib.suppress(OSError):
            self._line.send((next(self._numbers), ("close",)))
        try:
            self._child.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self._kill()
            self._child.wait()
        self._transfer.close()

    def __del__(self) -> None:
        # A forgotten engine must not outlive its owner; an unfinished one has no child yet.
        if "_child" in self.__dict__ and self._child.poll() is None:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _ask(self, message: Any, parts: SimpleQueue[Finished | None] | None = None) -> Future[Any]:
        """Send a message; its answer, before which `parts` gets what comes, and a None."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._closed:
                raise ZootomyError(CLOSED)
            self._waiting[number] = future
            if parts is not None:
                self._streams[number] = parts
                future.add_done_callback(lambda _: parts.put(None))
        self._send((number, message))
        return future

    def _send(self, message: Any) -> None:
        try:
            self._line.send(message)
        except OSError:
            if self._closed:
                raise ZootomyError(CLOSED) from None
            raise ZootomyError(self._died()) from None

    def _listen(self) -> None:
        """Hand answers to those who wait; when the line breaks, tell them why."""
        while True:
            try:
                number, kind, value = self._line.recv()
            except (EOFError, OSError):
                break
            if kind == PART:
                parts = self._streams.get(number)
                if parts is not None:
                    parts.put(value)
                continue
            self._streams.pop(number, None)
            future = self._waiting.pop(number, None)
            if future is None:
                continue
            if kind == FAILED:
                future.set_exception(value)
            else:
                future.set_result(value)
        if not self._closed:
            self._tell(self._died())

    def _tell(self, why: str) -> None:
        """End whatever somebody waits for in an error."""
        with self._lock:
            waiting, self._waiting, self._streams = self._waiting, {}, {}
        for future in waiting.values():
            future.set_exception(ZootomyError(why))

    def _died(self) -> str:
        try:
            code = self._child.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            code = None
        return (
            f"the process of the {self.config.engine} engine died (exit code {code}); make a new "
            f"engine. Its last words: {self._last_words()}"
        )

    def _last_words(self) -> str:
        self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, self._words.tell() - TAIL))
        return self._words.read().decode(errors="replace").strip() or "none"


def _read(found: SimpleQueue[Finished | None], answer: Future[Any]) -> Iterator[Finished]:
    while (one := found.get()) is not None:
        yield one
    answer.result()


def _environment() -> dict[str, str]:
    """The child imports this package from where it was imported here."""
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
