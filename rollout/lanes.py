"""How a call is dealt to lanes: groups of slots, each with a thread that runs its programs.

On a CPU most of a decode step is loops and sums that one core computes while the others wait. Two
programs at a time, of half the slots each, keep both busy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax

from .buckets import fit, slot_ladder

# A product of fewer rows takes about as long, since it first lays out all the weights.
LANE_ROWS = 32
# Where a layer has few weights its products are so little of a step that half the rows pay too.
SMALL_LAYER = 2**23  # bytes, all weights shared out over the layers
UNEVEN = 1.25  # times the mean that a lane may have to do


class Places(NamedTuple):
    """Where the completions of a call grow.

    Attributes:
        lanes: the requests of each lane, by index.
        slots: of each lane.
        shared: how many slots side by side start from one prompt.
    """

    lanes: list[list[int]]
    slots: int
    shared: int


def cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lane_rows(params: object, layers: int) -> int:
    """How many rows another lane takes to pay, with the weights of a model of some layers."""
    size = sum(array.nbytes for array in jax.tree.leaves(params))
    return LANE_ROWS // 2 if size <= SMALL_LAYER * layers else LANE_ROWS


def deal(
    counts: Sequence[int],
    lengths: Sequence[int],
    *,
    max_slots: int,
    most: int,
    rows: int,
    parts: int,
) -> Places:
    """Deal the requests of a call to lanes of the same shape.

    A prompt is shared where all have as many completions and none waits: a slot that is taken
    again later takes another prompt than its neighbours. On a mesh prompts are spread as slots
    are, and must divide over it. Lanes are fewer where else a completion would wait for a slot, or
    one lane would have much more to do than others.

    Args:
        counts: completions of each request.
        lengths: tokens of each prompt; those of like length are spread, so that lanes read alike.
        max_slots: of all lanes together.
        most: lanes.
        rows: to pay for another lane.
        parts: into how many a mesh spreads the rows.
    """
    total = sum(counts)
    for number in range(max(1, min(most, min(total, max_slots) // rows, len(counts))), 0, -1):
        lanes = _dealt(counts, lengths, number)
        load = max(sum(counts[request] for request in lane) for lane in lanes)
        room = max_slots // number
        if load * number <= UNEVEN * total and (load <= room or total > max_slots):
            break
    largest, shared = max(len(lane) for lane in lanes), counts[0]
    if largest * shared <= room and set(counts) == {shared}:
        prompts = fit(largest, slot_ladder(room // shared))
        if prompts % parts == 0:
            return Places(lanes, prompts * shared, shared)
    return Places(lanes, fit(load, slot_ladder(room)), 1)


def _dealt(counts: Sequence[int], lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """The largest first, each to the lane that has least to do."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    loads = [0] * lanes
    for request in sorted(range(len(counts)), key=lambda i: (-counts[i], -lengths[i])):
        lane = loads.index(min(loads))
        dealt[lane].append(request)
        loads[lane] += counts[request]
    return dealt
