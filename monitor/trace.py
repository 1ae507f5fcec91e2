"""When the parts of a run began and ended, as a file that trace viewers open."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_END = b"\n]\n"


class Trace:
    """Writes spans as Chrome trace events, which Perfetto (ui.perfetto.dev) and Chrome open.

    The file is whole JSON after every flush, and a resumed run writes on where it ends: times are
    those of the wall clock, so that the pause shows.

    Args:
        path: the file; its folder is made.
        resume: go on with the file if there is one; else it is written anew.
        wall: returns seconds since the epoch.
        clock: returns seconds; the one that spans are measured by.
    """

    def __init__(
        self,
        path: Path,
        *,
        resume: bool = False,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._epoch = wall() - clock()
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._threads: dict[int, int] = {}
        fresh = not (resume and path.is_file() and path.stat().st_size > len(_END))
        self._file = path.open("w+b" if fresh else "r+b")
        self._empty = fresh
        if fresh:
            self._file.write(b"[" + _END)
            self._file.flush()
        else:
            self._file.seek(0)
            self._empty = self._file.read().strip(b"[ \n]") == b""

    def span(self, name: str, start: float, seconds: float) -> None:
        """Note a span that has ended.

        Args:
            name: what was done.
            start: when it began, by the clock.
            seconds: how long it took.
        """
        with self._lock:
            thread = self._thread()
            self._waiting.append(
                {
                    "name": name,
                    "ph": "X",
                    "ts": round((self._epoch + start) * 1e6),
                    "dur": round(seconds * 1e6),
                    "pid": os.getpid(),
                    "tid": thread,
                }
            )

    def counter(self, name: str, values: Mapping[str, float]) -> None:
        """Note numbers as they are now, drawn as a curve each.

        Args:
            name: what they are together, e.g. `"memory, MiB"`.
            values: one number a curve.
        """
        with self._lock:
            now = round((self._epoch + self._clock()) * 1e6)
            self._waiting.append(
                {"name": name, "ph": "C", "ts": now, "pid": os.getpid(), "args": dict(values)}
            )

    def flush(self) -> None:
        """Write what was noted since the last call."""
        with self._lock:
            events, self._waiting = self._waiting, []
            if not events:
                return
            text = ",\n".join(json.dumps(event) for event in events)
            self._file.seek(-len(_END), os.SEEK_END)
            self._file.write(("\n" if self._empty else ",\n").encode() + text.encode() + _END)
            self._file.flush()
            self._empty = False

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        self._file.close()

    def _thread(self) -> int:
        """A small number for this thread; the first event of each tells its name."""
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads[ident] = len(self._threads)
            about = {"name": threading.current_thread().name}
            self._waiting.append(
                {
                    "name": "thread_name",
                    "ph": "M",
                    "pid": os.getpid(),
                    "tid": self._threads[ident],
                    "args": about,
                }
            )
        return self._threads[ident]
