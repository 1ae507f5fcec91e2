"""Completions as they end, from any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread

from .types import Completion, Finished, Request, RolloutEngine, SamplingParams, StreamingEngine


def stream(
    engine: RolloutEngine,
    requests: Sequence[Request],
    sampling: SamplingParams,
    seed: int | None = None,
) -> Iterator[Finished]:
    """The completions of `engine.generate`, each as soon as it is there.

    An engine that is no `StreamingEngine` gives all of them at the end, in order.

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
    items: Iterable[Finished], stop: Callable[[], None], name: str = "zootomy-stream"
) -> Iterator[Finished]:
    """What a thread of its own makes of an iterator, which goes on while the caller looks.

    Args:
        items: gone through in that thread alone, from now on.
        stop: called when the caller looks no further: ends the iterator soon.
        name: of the thread.

    Returns:
        The items, and the error in which the iterator ends.
    """
    found: SimpleQueue[Finished | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            for item in items:
                found.put(item)
        except BaseException as error:  # whoever reads is told
            found.put(error)
        else:
            found.put(None)

    thread = Thread(target=work, daemon=True, name=name)
    thread.start()
    return _read(found, thread, stop)


def _read(
    found: SimpleQueue[Finished | BaseException | None], thread: Thread, stop: Callable[[], None]
) -> Iterator[Finished]:
    try:
        while (item := found.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop()
        thread.join()
