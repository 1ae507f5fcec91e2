"""From sequences to packed rows, and the way back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from .layout import Row, lay_out
from .sequences import Sequences
from .shapes import Shape, balance


class Rows(NamedTuple):
    """What the model sees of a micro-batch. The M slots of sequences are those of row 0, 1, ...

    Attributes:
        tokens: `[R, L]` int32, 0 in the padding.
        positions: `[R, L]` int32, from 0 in each sequence.
        segments: `[R, L]` int32, 1, 2, ... in each row, 0 in the padding.
        before: `[R, L]` int32, the column of the token before, which predicts this one.
        actions: `[M, T]` int32, the column of action t in the row of its slot.
        lengths: `[M]` int32, tokens of the completion; 0 in an empty slot.
        reads: `[R, K, C]` int32 in rows of prompts and branches, as of `Decoder`; else None.
    """

    tokens: Any
    positions: Any
    segments: Any
    before: Any
    actions: Any
    lengths: Any
    reads: Any = None


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
    shape: Shape,
    sequences_per_row: int,
    attention_length: float = math.inf,
) -> list[MicroBatch]:
    """Pack sequences into micro-batches that all have the same shapes and cost about the same.

    The result is determined by the lengths, and by which prompts are equal. Sequences without an
    action are left out. There is always at least one micro-batch, if need be an empty one. A
    sequence of n tokens costs n + n² / attention_length.

    Args:
        sequences: N prompts and completions.
        shape: of a micro-batch.
        sequences_per_row: most sequences a row, or a branch of one.
        attention_length: the length at which attention costs as much as the projections.

    Returns:
        Micro-batches in which each sequence with an action stands once.

    Raises:
        ZootomyError: if a sequence is longer than a row.
    """
    layout = lay_out(sequences, shape, sequences_per_row)
    return pack_rows(sequences, layout, shape, sequences_per_row, attention_length)


def pack_rows(
    sequences: Sequences,
    layout: list[Row],
    shape: Shape,
    sequences_per_row: int,
    attention_length: float = math.inf,
) -> list[MicroBatch]:
    """`pack`, of sequences that were dealt to rows."""
    totals = sequences.totals.astype(float)  # The square of 46,341 tokens is too large for int32.
    each = (totals + totals**2 / attention_length).tolist()
    costs = [sum(each[n] for n in row.members) for row in layout]
    micros = []
    for members in balance(costs, max(1, -(-len(layout) // shape.rows)), shape.rows):
        part = [layout[row] for row in members]
        micros.append(_micro_batch(sequences, part, shape, sequences_per_row))
    return micros


class _Piece(NamedTuple):
    """A prompt or a completion where it stands in a row.

    Attributes:
        ids: its tokens.
        row: r.
        start: the column of the first.
        position: of the first in its sequence.
        segment: of the sequence, or of a prompt that stands for itself.
        read: the segment of such a prompt, for a completion that reads it; else 0.
    """

    ids: np.ndarray
    row: int
    start: int
    position: int
    segment: int
    read: int = 0


def _micro_batch(
    sequences: Sequences, layout: list[Row], shape: Shape, per_branch: int
) -> MicroBatch:
    slots = shape.rows * shape.branches * per_branch
    before = np.tile(np.maximum(np.arange(shape.length, dtype=np.int32) - 1, 0), (shape.rows, 1))
    actions = np.zeros((slots, sequences.width), np.int32)
    lengths = np.zeros(slots, np.int32)
    sequence_ids = np.full(slots, -1, np.int32)
    prompts: list[_Piece] = []
    completions: list[_Piece] = []
    for r, row in enumerate(layout):
        start, ends = 0, {}  # Where the prompts end that stand for themselves.
        for segment, n in enumerate(row.prompts, start=1):
            prompts.append(_Piece(sequences.prompts[n], r, start, 0, segment))
            start += len(sequences.prompts[n])
            ends[sequences.same_prompt[n]] = start, segment
        segment = len(row.prompts)
        for b, members in enumerate(row.branches):
            start = shape.prompt + b * shape.branch
            for slot, n in enumerate(members, start=(r * shape.branches + b) * per_branch):
                prompt, completion, read = sequences.prompts[n], sequences.completions[n], 0
                segment += 1
                if shape.prompt:
                    end, read = ends[sequences.same_prompt[n]]
                    before[r, start] = end - 1
                else:
                    prompts.append(_Piece(prompt, r, start, 0, segment))
                    start += len(prompt)
                completions.append(_Piece(completion, r, start, len(prompt), segment, read))
                start += len(completion)
                lengths[slot], sequence_ids[slot] = len(completion), n
    tokens, positions, segments, reads = _written([*prompts, *completions], shape)
    filled = np.flatnonzero(sequence_ids >= 0)  # In the order of `completions`.
    place, within = _spread(filled * sequences.width, lengths[filled])
    starts = np.array([piece.start for piece in completions], np.int32)
    actions.reshape(-1)[place] = np.repeat(starts, lengths[filled]) + within
    branches = reads[:, shape.prompt :].reshape(shape.rows, shape.branches, -1)
    rows = Rows(tokens, positions, segments, before, actions, lengths)
    return MicroBatch(rows._replace(reads=branches if shape.prompt else None), sequence_ids)


def _written(pieces: list[_Piece], shape: Shape) -> np.ndarray:
    """`[4, R, L]` int32: tokens, positions, segments and reads; 0 where no piece stands."""
    written = np.zeros((4, shape.rows * shape.length), np.int32)
    if pieces:
        ids, *places = zip(*pieces, strict=True)
        row, start, position, segment, read = np.array(places, np.int32)
        lengths = np.array([len(one) for one in ids])
        place, within = _spread(row * shape.length + start, lengths)
        written[0, place] = np.concatenate(ids)
        written[1:, place] = np.repeat([position, segment, read], lengths, axis=1)
        written[1, place] += within
    return written.reshape(4, shape.rows, shape.length)


def _spread(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places from each start on, as many as its length says, and their distances to it."""
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within, within
