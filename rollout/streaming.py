"""Completions as they end, from any engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .types import Finished, Request, RolloutEngine, SamplingParams, StreamingEngine


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
