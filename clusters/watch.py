"""The processes of a run watch over each other: where one dies, the others name it and end.

JAX would notice too, but late, in the middle of a transfer that hangs, or with a stack of C++. So
every process holds a connection to process 0, which tells all others what has become of one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from types import TracebackType
from typing import Any

import jax
import numpy as np

from ..models import from_first, several
from ..registry import ZootomyError

LOST = 1
"""The exit code of a process that another one has ended."""
# Seconds: to reach process 0; for the others to come to the same error by themselves; for the
# news of a death, when a transfer has failed already.
_REACH, _SAME, _NEWS = 10.0, 5.0, 3.0


class Watch:
    """Within its `with` block, a process that dies or fails ends all others, with the reason.

    In a single process it does nothing.

    Args:
        timeout: seconds of silence after which a process counts as dead.
        host: where the others find process 0; empty: by its name.
        leaves: exceptions with which all processes leave, at the same place.
    """

    def __init__(
        self, timeout: float, *, host: str = "", leaves: tuple[type[BaseException], ...] = ()
    ):
        self._timeout = timeout
        self._host = host
        self._leaves = leaves
        self._lines: dict[int, socket.socket] = {}
        self._names: dict[int, str] = {}
        self._gone: set[int] = set()
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._me = 0
        # Whether another process was still at work when its line broke off.
        self._ended_others = False

    def __enter__(self) -> Watch:
        if several():
            self._me = jax.process_index()
            self._connect()
            for number in self._lines:
                threading.Thread(target=self._listen, args=(number,), daemon=True).start()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._lines:
            return
        if error is None or isinstance(error, self._leaves):
            self._leaving.set()
            self._tell_all(["left"])
            return
        if not isinstance(error, ZootomyError):
            # Most likely the end of another process, of which the news is on its way.
            time.sleep(_NEWS)
        self._leaving.set()
        self._tell_all(["failed", self._me, f"{type(error).__name__}: {error}".strip()])
        deadline = time.monotonic() + 2 * _SAME
        while self._gone != set(self._lines) and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._gone != set(self._lines) or self._ended_others:
            # JAX would wait at the end for processes that do not come.
            atexit.register(_leave_at_once)

    def _connect(self) -> None:
        token = secrets.token_hex(16)
        server = _server() if self._me == 0 else None

        def address() -> bytes:
            assert server is not None
            name = socket.gethostname()
            hosts = [self._host, name, *_addresses(name)]
            port = server.getsockname()[1]
            return json.dumps([[host for host in hosts if host], port, token]).encode()

        hosts, port, token = json.loads(from_first(address))
        reached = self._me == 0 or self._reach(hosts, port, token)
        if server is not None:
            threading.Thread(target=self._accept, args=(server, token), daemon=True).start()
        from jax.experimental import multihost_utils

        all_reached = np.asarray(multihost_utils.process_allgather(np.int32(reached)))
        if server is not None:
            server.close()
        missing = [number for number, there in enumerate(all_reached) if not there]
        if missing and self._me == 0:
            warnings.warn(
                f"Process {missing[0]} cannot reach process 0 at any of {', '.join(hosts)}, port "
                f"{port}: whether it lives is left to JAX, which takes longer to notice and does "
                "not say what has happened.",
                stacklevel=4,
            )

    def _reach(self, hosts: list[str], port: int, token: str) -> bool:
        deadline = time.monotonic() + _REACH
        for host in hosts:
            with contextlib.suppress(OSError):
                wait = max(0.1, (deadline - time.monotonic()) / 2)
                line = socket.create_connection((host, port), timeout=wait)
                self._send(line, [token, self._me, _who()])
                answer = _read_line(line)
                if answer:
                    self._lines[0], self._names[0] = line, json.loads(answer)[0]
                    return True
        return False

    def _accept(self, server: socket.socket, token: str) -> None:
        with contextlib.suppress(OSError):
            while len(self._lines) < jax.process_count() - 1:
                line, _ = server.accept()
                line.settimeout(_REACH)
                with contextlib.suppress(OSError, ValueError):
                    said, number, who = json.loads(_read_line(line))
                    if secrets.compare_digest(str(said), token):
                        self._lines[number], self._names[number] = line, who
                        self._send(line, [_who()])

    def _listen(self, number: int) -> None:
        """Hear what another process says, until it falls silent."""
        line = self._lines[number]
        line.settimeout(self._timeout)
        try:
            # The line of a process that dies with words of ours unread is reset.
            with (
                contextlib.suppress(ConnectionResetError),
                line.makefile("r", encoding="utf-8") as words,
            ):
                for word in words:
                    self._hear(number, json.loads(word))
            what = "has died"
        except TimeoutError:
            what = f"has not been heard of for {self._timeout:g} s"
        except OSError as error:
            what = f"cannot be heard any more ({error.strerror})"
        lost = number not in self._gone
        self._gone.add(number)
        if lost and not self._leaving.is_set():
            self._end(
                f"Process {number} of {jax.process_count()} ({self._names[number]}) {what}, and "
                "the run cannot go on without it. Start all processes again, with --resume."
            )
        self._ended_others = self._ended_others or lost

    def _hear(self, number: int, word: list[Any]) -> None:
        kind, *rest = word
        if kind == "left":
            self._gone.add(number)
        elif kind == "failed":
            self._gone.add(number)
            if self._me == 0:
                self._tell_all(word, but=number)
            threading.Thread(target=self._failed, args=rest, daemon=True).start()
        elif kind == "end" and not self._leaving.is_set():
            self._end(rest[0])

    def _failed(self, number: int, text: str) -> None:
        """Another process has an error: end, unless this one has the same or is done."""
        if not self._leaving.wait(_SAME):
            self._end(f"Process {number} of {jax.process_count()} has ended with {text}")

    def _end(self, text: str) -> None:
        """End this process, and by way of process 0 all others."""
        with self._lock:
            if self._me == 0:
                self._tell_all(["end", text])
            sys.stderr.write(f"error: {text}\n")
            _flush()
            os._exit(LOST)

    def _beat(self) -> None:
        while True:
            self._tell_all(["alive"])
            time.sleep(self._timeout / 4)

    def _tell_all(self, word: list[Any], but: int | None = None) -> None:
        for number, line in self._lines.items():
            if number != but:
                # Who does not listen any more is heard of, or rather not, in its own thread.
                with contextlib.suppress(OSError):
                    self._send(line, word)

    @staticmethod
    def _send(line: socket.socket, word: list[Any]) -> None:
        line.sendall((json.dumps(word) + "\n").encode())


def _server() -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
    server.settimeout(3 * _REACH)
    return server


def _read_line(line: socket.socket) -> str:
    """One line, byte by byte: what follows it is another reader's."""
    found = b""
    while not found.endswith(b"\n"):
        byte = line.recv(1)
        if not byte:
            break
        found += byte
    return found.decode()


def _addresses(name: str) -> list[str]:
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def _who() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _leave_at_once() -> None:
    _flush()
    os._exit(LOST)
