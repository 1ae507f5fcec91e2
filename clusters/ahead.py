"""Programs that a thread compiles before they are needed, and how those who need them meet it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Condition, Event, Thread
from typing import Any, NamedTuple

import jax

from ..models.threads import OpenThreads


class StoppedError(Exception):
    """Nobody needs what is compiled ahead."""


class Key(NamedTuple):
    """Which program it is.

    Attributes:
        kind: the function and what it is compiled for, but for the shapes of what it is given.
        shapes: these.
    """

    kind: Hashable
    shapes: Hashable


def key_of(program: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Key:
    """The key of a call; equal keys mean one program."""
    leaves, structure = jax.tree.flatten((arguments, named))
    shapes = tuple((x.shape, str(x.dtype)) if hasattr(x, "dtype") else None for x in leaves)
    others = tuple(x for x in leaves if not hasattr(x, "dtype"))
    return Key((id(program), others), (structure, shapes))


class Ahead:
    """What one thread compiles while others go on.

    Who needs a program that is under way waits for it. Who needs another one of its kind, or comes
    first, compiles it and ends the thread, whose next programs would be as useless or late.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._done: set[Key] = set()
        self._now: Key | None = None
        self._taken: set[Key] = set()
        self._stop = Event()
        self._thread: Thread | None = None
        self._open: OpenThreads | None = None
        self.error: BaseException | None = None
        """What ended the thread, if it did not end by itself."""

    @property
    def going(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, work: Callable[[], object]) -> None:
        """Start the thread; later calls do nothing.

        What goes wrong in it goes wrong again where it is done in earnest, or was the fault of what
        stood in for the real thing: it is kept, and not raised.
        """
        if self._thread is None:
            self._thread = Thread(target=self._run, args=[work], daemon=True, name="zootomy-ahead")
            self._open = OpenThreads(self._stop.set, [self._thread])
            self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            # Frames would hold models.
            error.__context__ = error.__cause__ = None
            self.error = error.with_traceback(None)

    def compile(self, key: Key, work: Callable[[], Any]) -> Any:
        """In the thread: do the work that compiles a program.

        Raises:
            StoppedError: where the thread is to end.
        """
        with self._changed:
            if self._stop.is_set() or key in self._taken:
                raise StoppedError
            self._now = key
        try:
            return work()
        finally:
            with self._changed:
                self._done.add(key)
                self._now = None
                self._changed.notify_all()

    def meet(self, program: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """In any other thread: before a program is called."""
        if not self.going:
            return
        key = key_of(program, arguments, named)
        with self._changed:
            self._changed.wait_for(lambda: self._now != key)
            if key in self._done:
                return
            self._taken.add(key)
            begun = {*self._done, *([self._now] if self._now else [])}
            if any(other.kind == key.kind for other in begun):
                self._stop.set()

    def stop(self) -> None:
        """Let the thread end before its next program."""
        self._stop.set()

    def wait(self) -> None:
        """Until the thread has ended."""
        if self._open is not None:
            self._open.wait()
