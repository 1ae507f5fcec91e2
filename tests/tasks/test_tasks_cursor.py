"""The prompt order: one integer of state, no prompt lost at an epoch's end or a resume."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.tasks import PromptOrder, TaskError


@given(
    size=st.integers(1, 12),
    counts=st.lists(st.integers(0, 30), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_any_batching_gives_the_same_order(size, counts, seed):
    order = PromptOrder(size, seed)
    cursor, taken = 0, []
    for count in counts:
        taken += order.take(cursor, count)
        cursor += count
    assert taken == order.take(0, sum(counts))


def test_every_epoch_holds_every_prompt_once():
    # 7 prompts in batches of 3: the remainder of an epoch is given, not dropped.
    order = PromptOrder(7, seed=1)
    taken = [index for step in range(14) for index in order.take(3 * step, 3)]
    for epoch in range(6):
        assert sorted(taken[7 * epoch : 7 * (epoch + 1)]) == list(range(7))
    assert order.take(0, 7) != order.take(7, 7)


def test_resume_at_the_epoch_boundary_goes_on():
    # Fault 21: 60 steps an epoch, 2 epochs, resumed at 60: 60 more, not 0.
    order = PromptOrder(60, seed=0, epochs=2)
    assert order.remaining(60) == 60
    assert order.epoch(60) == 1
    assert sorted(order.take(60, 60)) == list(range(60))
    # Fault 119: the second epoch's order is that of the uninterrupted run, not the first's again.
    assert order.take(60, 60) == order.take(0, 120)[60:]
    assert order.take(60, 60) != order.take(0, 60)


def test_the_cursor_counts_prompts_consumed_not_loops():
    # Faults 118, 128: 3 batches consumed, each trained on twice: go on with the fourth batch.
    order = PromptOrder(10, seed=0)
    consumed = 3 * 2
    assert order.take(consumed, 2) == order.take(0, 8)[6:]


def test_data_ends_where_the_epochs_do():
    # Fault 34: 5 prompts, batches of 2, one epoch: 2, 2, 1, then nothing; never a wait.
    order = PromptOrder(5, seed=0, epochs=1)
    assert [len(order.take(cursor, 2)) for cursor in (0, 2, 4, 5, 99)] == [2, 2, 1, 0, 0]
    assert order.remaining(4) == 1
    assert PromptOrder(5, seed=0).remaining(4) is None


def test_seeds_give_other_prompts():
    # Fault 89: 2 steps of 1 prompt out of 100; unshuffled, every seed sees [0, 1].
    firsts = Counter(tuple(PromptOrder(100, seed).take(0, 2)) for seed in range(20))
    assert len(firsts) >= 19
    assert PromptOrder(100, 3).take(0, 5) == PromptOrder(100, 3).take(0, 5)


def test_order_is_frozen():
    # A resumed run under another NumPy must see the same prompts.
    assert PromptOrder(6, seed=0).take(0, 12) == [5, 0, 3, 2, 1, 4, 1, 0, 3, 4, 5, 2]


def test_wrong_arguments():
    with pytest.raises(TaskError, match="at least one prompt, got size=0"):
        PromptOrder(0, 0)
    with pytest.raises(TaskError, match="seed of 0 or more, got -1"):
        PromptOrder(3, -1)
    with pytest.raises(TaskError, match="at least one epoch, got epochs=0"):
        PromptOrder(3, 0, epochs=0)
    with pytest.raises(TaskError, match="must be 0 or more, got -1 and 2"):
        PromptOrder(3, 0).take(-1, 2)
