"""Which completion grows in which slot: the host's side of continuous batching."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .types import Completion

FREE_SHARE = 8  # the decode loop returns for new work when an eighth of the slots is free


@dataclass(frozen=True)
class Row:
    """A completion to be sampled: its request, its index there, its prompt's row when read."""

    request: int
    completion: int
    batch_row: int


class Schedule:
    """The completions of one call: waiting for their prompt, for a slot, growing, finished.

    Args:
        prompts: token ids, one sequence a request.
        n: completions of each.
        slots: how many grow at the same time.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], n: Sequence[int], *, slots: int):
        self.prompts = prompts
        self.slots = slots
        self.longest_prompt = max(len(prompt) for prompt in prompts)
        self._n = n
        self._found: list[dict[int, Completion]] = [{} for _ in prompts]
        self._unread = deque(range(len(prompts)))
        self._read: deque[Row] = deque()
        self._in_slot: dict[int, Row] = {}
        self._position = np.zeros(slots, np.int32)

    @property
    def waiting(self) -> bool:
        """Whether a completion has no slot yet."""
        return bool(self._unread or self._read)

    @property
    def readable(self) -> bool:
        """Whether a waiting completion's prompt is in the batch read last."""
        return bool(self._read)

    @property
    def busy(self) -> bool:
        """Whether a completion grows."""
        return bool(self._in_slot)

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to do."""
        return self.waiting or self.busy

    @property
    def free(self) -> int:
        """Number of slots without a completion."""
        return self.slots - len(self._in_slot)

    @property
    def free_enough(self) -> int:
        """Number of free slots at which decoding should pause; out of reach if nothing waits."""
        return max(1, self.slots // FREE_SHARE) if self.waiting else self.slots + 1

    @property
    def furthest(self) -> int:
        """Largest position of a token that the model reads next."""
        return max(int(self._position[slot]) for slot in self._in_slot)

    @property
    def completions(self) -> list[list[Completion]]:
        """What was sampled, in the order of requests and completions."""
        return [[found[i] for i in range(n)] for found, n in zip(self._found, self._n, strict=True)]

    def next_prompts(self, rows: int) -> list[Sequence[int]]:
        """The next prompts to be read together; their completions become readable."""
        taken = [self._unread.popleft() for _ in range(min(rows, len(self._unread)))]
        for batch_row, request in enumerate(taken):
            self._read.extend(Row(request, i, batch_row) for i in range(self._n[request]))
        return [self.prompts[request] for request in taken]

    def assign(self) -> list[tuple[int, Row]]:
        """Give free slots to completions whose prompt is read."""
        free = [slot for slot in range(self.slots) if slot not in self._in_slot]
        assigned = [(slot, self._read.popleft()) for slot in free[: len(self._read)]]
        self._in_slot.update(assigned)
        return assigned

    def update(self, active: np.ndarray, position: np.ndarray) -> list[tuple[int, Row]]:
        """Note how far the slots are; return those whose completion has ended."""
        self._position = position
        return [(slot, row) for slot, row in self._in_slot.items() if not active[slot]]

    def finish(self, slot: int, completion: Completion) -> None:
        """Keep a completion and free its slot."""
        row = self._in_slot.pop(slot)
        self._found[row.request][row.completion] = completion
