"""Which sequences share a row: first fit, longest first."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

from ..registry import ZootomyError
from .sequences import Sequences
from .shapes import Shape, cheapest, is_worth_it, price


@dataclass(frozen=True)
class Row:
    """What stands in a row.

    Attributes:
        prompts: sequences whose prompts stand at the beginning, for all that share them.
        branches: the sequences of each branch; of those without such a prompt with their own.
    """

    prompts: list[int]
    branches: list[list[int]]

    @property
    def members(self) -> list[int]:
        """All sequences of the row."""
        return [n for branch in self.branches for n in branch]


def lay_out(sequences: Sequences, shape: Shape, per_branch: int) -> list[Row]:
    """Deal sequences to rows; equal lengths keep their order. Those without an action are left out.

    Args:
        sequences: N prompts and completions.
        shape: of the rows.
        per_branch: most sequences of a branch (of a row, where it has none).

    Raises:
        ZootomyError: if a sequence is longer than a row.
    """
    return (
        _branches(sequences, shape, per_branch)
        if shape.prompt
        else _plain(sequences, shape.length, per_branch)
    )


def fitting_layout(
    sequences: Sequences, shapes: list[Shape], per_branch: int, attention_length: float
) -> tuple[Shape, list[Row]]:
    """The cheapest of some shapes for a batch, and its rows.

    Args:
        sequences: N prompts and completions.
        shapes: those there are, the usual one first. A single one without branches, beside one
            with them, is for what does not fit these: a run that is to have one shape has one.
        per_branch: as of `lay_out`.
        attention_length: the length at which attention costs as much as the projections.

    Raises:
        ZootomyError: if a sequence is longer than any row.
    """
    fitting = [shape for shape in shapes if _fits(sequences, shape)]
    plain = [shape for shape in shapes if not shape.prompt]
    # What stands with its own prompt has the most room; filling it says what is too long.
    wanted = fitting or (plain or shapes)[:1]
    if len(plain) <= 1:
        wanted = wanted[:1]
    usual = wanted[0]
    layouts = {usual[1:]: lay_out(sequences, usual, per_branch)}
    counts = {usual: len(layouts[usual[1:]])}
    usual_price = price(usual, counts[usual], attention_length)
    for shape in wanted[1:]:
        # It is soon seen that a shape cannot save enough, and takes long to lay sequences out.
        least = price(shape, _fewest_rows(sequences, shape, per_branch), attention_length)
        if is_worth_it(least, usual_price):
            # A layout does not depend on how many rows a micro-batch has.
            if shape[1:] not in layouts:
                layouts[shape[1:]] = lay_out(sequences, shape, per_branch)
            counts[shape] = len(layouts[shape[1:]])
    best = cheapest(counts, usual, attention_length)
    return best, layouts[best[1:]]


def _fewest_rows(sequences: Sequences, shape: Shape, per_branch: int) -> int:
    """Rows that no layout of a shape can do without: its tokens, and its sequences, need room."""
    acting = sequences.lengths > 0
    tokens = (sequences.lengths if shape.prompt else sequences.totals)[acting].sum()
    room = shape.branch * shape.branches
    return max(-(-int(tokens) // room), -(-int(acting.sum()) // (per_branch * shape.branches)))


def _fits(sequences: Sequences, shape: Shape) -> bool:
    acting = sequences.lengths > 0
    if not acting.any():
        return True
    if shape.prompt:
        longest = sequences.prompt_lengths[acting].max(), sequences.lengths[acting].max()
        return longest[0] <= shape.prompt and longest[1] <= shape.branch
    return sequences.totals[acting].max() <= shape.length


def _plain(sequences: Sequences, row_length: int, per_row: int) -> list[Row]:
    totals, lengths = sequences.totals.tolist(), sequences.lengths.tolist()
    room = np.full(len(totals), row_length)  # of each row; none once it holds as many as it may
    layout: list[Row] = []
    for n in _longest_first(sequences.totals):
        total = totals[n]
        if not lengths[n]:
            continue
        if total > row_length:
            raise ZootomyError(
                f"Sequence {n} has {total} tokens ({len(sequences.prompts[n])} of the prompt "
                f"and {lengths[n]} of the completion), more than row_length={row_length}; raise "
                "row_length or shorten the prompts."
            )
        row = int((room >= total).argmax())
        if row == len(layout):
            layout.append(Row([], [[]]))
        members = layout[row].branches[0]
        members.append(n)
        room[row] = 0 if len(members) == per_row else room[row] - total
    return layout


def _branches(sequences: Sequences, shape: Shape, per_branch: int) -> list[Row]:
    """Completions go where their prompt stands already, if a branch has room for them."""
    layout: list[Row] = []
    room: list[list[int]] = []  # of each branch; none once it holds as many as it may
    most = np.zeros(len(sequences), np.int64)  # of any branch of a row
    prompt_room = np.zeros(len(sequences), np.int64)
    lengths, prompt_lengths = sequences.lengths.tolist(), sequences.prompt_lengths.tolist()
    for group in _by_prompt(sequences):
        standing: list[int] = []  # the rows in which its prompt stands
        for n in group:
            prompt, length = prompt_lengths[n], lengths[n]
            for row in standing:
                if max(room[row]) >= length:
                    break
            else:
                _check_fits(n, prompt, length, shape)
                most[standing] = [max(room[row]) for row in standing]
                fits = (prompt_room >= prompt) & (most >= length)
                row = int(np.argmax(fits)) if fits.any() else len(layout)
                insort(standing, row)
                if row == len(layout):
                    layout.append(Row([], [[] for _ in range(shape.branches)]))
                    room.append([shape.branch] * shape.branches)
                    prompt_room[row] = shape.prompt
                layout[row].prompts.append(n)
                prompt_room[row] -= prompt
            free = room[row]
            branch = next(k for k, left in enumerate(free) if left >= length)
            members = layout[row].branches[branch]
            members.append(n)
            free[branch] = 0 if len(members) == per_branch else free[branch] - length
        most[standing] = [max(room[row]) for row in standing]
    return layout


def _check_fits(n: int, prompt: int, length: int, shape: Shape) -> None:
    """Refuse what would be written over its neighbours."""
    if prompt > shape.prompt or length > shape.branch:
        raise ZootomyError(
            f"Sequence {n} has {prompt} tokens of the prompt and {length} of the completion, but "
            f"rows have room for {shape.prompt} and branches for {shape.branch}; raise "
            "row_length or shorten the prompts."
        )


def _by_prompt(sequences: Sequences) -> list[list[int]]:
    """Those with an action, those of a prompt together, its longest completion first."""
    groups: dict[int, list[int]] = {}
    lengths, first = sequences.lengths.tolist(), sequences.same_prompt
    for n in _longest_first(sequences.lengths):
        if lengths[n]:
            groups.setdefault(first[n], []).append(n)
    return list(groups.values())


def _longest_first(lengths: np.ndarray) -> list[int]:
    return np.argsort(-lengths, kind="stable").tolist()
