"""From sequences to packed rows, and the way back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..registry import ZootomyError
from .shapes import Shape, balance, cheapest


class Sequences:
    """N prompts with their completions, as token ids.

    Args:
        prompts: N one-dimensional integer arrays, each of at least one token.
        completions: N one-dimensional integer arrays of at most `width` tokens; one may be empty.
        width: T, the width to which results are padded; keep it the same all through a run.

    Raises:
        ZootomyError: for an empty prompt, a completion longer than `width`, or what is no list of
            token ids.
    """

    def __init__(
        self,
        prompts: Iterable[Sequence[int] | np.ndarray],
        completions: Iterable[Sequence[int] | np.ndarray],
        width: int,
    ):
        self.prompts = tuple(_ids("prompt", n, ids) for n, ids in enumerate(prompts))
        self.completions = tuple(_ids("completion", n, ids) for n, ids in enumerate(completions))
        self.width = width
        if len(self.prompts) != len(self.completions):
            raise ZootomyError(
                f"There are {len(self.prompts)} prompts but {len(self.completions)} completions; "
                "give one completion a prompt (repeat a prompt for each of its completions)."
            )
        if width < 1:
            raise ZootomyError(f"width must be at least 1, got {width}.")
        for n, (prompt, completion) in enumerate(zip(self.prompts, self.completions, strict=True)):
            if not len(prompt):
                raise ZootomyError(
                    f"Prompt {n} is empty; the first action needs a token before it "
                    "(a beginning-of-text token will do)."
                )
            if len(completion) > width:
                raise ZootomyError(
                    f"Completion {n} has {len(completion)} tokens, more than width={width}."
                )

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> np.ndarray:
        """`[N]` int32, tokens of each completion."""
        return np.array([len(completion) for completion in self.completions], np.int32)

    @property
    def mask(self) -> np.ndarray:
        """`[N, T]` float32, 1 on the tokens of the completions."""
        return (np.arange(self.width) < self.lengths[:, None]).astype(np.float32)

    @property
    def tokens(self) -> np.ndarray:
        """`[N, T]` int32, the completions, 0 after their end."""
        tokens = np.zeros((len(self), self.width), np.int32)
        for row, completion in zip(tokens, self.completions, strict=True):
            row[: len(completion)] = completion
        return tokens

    def take(self, indices: Iterable[int] | np.ndarray) -> Sequences:
        """Some of the sequences, e.g. those of a mini-batch, in that order."""
        chosen = [int(index) for index in indices]
        return Sequences(
            [self.prompts[n] for n in chosen], [self.completions[n] for n in chosen], self.width
        )


class Rows(NamedTuple):
    """What the model sees of a micro-batch. Slot m = r * K + k is the k-th sequence of row r.

    Attributes:
        tokens: `[R, L]` int32, 0 in the padding.
        positions: `[R, L]` int32, from 0 in each sequence.
        segments: `[R, L]` int32, 1, 2, ... in each row, 0 in the padding.
        index: `[M, T]` int32, the column of its own row that predicts action t: the one before it.
        lengths: `[M]` int32, tokens of the completion; 0 in an empty slot.
    """

    tokens: Any
    positions: Any
    segments: Any
    index: Any
    lengths: Any


class MicroBatch(NamedTuple):
    """One forward pass.

    Attributes:
        rows: what the model sees.
        sequence_ids: `[M]` int32, which of the N sequences is in the slot; -1: none.
    """

    rows: Rows
    sequence_ids: np.ndarray

    def gather(self, batch: Any) -> Any:
        """Leaves `[N, ...]` to leaves `[M, ...]`; zeros in the empty slots."""
        empty = self.sequence_ids < 0
        ids = np.where(empty, 0, self.sequence_ids)

        def take(leaf: Any) -> np.ndarray:
            taken = np.asarray(leaf)[ids] if len(leaf) else np.zeros((len(ids), *leaf.shape[1:]))
            taken[empty] = 0
            return taken

        return jax.tree.map(take, batch)

    def scatter(self, values: np.ndarray, into: np.ndarray) -> None:
        """Write `[M, ...]` into the sequences of `[N, ...]`."""
        filled = self.sequence_ids >= 0
        into[self.sequence_ids[filled]] = np.asarray(values)[filled]


def pack(
    sequences: Sequences,
    rows: int,
    row_length: int,
    sequences_per_row: int,
    attention_length: float = math.inf,
) -> list[MicroBatch]:
    """Pack sequences into micro-batches that all have the same shapes and cost about the same.

    First fit, longest first; equal lengths keep their order, so that the result is determined by
    the lengths. Sequences without an action are left out. There is always at least one
    micro-batch, if need be an empty one. A sequence of n tokens costs n + n² / attention_length.

    Args:
        sequences: N prompts and completions.
        rows: R, rows of a micro-batch.
        row_length: L, tokens a row.
        sequences_per_row: K, most sequences a row; a micro-batch has M = R * K slots.
        attention_length: the length at which attention costs as much as the projections.

    Returns:
        Micro-batches in which each sequence with an action stands once.

    Raises:
        ZootomyError: if a sequence is longer than a row.
    """
    layout = _first_fit(sequences, row_length, sequences_per_row)
    totals = _totals(sequences)
    costs = [sum(totals[n] + totals[n] ** 2 / attention_length for n in row) for row in layout]
    micros = []
    for members in balance(costs, max(1, -(-len(layout) // rows)), rows):
        part = [layout[row] for row in members]
        micros.append(_micro_batch(sequences, part, rows, row_length, sequences_per_row))
    return micros


def fitting_shape(
    sequences: Sequences, shapes: list[Shape], sequences_per_row: int, attention_length: float
) -> Shape:
    """The cheapest of some shapes for a batch.

    Args:
        sequences: N prompts and completions.
        shapes: those there are, the full one first.
        sequences_per_row: K.
        attention_length: as of `pack`.
    """
    if len(shapes) == 1:
        return shapes[0]
    totals = [
        total
        for total, row in zip(_totals(sequences), sequences.completions, strict=True)
        if len(row)
    ]
    longest = max(totals, default=0)
    lengths = {shape.length for shape in shapes if shape.length >= longest}
    filled = {n: len(_first_fit(sequences, n, sequences_per_row)) for n in lengths}
    counts = {shape: filled[shape.length] for shape in shapes if shape.length in filled}
    return cheapest(counts, shapes[0], attention_length) if shapes[0] in counts else shapes[0]


def _totals(sequences: Sequences) -> np.ndarray:
    """`[N]` tokens of each prompt with its completion."""
    return np.array(
        [len(p) + len(c) for p, c in zip(sequences.prompts, sequences.completions, strict=True)],
        np.int64,
    )


def _first_fit(sequences: Sequences, row_length: int, per_row: int) -> list[list[int]]:
    totals = _totals(sequences)
    room = np.full(len(totals), row_length)
    places = np.full(len(totals), per_row)
    layout: list[list[int]] = []
    for n in np.argsort(-totals, kind="stable"):
        if not len(sequences.completions[n]):
            continue
        if totals[n] > row_length:
            raise ZootomyError(
                f"Sequence {n} has {totals[n]} tokens ({len(sequences.prompts[n])} of the prompt "
                f"and {len(sequences.completions[n])} of the completion), more than "
                f"row_length={row_length}; raise row_length or shorten the prompts."
            )
        row = int(np.argmax((room >= totals[n]) & (places > 0)))
        if row == len(layout):
            layout.append([])
        layout[row].append(int(n))
        room[row] -= totals[n]
        places[row] -= 1
    return layout


def _micro_batch(
    sequences: Sequences, layout: list[list[int]], rows: int, row_length: int, per_row: int
) -> MicroBatch:
    slots = rows * per_row
    tokens, positions, segments = np.zeros((3, rows, row_length), np.int32)
    index = np.zeros((slots, sequences.width), np.int32)
    lengths = np.zeros(slots, np.int32)
    sequence_ids = np.full(slots, -1, np.int32)
    for r, members in enumerate(layout):
        start = 0
        for k, n in enumerate(members):
            prompt, completion = sequences.prompts[n], sequences.completions[n]
            total, slot = len(prompt) + len(completion), r * per_row + k
            stop = start + total
            tokens[r, start:stop] = np.concatenate([prompt, completion])
            positions[r, start:stop] = np.arange(total)
            segments[r, start:stop] = k + 1
            index[slot, : len(completion)] = np.arange(start + len(prompt) - 1, stop - 1)
            lengths[slot], sequence_ids[slot] = len(completion), n
            start = stop
    return MicroBatch(Rows(tokens, positions, segments, index, lengths), sequence_ids)


def _ids(kind: str, n: int, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(ids)
    if not array.size:
        array = np.zeros(0, np.int32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ZootomyError(
            f"{kind.capitalize()} {n} must be a list of token ids, got an array of shape "
            f"{array.shape} and type {array.dtype}."
        )
    return array.astype(np.int32)
