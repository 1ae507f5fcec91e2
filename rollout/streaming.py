"""Completions as they end, from any engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from ..models.threads import LentThread, OpenThreads
from .types import Completion, Finished, Request, RolloutEngine, SamplingParams, StreamingEngine


def stream(
    engine: RolloutEngine,
    requests: Sequence[Request],
    sampling: SamplingParams,
    seed: int | None = None,
) -> Iterator[Finished]:
    """The completions of `engine.generate`, each as soon as it is there.

    An engine that is no `StreamingEngine` gives all of them at the end, in order. Close a stream
    that is left early (`contextlib.closing`): threads of the engine may go on until then.

    Args:
        engine: samples.
        requests: see `RolloutEngine.generate`, as the next two.
        sampling: how tokens are drawn.
        seed: of the noise.

    Raises:
        ZootomyError: as `RolloutEngine.generate`.
    """
    if isinstance(engine, StreamingEngine):
        yield from engine.stream(requests, sampling, seed)
        return
    for request, group in enumerate(engine.generate(requests, sampling, seed)):
        for index, completion in enumerate(group):
            yield Finished(request, index, completion)


def in_groups(items: Iterable[Finished], requests: Sequence[Request]) -> list[list[Completion]]:
    """What `generate` returns, of completions in the order in which they end."""
    found: list[dict[int, Completion]] = [{} for _ in requests]
    for request, index, completion in items:
        found[request][index] = completion
    return [
        [group[i] for i in range(request.n)] for request, group in zip(requests, found, strict=True)
    ]


def in_background(
    sources: Sequence[Iterable[Finished]], stop: Callable[[], None], name: str = "zootomy-stream"
) -> Iterator[Finished]:
    """What threads make of iterators, one each, which go on while the caller looks.

    Args:
        sources: gone through in these threads alone, from now on.
        stop: ends all iterators soon; called unless all have come to their end.
        name: of the threads.

    Returns:
        The items as they come, and the first error in which an iterator ends. Close it where it is
        left early: until then the threads go on.
    """
    found: SimpleQueue[Finished | BaseException | None] = SimpleQueue()

    def work(items: Iterable[Finished]) -> None:
        try:
            for item in items:
                found.put(item)
        except BaseException as error:  # whoever reads is told
            found.put(error)
        else:
            found.put(None)

    threads = [LentThread(functools.partial(work, items), name) for items in sources]
    going = OpenThreads(stop, threads)
    reader = _read(found, len(threads), going)
    next(reader)  # What has not begun has no end: closed or dropped, it would stop nothing.
    try:
        for thread in threads:
            thread.start()
    except BaseException:
        reader.close()
        raise
    return reader


def _read(
    found: SimpleQueue[Finished | BaseException | None], left: int, going: OpenThreads
) -> Generator[Any]:
    item = None
    try:
        yield None
        while left:
            item = found.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        # Each that says it is done is at its end: a thread of it is not waited for.
        if left:
            going.end()
        else:
            going.ended()
        # An error's frames hold the weights, and this frame or the queue would hold the error.
        del item
        while not found.empty():
            found.get()
