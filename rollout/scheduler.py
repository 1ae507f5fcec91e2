"""Which completion grows in which slot: the host's side of continuous batching."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FREE_SHARE = 8  # the decode loop returns for new work when an eighth of the slots is free
SHRINK = 4  # the last completions move to a quarter of the slots ...
NARROWER = 4  # prompts of a quarter of the width, or of the rows, are read by a program of theirs
WORTH_NARROWING = 2048  # ... if so many tokens of padding, about, are saved
WORTH_SHRINKING = 64  # ... if this many tokens may still come: it takes a program of its own


@dataclass(frozen=True)
class Row:
    """A completion to be sampled: its request, its index there, its prompt's row when read."""

    request: int
    completion: int
    batch_row: int


class Schedule:
    """The completions of one lane: waiting for their prompt, for a slot, growing, finished.

    Args:
        prompts: token ids, one sequence a request.
        n: completions of each.
        requests: indices of those that are sampled here.
        slots: how many grow at the same time.
        shared: how many slots side by side start from one prompt. More than 1 takes as many
            completions of each prompt, and a slot for every one.
        limit: tokens a completion.
        early: whether finished completions are wanted while the last ones grow.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        n: Sequence[int],
        requests: Sequence[int],
        *,
        slots: int,
        shared: int,
        limit: int,
        early: bool = False,
    ):
        self.prompts = prompts
        self.slots = slots
        self.shared = shared
        self.apart = shared > 1
        """Whether prompts are held apart from the slots."""
        self._n = n
        self._limit = limit
        self._early = early
        # Prompts of like length are read together, so that little is padded.
        self._unread = deque(sorted(requests, key=lambda i: -len(prompts[i])))
        self._read: deque[Row] = deque()
        self._in_slot: dict[int, Row] = {}
        self._count = np.zeros(slots, np.int32)

    @property
    def held(self) -> int:
        """Number of prompts that the slots start from."""
        return self.slots // self.shared

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
        """Number of free slots at which decoding should pause; out of reach if nothing is to do."""
        if self.waiting:
            return max(1, self.slots // FREE_SHARE)
        wanted = self.slots - self._fewer if self._worth_shrinking else self.slots + 1
        if not self._early:
            return wanted
        return min(wanted, self.free + max(1, len(self._in_slot) // FREE_SHARE))

    @property
    def shrinkable(self) -> bool:
        """Whether the completions that still grow should move to fewer slots."""
        return self._worth_shrinking and len(self._in_slot) <= self._fewer

    @property
    def steady(self) -> bool:
        """Whether what comes next is known whatever ends: decode until a share has ended.

        That stays so, since no completion comes any more and tokens only grow in number.
        """
        return self._early and not self.waiting and not self._worth_shrinking

    @property
    def _fewer(self) -> int:
        return self.slots // SHRINK

    @property
    def _worth_shrinking(self) -> bool:
        if self.waiting or not self._in_slot or self._fewer < 2:
            return False
        return self._limit - min(self._count[slot] for slot in self._in_slot) >= WORTH_SHRINKING

    @property
    def furthest(self) -> int:
        """Tokens in the fullest slot in which a completion grows."""
        return max(
            int(self._count[slot]) + (0 if self.apart else len(self.prompts[row.request]))
            for slot, row in self._in_slot.items()
        )

    @property
    def longest_unread(self) -> int:
        """Tokens of the longest prompt that was not read yet."""
        return len(self.prompts[self._unread[0]])

    def next_prompts(self, rows: int, width: int) -> list[Sequence[int]]:
        """The next prompts to be read together; their completions become readable.

        Args:
            rows: at most so many.
            width: tokens to which they are padded. Short prompts are left for a narrower batch if
                there are enough of them to pay for another program.
        """
        taken = []
        while self._unread and len(taken) < rows:
            rest = min(rows - len(taken), len(self._unread))
            short = len(self.prompts[self._unread[0]]) * NARROWER <= width
            if taken and short and rest * width >= WORTH_NARROWING:
                break
            taken.append(self._unread.popleft())
        for batch_row, request in enumerate(taken):
            self._read.extend(Row(request, i, batch_row) for i in range(self._n[request]))
        return [self.prompts[request] for request in taken]

    def assign(self) -> list[tuple[int, Row]]:
        """Give free slots to completions whose prompt is read, and their first token with them."""
        free = [slot for slot in range(self.slots) if slot not in self._in_slot]
        assigned = [(slot, self._read.popleft()) for slot in free[: len(self._read)]]
        self._in_slot.update(assigned)
        for slot, _ in assigned:
            self._count[slot] = 1
        return assigned

    def shrink(self) -> np.ndarray:
        """Go on with a quarter of the slots.

        Returns:
            `[slots]` int32, which of the old slots become the new ones, the growing ones first.
        """
        busy = list(self._in_slot)
        idle = [slot for slot in range(self.slots) if slot not in self._in_slot]
        kept = np.asarray((busy + idle)[: self._fewer], np.int32)
        self._in_slot = dict(enumerate(self._in_slot.values()))
        self._count = self._count[kept]
        self.slots = len(kept)
        self.shared = 1
        return kept

    def update(self, active: np.ndarray, count: np.ndarray) -> list[tuple[int, Row]]:
        """Note how far the slots are; return those whose completion has ended, by request."""
        self._count = np.array(count)
        done = [(slot, row) for slot, row in self._in_slot.items() if not active[slot]]
        return sorted(done, key=lambda item: (item[1].request, item[1].completion))

    def finish(self, slot: int) -> None:
        """Free the slot of a completion that has ended."""
        del self._in_slot[slot]
