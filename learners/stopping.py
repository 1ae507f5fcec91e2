"""Stopping a run from outside: a signal is a wish to save and leave, not an end in the middle."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunStopped(Exception):  # noqa: N818 (nothing went wrong)
    """A run that was asked to stop has saved what it needs to go on.

    Args:
        signal_name: what asked, e.g. `"SIGTERM"`.
        step: the learner step it was saved after.
        folder: the run's folder.
    """

    def __init__(self, signal_name: str, step: int, folder: str):
        super().__init__(
            f"{signal_name}: stopped after step {step}, which is saved in {folder!r}. Go on with "
            "--resume."
        )
        self.signal_name = signal_name
        self.step = step
        self.folder = folder


class StopSignals:
    """Within its `with` block SIGTERM and SIGINT are remembered instead of ending the process.

    A second SIGINT (Ctrl-C pressed again) ends it at once. In a thread that is not the main one
    nothing is changed, since Python hears signals in the main one alone.
    """

    def __init__(self) -> None:
        self._heard: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: not Python's, but that of `jax.distributed`, which waits for SIGTERM too.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def heard(self) -> str | None:
        """The signal that asked to stop, of this process or any other of the run; None: none did.

        Where several processes run, all must ask at the same place: it is a collective.
        """
        import jax

        number = 0 if self._heard is None else int(self._heard)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            number = int(max(multihost_utils.process_allgather(number)))
        return signal.Signals(number).name if number else None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._heard is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._heard = signal.Signals(number)
        # Not print: the signal may have come in the middle of one.
        words = f"\n{self._heard.name}: saving after this step, then leaving\n"
        os.write(2, words.encode())
