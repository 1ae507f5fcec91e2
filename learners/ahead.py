"""The programs of the first update, compiled in a thread while the first batch is sampled."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable
from threading import Event, Thread
from weakref import WeakSet

import numpy as np

from ..rollout import Completion, RolloutConfig
from .algorithm import Algorithm
from .batch import BatchConfig
from .collect import Collected, Group


class Ahead:
    """Work that is done once, in a thread, until it is needed.

    What goes wrong in it is left to those who do it in earnest: it goes wrong there too, or it was
    the stand-in's fault.

    Args:
        work: given an event that tells it to end.
    """

    def __init__(self, work: Callable[[Event], object]):
        self._work = work
        self._stop = Event()
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start; later calls do nothing."""
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True, name="zootomy-compile")
            _OPEN.add(self)
            self._thread.start()

    @property
    def going(self) -> bool:
        """Whether it is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until it is done."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Stop before the next program, and wait."""
        self._stop.set()
        self.wait()

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except Exception:  # See above; one is that it was stopped.
            pass
        finally:
            _OPEN.discard(self)


_OPEN: WeakSet[Ahead] = WeakSet()


@atexit.register
def _end_all() -> None:
    # A thread in a compiler while the interpreter goes would abort the process.
    for one in list(_OPEN):
        one.end()


def stand_in(
    algorithm: Algorithm,
    batch: BatchConfig,
    rollout: RolloutConfig,
    functions: int,
    *,
    token_rewards: bool,
) -> Collected:
    """A batch of the longest prompts and completions, which takes the programs that most take.

    Args:
        algorithm: says what is known of a group.
        batch: P prompts of G completions.
        rollout: how long they may be.
        functions: F, how many reward functions there are.
        token_rewards: whether some of them give rewards to tokens or turns.
    """
    size, width, needs = batch.group_size, rollout.max_new_tokens, algorithm.needs
    tokens = np.zeros(width, np.int32)
    # Stopped by itself: an algorithm may leave out what was cut off.
    completion = Completion(tokens, np.zeros(width, np.float32), "stop", version=0)
    remembered = needs & {"greedy_baseline", "prompt_values", "running_reward"}
    groups = [
        Group(
            example=0,
            prompt=_numbered(index, rollout.max_prompt_tokens),
            completions=[completion] * size,
            rewards=np.zeros(size, np.float32),
            valid=np.ones(size, bool),
            components=np.zeros((functions, size), np.float32),
            baseline=0.0 if remembered else None,
            scale=1.0 if "running_reward" in needs else None,
            token_rewards=[np.zeros(width, np.float32)] * size if token_rewards else None,
        )
        for index in range(batch.full)
    ]
    return Collected(groups, batch.full, groups, refills=0, failures=Counter())


def _numbered(index: int, length: int) -> tuple[int, ...]:
    """A prompt of two tokens, another one for each index as far as its length allows."""
    return tuple(index >> place & 1 for place in range(length))
