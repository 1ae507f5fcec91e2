"""Which completion grows in which slot."""

import numpy as np
from zootomy.rollout import Completion
from zootomy.rollout.scheduler import WORTH_SHRINKING, Row, Schedule


def completion(value):
    return Completion(np.int32([value]), np.float32([-1]), "stop", 0)


def state(slots, active, position=9, count=1):
    return np.isin(np.arange(slots), active), np.full(slots, position), np.full(slots, count)


def test_a_free_slot_takes_the_next_completion_and_results_keep_their_order():
    schedule = Schedule([[1], [2, 2], [3]], [2, 1, 1], slots=2, limit=5)
    assert schedule.next_prompts(2) == [[1], [2, 2]]
    assert schedule.assign() == [(0, Row(0, 0, 0)), (1, Row(0, 1, 0))]
    assert schedule.free_enough == 1  # something waits: return at the first free slot
    assert schedule.update(*state(2, [0])) == [(1, Row(0, 1, 0))]
    schedule.finish(1, completion(10))
    assert schedule.assign() == [(1, Row(1, 0, 1))]
    assert not schedule.readable
    assert schedule.waiting
    schedule.update(*state(2, []))
    schedule.finish(1, completion(20))
    schedule.finish(0, completion(11))
    assert schedule.next_prompts(2) == [[3]]
    assert schedule.assign() == [(0, Row(2, 0, 0))]
    assert schedule.free_enough == 3  # nothing waits: decode to the end
    schedule.finish(0, completion(30))
    assert not schedule.unfinished
    tokens = [[int(c.tokens[0]) for c in group] for group in schedule.completions]
    assert tokens == [[11, 10], [20], [30]]


def test_the_furthest_position_is_that_of_growing_completions():
    schedule = Schedule([[1]], [3], slots=4, limit=5)
    schedule.next_prompts(1)
    schedule.assign()
    schedule.update(np.ones(4, bool), np.array([4, 9, 2, 50]), np.ones(4, int))
    assert schedule.furthest == 9


def test_the_last_completions_move_to_a_quarter_of_the_slots():
    schedule = Schedule([[1]], [8], slots=8, limit=WORTH_SHRINKING + 1)
    schedule.next_prompts(1)
    schedule.assign()
    schedule.update(*state(8, range(8)))
    assert schedule.free_enough == 6  # return when two are left
    for slot, _ in schedule.update(*state(8, [3, 6])):
        schedule.finish(slot, completion(slot))
    assert schedule.shrinkable
    assert schedule.shrink().tolist() == [3, 6]
    assert schedule.slots == 2
    assert not schedule.shrinkable
    for slot, row in schedule.update(*state(2, [])):
        schedule.finish(slot, completion(row.completion))
    assert [int(c.tokens[0]) for c in schedule.completions[0]] == list(range(8))


def test_too_few_tokens_to_come_are_not_worth_a_move():
    schedule = Schedule([[1]], [8], slots=8, limit=WORTH_SHRINKING)
    schedule.next_prompts(1)
    schedule.assign()
    schedule.update(*state(8, [3, 6]))
    assert schedule.free_enough == 9
    assert not schedule.shrinkable
