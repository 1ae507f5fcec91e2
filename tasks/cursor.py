"""Which prompt comes next: an endless shuffled order whose whole state is one integer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .types import TaskError


@dataclass(frozen=True)
class PromptOrder:
    """A new permutation of all prompts in every epoch, addressed by the number consumed so far.

        prompt(c) = permutation(seed, ⌊c / size⌋)[c mod size]

    No call depends on those before, so the cursor c is all that a checkpoint holds. A batch
    that reaches the end of an epoch goes on into the next one: no prompt is dropped and none is
    seen twice within an epoch, whatever the batch size.

    Args:
        size: number of prompts.
        seed: other seeds give other orders.
        epochs: how often all prompts are given before the order ends; None: without end.

    Raises:
        TaskError: if `size` or `epochs` is below 1 or `seed` is negative.

    >>> order = PromptOrder(size=5, seed=0)
    >>> sorted([*order.take(0, 3), *order.take(3, 2)])
    [0, 1, 2, 3, 4]
    """

    size: int
    seed: int
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise TaskError(f"PromptOrder needs at least one prompt, got size={self.size}.")
        if self.seed < 0:
            raise TaskError(f"PromptOrder needs a seed of 0 or more, got {self.seed}.")
        if self.epochs is not None and self.epochs < 1:
            raise TaskError(f"PromptOrder needs at least one epoch, got epochs={self.epochs}.")

    def take(self, cursor: int, count: int) -> list[int]:
        """The indices of the next `count` prompts.

        Args:
            cursor: how many prompts have been consumed.
            count: how many are wanted.

        Returns:
            `count` indices in `[0, size)`; fewer, at last none, where the epochs run out.

        Raises:
            TaskError: if `cursor` or `count` is negative.
        """
        if cursor < 0 or count < 0:
            raise TaskError(f"cursor and count must be 0 or more, got {cursor} and {count}.")
        left = self.remaining(cursor)
        end = cursor + (count if left is None else min(count, left))
        taken: list[int] = []
        while cursor < end:
            epoch, start = divmod(cursor, self.size)
            stop = min(self.size, start + end - cursor)
            taken += _permutation(self.size, self.seed, epoch)[start:stop].tolist()
            cursor += stop - start
        return taken

    def remaining(self, cursor: int) -> int | None:
        """How many prompts are left after `cursor`, or None where there is no end."""
        return None if self.epochs is None else max(0, self.size * self.epochs - cursor)

    def epoch(self, cursor: int) -> int:
        """How many whole epochs lie before `cursor`."""
        return cursor // self.size

    def permutation(self, epoch: int) -> np.ndarray:
        """The order of one epoch, `[size]` int64, from nothing but `(seed, epoch)`."""
        return _permutation(self.size, self.seed, epoch).copy()


# A batch takes a few of an order that is as long as the data; the end of an epoch needs two.
@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    # RandomState's streams are frozen by NumPy's compatibility policy, Generator's are not:
    # a run resumed under another NumPy must see the same order.
    bits = np.random.MT19937(np.random.SeedSequence([seed, epoch]))
    order = np.arange(size)
    np.random.RandomState(bits).shuffle(order)
    return order
