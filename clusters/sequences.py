"""Prompts with their completions, as token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from ..registry import ZootomyError


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

    @cached_property
    def lengths(self) -> np.ndarray:
        """`[N]` int32, tokens of each completion; not to be written to."""
        return _lengths(self.completions)

    @cached_property
    def prompt_lengths(self) -> np.ndarray:
        """`[N]` int32, tokens of each prompt; not to be written to."""
        return _lengths(self.prompts)

    @cached_property
    def same_prompt(self) -> list[int]:
        """The first sequence that has the same prompt, of each."""
        first: dict[bytes, int] = {}
        return [first.setdefault(ids.tobytes(), n) for n, ids in enumerate(self.prompts)]

    @property
    def totals(self) -> np.ndarray:
        """`[N]` int32, tokens of each prompt with its completion."""
        return self.prompt_lengths + self.lengths

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
        if chosen == list(range(len(self))):
            return self  # So that its packing, too, is done once.
        part = object.__new__(Sequences)  # They were checked and copied once.
        part.prompts = tuple(self.prompts[n] for n in chosen)
        part.completions = tuple(self.completions[n] for n in chosen)
        part.width = self.width
        return part


def _lengths(arrays: Sequence[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(ids) for ids in arrays], np.int32)
    lengths.flags.writeable = False
    return lengths


def _ids(kind: str, n: int, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(ids)
    if not array.size:
        array = np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ZootomyError(
            f"{kind.capitalize()} {n} must be a list of token ids, got an array of shape "
            f"{array.shape} and type {array.dtype}."
        )
    return array.astype(np.int32)
