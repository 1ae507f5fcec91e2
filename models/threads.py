"""Threads of compiled programs and of compilers, which must end before the process does."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread, get_ident
from weakref import WeakSet

INTERRUPTED = 130  # the exit code of a process that Ctrl-C has ended


class LentThread:
    """Work for a thread that is kept for the next work when it is done.

    Where all cores are busy a new thread waits behind all that run, for milliseconds; one that is
    woken does not.

    Args:
        work: what the thread does; an error ends the thread, and is nobody's.
        name: of the thread while it does.
    """

    def __init__(self, work: Callable[[], object], name: str):
        self.work: Callable[[], object] | None = work
        self.name = name
        self.ident: int | None = None
        self._process = os.getpid()
        self._done = Event()

    def start(self) -> None:
        """Begin, in a thread that has nothing to do or in a new one."""
        try:
            thread = _IDLE.pop()
        except IndexError:
            thread = _KeptThread()
        try:
            if thread.ident is None:
                thread.start()
            # No interrupt is heard between these two.
            self.ident = thread.ident
            thread.given.put(self)
        except BaseException:
            if self.ident is None and thread.ident is not None:
                _IDLE.append(thread)  # It waits for work.
            raise

    def join(self) -> None:
        """Wait until it is done; a forked child has no such thread and does not wait."""
        if self._process == os.getpid():
            self._done.wait()

    def tell(self) -> None:
        """In the thread: it is done, and holds nothing of it."""
        self.work = None
        self._done.set()


class _KeptThread(Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name=_KEPT)
        self.given: SimpleQueue[LentThread] = SimpleQueue()

    def run(self) -> None:
        while True:
            self._serve(self.given.get())
            self.name = _KEPT
            _IDLE.append(self)

    def _serve(self, lent: LentThread) -> None:
        self.name = lent.name
        try:
            assert lent.work is not None
            lent.work()
        finally:
            lent.tell()


_KEPT = "zootomy-kept"
_IDLE: list[_KeptThread] = []
if hasattr(os, "register_at_fork"):
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
        self.ended()

    def ended(self) -> None:
        """Their work is done: nobody has to wait for them."""
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
