"""Row shapes: a few, so that few programs are compiled and short batches cost little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A smaller shape is taken only where it saves at least this share, since each one that is used is
# compiled once.
_WORTH_A_PROGRAM = 0.25
# From this many tokens a micro-batch on, a run may use several shapes without being told to.
_SEVERAL_FROM = 2048
_SEVERAL = 4


class Shape(NamedTuple):
    """Rows of a micro-batch and tokens of a row.

    Attributes:
        rows: R.
        length: L.
        prompt: P, room for prompts at the beginning of a row; 0: sequences stand together.
        branches: K, equal parts of the rest of a row, whose completions read those prompts.
    """

    rows: int
    length: int
    prompt: int = 0
    branches: int = 1

    @property
    def branch(self) -> int:
        """C, tokens of a branch."""
        return (self.length - self.prompt) // self.branches


def row_shapes(
    rows: int, length: int, wanted: int | None, devices: int, length_devices: int = 1
) -> list[Shape]:
    """The shapes that a run may use, the full one first.

        (R, L), (R/2, L), (2R, L/2), (R, L/2), (4R, L/4), (2R, L/4), ...

    Args:
        rows: R of the full shape.
        length: L of the full shape.
        wanted: how many; None: 4 where the full shape has 2,048 tokens or more, else 1.
        devices: what rows are spread over; every R is a multiple of it.
        length_devices: what the tokens of a row are spread over, likewise.

    Returns:
        At most `wanted` different shapes.
    """
    if wanted is None:
        wanted = _SEVERAL if rows * length >= _SEVERAL_FROM else 1
    found = [Shape(rows, length)]
    for n in range(1, wanted):
        halvings, half = divmod(n, 2)
        shorter = -(-length // (2**halvings * length_devices)) * length_devices
        count = rows * length // shorter // (1 + half) // devices * devices
        shape = Shape(max(devices, count), shorter)
        if shape not in found:
            found.append(shape)
    return found


def branched(full: Shape, prompt: int, group: int, devices: int) -> Shape | None:
    """Rows in which completions share their prompt; each takes the place of K rows.

    Args:
        full: the shape without branches.
        prompt: P, tokens of the longest prompt.
        group: completions of a prompt; K is a divisor, so that groups fill rows.
        devices: as of `row_shapes`.

    Returns:
        None where a row would have one branch, or no room for a completion behind the prompt.
    """
    most = full.rows // devices
    branches = max(n for n in range(1, group + 1) if group % n == 0 and n <= most)
    if branches == 1 or full.length <= prompt:
        return None
    rows = full.rows // (branches * devices) * devices
    return Shape(rows, prompt + branches * (full.length - prompt), prompt, branches)


def cost(shape: Shape, attention_length: float) -> float:
    """What a pass over rows of a shape costs, in tokens of projections.

        R · (L + (P² + K C (P + C)) / attention_length)        C = (L − P) / K

    Args:
        shape: R, L, P and K.
        attention_length: the row length at which attention costs as much as the projections.
    """
    seen = shape.prompt**2 + shape.branches * shape.branch * (shape.prompt + shape.branch)
    return shape.rows * (shape.length + seen / attention_length)


def price(shape: Shape, rows: int, attention_length: float) -> float:
    """What a batch costs that fills so many rows of a shape, in whole micro-batches; see `cost`."""
    return -(-max(1, rows) // shape.rows) * cost(shape, attention_length)


def is_worth_it(price: float, usual: float) -> bool:
    """Whether a shape saves enough, by the prices of a batch in it and in the usual one."""
    return price <= (1 - _WORTH_A_PROGRAM) * usual


def cheapest(counts: dict[Shape, int], full: Shape, attention_length: float) -> Shape:
    """The shape for a batch; it depends on the lengths and on which prompts are equal.

    Args:
        counts: the rows that the batch fills in each shape that can hold its longest sequence.
        full: the usual shape.
        attention_length: as of `cost`.

    Returns:
        The usual shape, unless another saves a quarter of its cost.
    """
    prices = {shape: price(shape, rows, attention_length) for shape, rows in counts.items()}
    best = min(prices, key=prices.__getitem__)
    return best if is_worth_it(prices[best], prices[full]) else full


def balance(costs: Sequence[float], micro_batches: int, rows: int) -> list[list[int]]:
    """Spread rows over micro-batches so that all cost about the same.

    The dearest first, each to the micro-batch that has cost least so far and has room.

    Args:
        costs: of each row.
        micro_batches: how many.
        rows: R, most rows a micro-batch.

    Returns:
        The rows of each micro-batch, in order.
    """
    members: list[list[int]] = [[] for _ in range(micro_batches)]
    spent = [0.0] * micro_batches
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        n = min((n for n in range(micro_batches) if len(members[n]) < rows), key=spent.__getitem__)
        members[n].append(row)
        spent[n] += costs[row]
    return [sorted(one) for one in members]
