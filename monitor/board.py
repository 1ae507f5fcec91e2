"""TensorBoard's event files, written beside the run."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 5.0  # between two writings


class _Logged(NamedTuple):
    """The metrics of a step while they wait, with the time at which they came."""

    step: int
    wall_time: float
    values: Mapping[str, float]


class Board:
    """Makes events of metrics and writes them, in a thread, every few seconds.

    An event takes as long as all else that is logged of a step. The step that logs it would wait
    for it, and so would the next if the thread began at once: one thread at a time runs Python.

    Args:
        folder: of the event files; it is made.
        purge_step: TensorBoard forgets this step and later ones of earlier files; None: nothing.
        seconds: between two writings.
    """

    def __init__(self, folder: Path, purge_step: int | None = None, *, seconds: float = SECONDS):
        # Imported here: protobuf takes a third of a second, which `zootomy list` need not pay.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        folder.mkdir(parents=True, exist_ok=True)
        # Of itself the name tells seconds: a run that is resumed at once would write over its file.
        self._file = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._messages: Any = event_pb2  # Its classes are made at run time.
        if purge_step is not None:
            start = self._messages.SessionLog(status=self._messages.SessionLog.START)
            self._file.write_event(self._messages.Event(step=purge_step, session_log=start))
        self._seconds = seconds
        self._waiting: deque[_Logged] = deque()
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._write_now_and_then, name="tensorboard", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # Else what waits would be lost where nobody closes it.

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a step, those that are finite.

        Raises:
            Exception: what stopped an earlier writing.
        """
        if self._error is not None:
            raise self._error
        self._waiting.append(_Logged(step, time.time(), values))

    def close(self) -> None:
        """Write what waits and close the file; once closed, nothing.

        Raises:
            Exception: what stopped a writing.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        self._thread.join()
        try:
            if self._error is not None:
                raise self._error
            self._write()
        finally:
            self._file.close()

    def _write_now_and_then(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self._write()
            except Exception as error:  # It belongs to the run that logs.
                self._error = error
                return

    def _write(self) -> None:
        from tensorboardX.summary import scalar

        while self._waiting:
            step, wall_time, values = self._waiting.popleft()
            parts = [scalar(name, value) for name, value in values.items() if math.isfinite(value)]
            for part in parts[1:]:
                parts[0].MergeFrom(part)
            if parts:
                event = self._messages.Event(step=step, wall_time=wall_time, summary=parts[0])
                self._file.write_event(event)
        self._file.flush()
