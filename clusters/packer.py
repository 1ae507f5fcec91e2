"""Sequences into the micro-batches of a pass, the same ones once."""

from __future__ import annotations

import numpy as np

from ..models import ModelConfig
from ..registry import ZootomyError
from .layout import fitting_layout
from .packing import MicroBatch, pack_rows
from .sequences import Sequences
from .shapes import Shape


class Packer:
    """Packs sequences into the cheapest of some shapes.

    It remembers the last: a step's passes are about the same sequences.

    Args:
        sequences_per_row: most sequences a row, or a branch of one.
        sizes: of the actor: token ids are checked against V, since a gather would not complain, and
            D sets the length at which attention costs as much as the projections.
    """

    def __init__(self, sequences_per_row: int, sizes: ModelConfig):
        self._sequences_per_row = sequences_per_row
        self._vocab_size = sizes.vocab_size
        # A block has about 12 D² weights, 24 D² operations a token; attention 4 D a token and key.
        self._attention_length = 6.0 * sizes.hidden_size
        self._last: tuple[Sequences, list[Shape], list[MicroBatch]] | None = None

    def __call__(self, sequences: Sequences, shapes: list[Shape]) -> list[MicroBatch]:
        """Micro-batches in which each sequence with an action stands once.

        Args:
            sequences: N prompts and completions.
            shapes: as of `fitting_layout`.

        Raises:
            ZootomyError: a token outside the vocabulary, or a sequence longer than a row.
        """
        last = self._last  # Another thread may score completions meanwhile.
        if last is not None and last[0] is sequences and last[1] == shapes:
            return last[2]
        self._check_vocabulary(sequences)
        length, per_row = self._attention_length, self._sequences_per_row
        shape, layout = fitting_layout(sequences, shapes, per_row, length)
        micros = pack_rows(sequences, layout, shape, per_row, length)
        self._last = sequences, shapes, micros
        return micros

    def _check_vocabulary(self, sequences: Sequences) -> None:
        """Refuse tokens that the model does not have, naming the first sequence with one."""
        parts = zip(sequences.prompts, sequences.completions, strict=True)
        flat = [np.zeros(0, np.int32), *(ids for pair in parts for ids in pair)]
        ids = np.concatenate(flat)
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(wrong):
            n = int(np.searchsorted(np.cumsum(sequences.totals), wrong[0], side="right"))
            raise ZootomyError(
                f"Sequence {n} holds the token {ids[wrong[0]]}, which is outside the "
                f"vocabulary 0..{self._vocab_size - 1}; is the tokenizer the model's?"
            )
