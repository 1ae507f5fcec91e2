"""Which completion grows in which slot."""

import numpy as np
from zootomy.rollout.scheduler import WORTH_SHRINKING, Row, Schedule


def state(slots, active, count=1):
    return np.isin(np.arange(slots), active), np.full(slots, count)


def make_schedule(prompts, n, *, slots, limit, shared=1, early=False):
    return Schedule(prompts, n, range(len(n)), slots=slots, shared=shared, limit=limit, early=early)


def test_a_free_slot_takes_the_next_completion_and_results_keep_their_order():
    schedule = make_schedule([[1, 1, 1], [2, 2], [3]], [2, 1, 1], slots=2, limit=5)
    assert schedule.next_prompts(2, 3) == [[1, 1, 1], [2, 2]]
    assert schedule.assign() == [(0, Row(0, 0, 0)), (1, Row(0, 1, 0))]
    assert schedule.free_enough == 1  # something waits: return at the first free slot
    assert schedule.update(*state(2, [0])) == [(1, Row(0, 1, 0))]
    schedule.finish(1)
    assert schedule.assign() == [(1, Row(1, 0, 1))]
    assert not schedule.readable
    assert schedule.waiting
    schedule.update(*state(2, []))
    schedule.finish(1)
    schedule.finish(0)
    assert schedule.next_prompts(2, 3) == [[3]]
    assert schedule.assign() == [(0, Row(2, 0, 0))]
    assert schedule.free_enough == 3  # nothing waits: decode to the end
    schedule.finish(0)
    assert not schedule.unfinished


def test_prompts_of_like_length_are_read_together(monkeypatch):
    monkeypatch.setattr("zootomy.rollout.scheduler.WORTH_NARROWING", 16)
    prompts = [[1], [2] * 8, [3, 3], [4] * 3, [5] * 7]
    schedule = make_schedule(prompts, [1] * 5, slots=5, limit=5)
    assert schedule.longest_unread == 8
    # [3, 3] and [1] are a quarter of 8; two of them padded to 8 are 16 tokens
    assert [len(p) for p in schedule.next_prompts(8, 8)] == [8, 7, 3]
    assert schedule.longest_unread == 2
    assert schedule.next_prompts(8, 2) == [[3, 3], [1]]
    # one alone is not worth a program
    alone = make_schedule(prompts[:2], [1] * 2, slots=5, limit=5)
    assert [len(p) for p in alone.next_prompts(8, 8)] == [8, 1]


def test_finished_completions_are_wanted_while_the_last_ones_grow():
    schedule = make_schedule([[1]], [16], slots=16, limit=5, early=True)
    schedule.next_prompts(1, 1)
    schedule.assign()
    assert schedule.free_enough == 2  # an eighth
    for slot, _ in schedule.update(*state(16, range(3, 16))):
        schedule.finish(slot)
    assert schedule.free_enough == 3 + 1  # 13 grow


def test_it_is_steady_once_nothing_waits_and_nothing_is_to_move():
    schedule = make_schedule([[1]], [5], slots=4, limit=5, early=True)
    schedule.next_prompts(1, 1)
    schedule.assign()
    assert not schedule.steady  # one waits for a slot
    ((slot, _),) = schedule.update(*state(4, [1, 2, 3]))
    schedule.finish(slot)
    schedule.assign()
    assert schedule.steady
    # Without early ends a call decodes to its own end; long ones will move to fewer slots.
    for changes in ({"early": False}, {"limit": WORTH_SHRINKING + 1}):
        other = make_schedule([[1]], [8], **{"slots": 8, "limit": 5, "early": True, **changes})
        other.next_prompts(1, 1)
        other.assign()
        assert not other.steady


def test_the_fullest_slot_is_one_in_which_a_completion_grows():
    schedule = make_schedule([[1]], [3], slots=4, limit=5)
    schedule.next_prompts(1, 1)
    schedule.assign()
    schedule.update(np.ones(4, bool), np.array([4, 9, 2, 50]))  # the fourth slot is free
    assert schedule.furthest == 1 + 9
    apart = make_schedule([[1] * 7], [3], slots=3, shared=3, limit=5)
    apart.next_prompts(1, 7)
    apart.assign()
    apart.update(np.ones(3, bool), np.array([4, 9, 2]))
    assert apart.held == 1
    assert apart.furthest == 9  # the prompt stands elsewhere


def test_a_completion_in_a_slot_has_its_first_token():
    schedule = make_schedule([[1], [2, 2, 2]], [1, 1], slots=1, limit=WORTH_SHRINKING + 1)
    assert schedule.next_prompts(2, 3) == [[2, 2, 2], [1]]
    schedule.assign()
    assert schedule.furthest == 3 + 1
    schedule.update(*state(1, [], count=7))
    schedule.finish(0)
    assert schedule.assign() == [(0, Row(0, 0, 1))]
    assert schedule.furthest == 1 + 1  # whatever the slot held before


def test_the_last_completions_move_to_a_quarter_of_the_slots():
    schedule = make_schedule([[1]], [8], slots=8, limit=WORTH_SHRINKING + 1)
    schedule.next_prompts(1, 1)
    schedule.assign()
    schedule.update(*state(8, range(8)))
    assert schedule.free_enough == 6  # return when two are left
    for slot, _ in schedule.update(*state(8, [3, 6])):
        schedule.finish(slot)
    assert schedule.shrinkable
    assert schedule.shrink().tolist() == [3, 6]
    assert schedule.slots == 2
    assert not schedule.shrinkable
    assert [row.completion for _, row in schedule.update(*state(2, []))] == [3, 6]


def test_too_few_tokens_to_come_are_not_worth_a_move():
    schedule = make_schedule([[1]], [8], slots=8, limit=WORTH_SHRINKING)
    schedule.next_prompts(1, 1)
    schedule.assign()
    schedule.update(*state(8, [3, 6]))
    assert schedule.free_enough == 9
    assert not schedule.shrinkable
