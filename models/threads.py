"""Threads of compiled programs and of compilers, which must end before the process does."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread, current_thread
from weakref import WeakSet

INTERRUPTED = 130  # the exit code of a process that Ctrl-C has ended


class OpenThreads:
    """Threads that are to end before their caller goes on, or the process ends.

    Args:
        stop: makes them end soon.
        threads: not all of which need have been started.
    """

    def __init__(self, stop: Callable[[], object], threads: Sequence[Thread]):
        self.stop = stop
        self._threads = threads
        _OPEN.add(self)

    def wait(self) -> None:
        """Until they have ended."""
        for thread in self._threads:
            # One of them may be collecting the garbage of which this is a part.
            if thread.ident is not None and thread is not current_thread():
                thread.join()

    def end(self) -> None:
        """Stop them and wait."""
        self.stop()
        self.wait()
        _OPEN.discard(self)


_OPEN: WeakSet[OpenThreads] = WeakSet()


@atexit.register
def _end_all() -> None:
    # A thread in a program or a compiler while the interpreter goes would abort the process.
    threads = list(_OPEN)
    try:
        for one in threads:
            one.stop()
        for one in threads:
            one.wait()
    except KeyboardInterrupt:  # They will not wait for it.
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(INTERRUPTED)
