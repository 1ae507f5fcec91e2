"""Threads of compiled programs and of compilers, which must end before the process does."""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread, get_ident
from weakref import WeakSet

INTERRUPTED = 130  # the exit code of a process that Ctrl-C has ended


class LentThread:
    """Work for a thread that is kept for the next: one that is new waits behind all that run.

    Args:
        work: what the thread does; it raises nothing.
        name: of the thread while it does.
    """

    def __init__(self, work: Callable[[], object], name: str):
        self.work = work
        self.name = name
        self._done = Event()
        self._thread: _KeptThread | None = None

    @property
    def ident(self) -> int | None:
        """Of the thread; None before it begins."""
        return None if self._thread is None else self._thread.ident

    def start(self) -> None:
        """Begin, in a thread that has nothing to do or a new one."""
        try:
            thread = _IDLE.pop()
        except IndexError:
            thread = _KeptThread()
            thread.start()
        self._thread = thread
        thread.given.put(self)

    def join(self) -> None:
        """Wait until it is done."""
        self._done.wait()

    def do(self) -> None:
        """In the thread."""
        try:
            self.work()
        finally:
            del self.work  # It may hold models.

    def tell(self) -> None:
        """In the thread, which is free again: those who wait need not any more."""
        self._thread = None
        self._done.set()


class _KeptThread(Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name=_NAME)
        self.given: SimpleQueue[LentThread] = SimpleQueue()

    def run(self) -> None:
        while True:
            self._serve(self.given.get())

    def _serve(self, lent: LentThread) -> None:
        self.name = lent.name
        try:
            lent.do()
            # Not after an error, which ends this thread.
            self.name = _NAME
            _IDLE.append(self)
        finally:
            lent.tell()


_NAME = "zootomy-idle"
_IDLE: deque[_KeptThread] = deque()
if hasattr(os, "register_at_fork"):
    # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=_IDLE.clear)


class OpenThreads:
    """Threads that are to end before their caller goes on, or the process ends.

    Args:
        stop: makes them end soon.
        threads: not all of which need have been started.
    """

    def __init__(self, stop: Callable[[], object], threads: Sequence[Thread | LentThread]):
        self.stop = stop
        self._threads = threads
        _OPEN.add(self)

    def wait(self) -> None:
        """Until they have ended."""
        for thread in self._threads:
            # One of them may be collecting the garbage of which this is a part.
            if thread.ident not in (None, get_ident()):
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
