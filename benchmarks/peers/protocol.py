"""How a worker talks: a JSON request a line in, a JSON answer a line out.

Runs in the environment of every peer, so it knows nothing but Python and numpy.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux
KIBIBYTE = 1024
LEARNING_RATE = 1e-6  # everyone's


def serve(worker: Any) -> None:
    """Answer requests until the input ends.

    A request is `{"do": operation, ...}`; the rest goes to the worker's method of that name as
    keyword arguments. The answer is `{"ok": true, ...}` with what the method returned, or
    `{"ok": false, "error": "Type: message"}`; the traceback goes to the standard error.

    Args:
        worker: its public methods are the operations; each returns a dictionary. `peak_memory`
            comes on top.
    """
    _die_with_the_parent()
    # Libraries print; what they print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    methods = {name: f for name, f in vars(type(worker)).items() if not name.startswith("_")}
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("do")
        try:
            if operation == "peak_memory":
                answer = {"ok": True, **peak_memory()}
            elif operation in methods:
                answer = {"ok": True, **methods[operation](worker, **request)}
            else:
                answer = {"ok": False, "error": f"it has no {operation}"}
        except Exception as error:
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds a call takes, and what it returns; the call must wait for its result itself."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def peak_memory() -> dict[str, float]:
    """The most memory the process had at any time, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"mib": peak * (1 if sys.platform == "darwin" else KIBIBYTE) / 2**20}


def load_arrays(path: str) -> Mapping[str, Any]:
    """The arrays of an `.npz` file."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def reward(completions: Sequence[str]) -> list[float]:
    """The same trivial reward for everyone: the last digit of the text's length, in tenths."""
    return [len(text) % 10 / 10 for text in completions]


def product_rates(
    shapes: Sequence[Sequence[int]], each: float, operands: Callable[..., Any], product: Any
) -> list[float]:
    """GFLOP/s of float32 products [M, K] x [K, N], the best of several.

    Args:
        shapes: M, K and N of each.
        each: seconds that a product is measured.
        operands: gives ones of a shape.
        product: of two of them; waits for its result.
    """
    rates = []
    for m, k, n in shapes:
        a, b = operands((m, k)), operands((k, n))
        product(a, b)  # compiled, where that is a thing
        best, spent = float("inf"), 0.0
        while spent < each:
            took, _ = timed(lambda a=a, b=b: product(a, b))
            best, spent = min(best, took), spent + took
        rates.append(2e-9 * m * k * n / best)
    return rates


class Stepper:
    """A trainer that has a loop of its own, a step at a time.

    The loop runs in a thread. Somewhere in each step it calls `pause`, or asks `batches` for what
    to learn from: there it waits until `step` lets it go on, and when it comes there again the
    step is over.
    """

    def __init__(self) -> None:
        self._go: queue.Queue[None] = queue.Queue()
        self._done: queue.Queue[Exception | None] = queue.Queue()

    def start(self, loop: Callable[[], Any]) -> None:
        """Run a loop up to its first pause.

        Raises:
            Exception: what the loop raised.
        """
        threading.Thread(target=self._main, args=(loop,), daemon=True).start()
        self._wait()

    def step(self) -> None:
        """One step of the loop.

        Raises:
            Exception: what the loop raised.
        """
        self._go.put(None)
        self._wait()

    def batches(self, batch: Any) -> Iterator[Any]:
        """The same batch again and again, each after a pause."""
        while True:
            self.pause()
            yield batch

    def pause(self) -> None:
        """Say that a step is over and wait for the next."""
        self._done.put(None)
        self._go.get()

    def _main(self, loop: Callable[[], Any]) -> None:
        try:
            loop()
            raise RuntimeError("the trainer's loop has ended")
        except Exception as error:
            self._done.put(error)

    def _wait(self) -> None:
        error = self._done.get()
        if error is not None:
            raise error


def _die_with_the_parent() -> None:
    """A worker that is stopped cannot see its input end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGKILL)
