"""Sequences into rows of one shape, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy import ZootomyError
from zootomy.clusters import Sequences, Shape, pack

SMALL = Sequences([[1, 2], [3], [4, 5, 6]], [[7], [8, 9], [10, 11]], width=3)


def test_hand_packed():
    # Lengths 3, 3, 5 into rows of 7: the longest first, alone; then the two of 3 together.
    (micro,) = pack(SMALL, Shape(rows=2, length=7), sequences_per_row=2)
    rows = micro.rows
    np.testing.assert_array_equal(rows.tokens, [[4, 5, 6, 10, 11, 0, 0], [1, 2, 7, 3, 8, 9, 0]])
    np.testing.assert_array_equal(rows.positions, [[0, 1, 2, 3, 4, 0, 0], [0, 1, 2, 0, 1, 2, 0]])
    np.testing.assert_array_equal(rows.segments, [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 2, 2, 2, 0]])
    np.testing.assert_array_equal(micro.sequence_ids, [2, -1, 0, 1])
    np.testing.assert_array_equal(rows.lengths, [2, 0, 1, 2])
    np.testing.assert_array_equal(rows.actions, [[3, 4, 0], [0, 0, 0], [2, 0, 0], [4, 5, 0]])
    # The column that predicts an action is the one before it; at the action itself a model
    # would be asked for a token that it has read.
    np.testing.assert_array_equal(rows.before, [[0, 0, 1, 2, 3, 4, 5]] * 2)
    assert rows.reads is None


def test_gather_and_scatter():
    (micro,) = pack(SMALL, Shape(rows=2, length=7), sequences_per_row=2)
    batch = {"a": np.array([[1.0], [2.0], [3.0]]), "flag": np.array([True, True, False])}
    taken = micro.gather(batch)
    np.testing.assert_array_equal(taken["a"], [[3.0], [0.0], [1.0], [2.0]])
    np.testing.assert_array_equal(taken["flag"], [False, False, True, True])
    back = np.zeros((3, 1))
    micro.scatter(taken["a"], back)
    np.testing.assert_array_equal(back, batch["a"])


@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=9),
    rows=st.integers(1, 4),
    row_length=st.integers(9, 20),
    per_row=st.integers(1, 3),
)
def test_every_action_stands_once_after_its_own_past(lengths, rows, row_length, per_row):
    rng = np.random.default_rng(0)
    sequences = Sequences(
        [rng.integers(1, 99, p) for p, _ in lengths],
        [rng.integers(1, 99, c) for _, c in lengths],
        width=5,
    )
    micros = pack(sequences, Shape(rows, row_length), per_row)
    seen = []
    for micro in micros:
        assert micro.rows.tokens.shape == (rows, row_length)
        assert micro.rows.actions.shape == (rows * per_row, 5)
        for slot, n in enumerate(micro.sequence_ids):
            if n < 0:
                assert micro.rows.lengths[slot] == 0
                continue
            seen.append(n)
            prompt, completion = sequences.prompts[n], sequences.completions[n]
            row, actions = slot // per_row, micro.rows.actions[slot, : len(completion)]
            np.testing.assert_array_equal(micro.rows.tokens[row, actions], completion)
            np.testing.assert_array_equal(micro.rows.before[row, actions], actions - 1)
            own = micro.rows.segments[row] == micro.rows.segments[row, actions[0]]
            np.testing.assert_array_equal(
                micro.rows.tokens[row, own], np.concatenate([prompt, completion])
            )
            np.testing.assert_array_equal(micro.rows.positions[row, own], np.arange(own.sum()))
    assert sorted(seen) == [n for n, (_, c) in enumerate(lengths) if c]


def test_sequences_know_their_shapes():
    np.testing.assert_array_equal(SMALL.lengths, [1, 2, 2])
    np.testing.assert_array_equal(SMALL.mask, [[1, 0, 0], [1, 1, 0], [1, 1, 0]])
    np.testing.assert_array_equal(SMALL.tokens, [[7, 0, 0], [8, 9, 0], [10, 11, 0]])
    taken = SMALL.take(np.array([2, 0]))
    np.testing.assert_array_equal(taken.tokens, [[10, 11, 0], [7, 0, 0]])
    assert taken.prompts[0].tolist() == [4, 5, 6]
    # those of all three would be [1, 2, 2]
    np.testing.assert_array_equal(taken.lengths, [2, 1])
    with pytest.raises(ValueError, match="read-only"):
        taken.lengths[0] = 3


def test_sequences_know_equal_prompts():
    sequences = Sequences([[1, 2], [1], [1, 2], [2], [1]], [[3]] * 5, width=1)
    assert sequences.same_prompt == [0, 1, 0, 3, 1]
    assert sequences.take([2, 0, 1]).same_prompt == [0, 0, 2]


def test_closed_rows_take_no_more():
    # Longest first, two a row: 0 and 1 close the first row, although 2 would fit beside them.
    sequences = Sequences([[1]] * 3, [[2, 3], [2], [2]], width=2)
    micros = pack(sequences, Shape(2, 9), sequences_per_row=2)
    assert micros[0].sequence_ids.tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ([[1], []], [[1], [2]], 3),
            "Prompt 1 is empty; the first action needs a token before it (a beginning-of-text "
            "token will do).",
        ),
        (([[1]], [[1, 2, 3, 4]], 3), "Completion 0 has 4 tokens, more than width=3."),
        (
            ([[1]], [[1], [2]], 3),
            "There are 1 prompts but 2 completions; give one completion a prompt (repeat a "
            "prompt for each of its completions).",
        ),
        (
            ([[0.5]], [[1]], 3),
            "Prompt 0 must be a list of token ids, got an array of shape (1,) and type float64.",
        ),
        (([[1]], [[1]], 0), "width must be at least 1, got 0."),
    ],
)
def test_wrong_sequences(arguments, message):
    with pytest.raises(ZootomyError) as error:
        Sequences(*arguments)
    assert str(error.value) == message


def test_longer_than_a_row():
    with pytest.raises(ZootomyError) as error:
        pack(SMALL, Shape(rows=1, length=4), sequences_per_row=1)
    assert str(error.value) == (
        "Sequence 2 has 5 tokens (3 of the prompt and 2 of the completion), more than "
        "row_length=4; raise row_length or shorten the prompts."
    )


def test_long_rows_have_costs_too():
    """Squared as int32, 50,000 tokens cost less than nothing, and both went to one pass."""
    long, short = np.zeros(50_000, int), np.zeros(20_000, int)
    sequences = Sequences([[1]] * 4, [long, short, short, long], 50_000)
    micros = pack(sequences, Shape(3, 50_001), 1, attention_length=1.0)
    assert [sorted(micro.rows.lengths) for micro in micros] == [[0, 20_000, 50_000]] * 2
