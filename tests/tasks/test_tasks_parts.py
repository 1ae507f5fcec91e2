"""Rewards a token and rewards a turn: where they stand, what they add up to, what is refused."""

import numpy as np
import pytest
from zootomy.tasks import RewardFunction, TaskError, reward_function, score

PROMPTS, TEXTS = ["a", "b"], ["xyz", "u"]
TOKENS = [[5, 6, 7, 1], [8, 1]]
TURNS = [[0, 0, 1, 1], [3, 3]]


def scored(returned, per="token", weight=1.0, others=(), **named):
    function = RewardFunction("f", lambda prompts, completions: returned, weight, per)
    named = {"tokens": TOKENS, "turns": TURNS, **named}
    return score([function, *others], PROMPTS, TEXTS, {}, **named)


def test_a_number_a_token():
    found = scored([[0.5, 0.0, -1.0, 2.0], [0.0, 3.0]], weight=0.5)
    # The component is the bare sum, the total and the parts are weighted.
    assert found.components.tolist() == [[1.5, 3.0]]
    assert found.rewards.tolist() == [0.75, 1.5]
    assert [x.tolist() for x in found.token_rewards] == [[0.25, 0.0, -0.5, 1.0], [0.0, 1.5]]


def test_a_number_a_turn_stands_on_its_last_token():
    found = scored([[0.25, 1.0], [0.5]], per="turn")
    assert [x.tolist() for x in found.token_rewards] == [[0.0, 0.25, 0.0, 1.0], [0.0, 0.5]]
    assert found.rewards.tolist() == [1.25, 0.5]
    # Without turns a completion is one.
    found = scored([[0.25], [0.5]], per="turn", turns=None)
    assert [x.tolist() for x in found.token_rewards] == [[0.0, 0.0, 0.0, 0.25], [0.0, 0.5]]


def test_a_completions_reward_adds_to_the_total_alone():
    others = [
        RewardFunction("whole", lambda prompts, completions: [10.0, None]),
        RewardFunction("last", lambda prompts, completions: [[1.0], [2.0]], 2.0, "turn"),
    ]
    found = scored([[1, 1, 0, 0], None], others=others, turns=None)
    assert found.rewards.tolist() == [14.0, 4.0]
    # 2 · 1 on the last token, and 1 on the first two.
    assert [x.tolist() for x in found.token_rewards] == [[1.0, 1.0, 0.0, 2.0], [0.0, 4.0]]


def test_functions_for_completions_alone_leave_no_parts():
    assert scored([1.0, 0.0], per="completion").token_rewards is None


def test_a_function_may_ask_for_tokens_and_turns():
    def f(completions, tokens, turns):
        assert (tokens, turns) == (TOKENS, TURNS)
        return [[float(t) for t in ids] for ids in tokens]

    function = RewardFunction("f", f, per="token")
    found = score([function], PROMPTS, TEXTS, {}, tokens=TOKENS, turns=TURNS)
    assert found.rewards.tolist() == [19.0, 9.0]


@pytest.mark.parametrize(
    ("returned", "per", "message"),
    [
        (
            [[1.0, 2.0], [0.0, 3.0]],
            "token",
            "returned 2 numbers for completion 0; expected a list of 4 numbers, one a token",
        ),
        (
            [[1.0], [0.5]],
            "turn",
            "returned 1 numbers for completion 0; expected a list of 2 numbers, one a turn",
        ),
        (
            [1.0, [0.0, 3.0]],
            "token",
            "returned 1.0 for completion 0; expected a list of 4 numbers, one a token",
        ),
        (
            [[1.0, 0.0, float("nan"), 0.0], [0.0, 3.0]],
            "token",
            "returned nan among the numbers for completion 0",
        ),
        (
            [ValueError("no judge"), [0.0, 3.0]],
            "token",
            "reported ValueError: no judge for completion 0",
        ),
    ],
)
def test_what_does_not_fit_is_a_failure_and_no_zero(returned, per, message):
    if per == "turn":
        returned = [returned[0], [0.5]]
    found = scored(returned, per=per)
    assert found.valid.tolist() == [False, True]
    assert found.failures == {"f": 1}
    assert found.last_error == f"reward function 'f' {message}"
    assert not found.token_rewards[0].any()


def test_lists_where_a_number_is_asked_for():
    found = scored([[1.0, 2.0], 0.5], per="completion")
    assert found.last_error == "reward function 'f' returned [1.0, 2.0] for completion 0"
    assert scored([1.0], per="token").last_error == (
        "reward function 'f' returned 1 values for 2 completions; expected a list of 2 lists of "
        "numbers or Nones, one a completion"
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"tokens": None},
            "Reward function 'f' gives a number a token, but `score` was given no tokens.",
        ),
        (
            {"tokens": [[1]]},
            "There are 1 lists of tokens for 2 completions; give one each.",
        ),
        (
            {"turns": [[0], [0, 0]]},
            "Completion 0 has 4 tokens and the turns of 1; give the turn of each token.",
        ),
    ],
)
def test_wrong_input_is_an_error(named, message):
    with pytest.raises(TaskError) as error:
        scored([None, None], **named)
    assert str(error.value) == message


def test_an_unknown_part():
    with pytest.raises(TaskError) as error:
        RewardFunction("f", len, per="word")
    assert str(error.value) == (
        "Reward function 'f': per must be completion or token or turn, got 'word'."
    )


def test_the_decorator_takes_it():
    @reward_function(per="turn", weight=2.0)
    def f(prompts, completions):
        return []

    assert (f.name, f.weight, f.per) == ("f", 2.0, "turn")


def test_many_parts_add_up_in_float32():
    found = scored([np.full(4, 0.1, np.float32), [0.0, 0.0]])
    np.testing.assert_allclose(found.rewards[0], 0.4, rtol=1e-6)
