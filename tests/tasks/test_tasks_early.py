"""Reward functions that judge each completion by itself, called while others are still sampled."""

import numpy as np
import pytest
from zootomy.tasks import EarlyScores, RewardFunction, reward_function, score


def length(prompts, completions, bonus):
    assert len(prompts) == len(completions) == len(bonus) == 1
    if completions[0] == "":
        raise ValueError("empty")
    return [len(completions[0]) + bonus[0]]


def rank(completions, prompts):
    """Needs all of them: how many are shorter."""
    return [float(sum(len(c) < len(mine) for c in completions)) for mine in completions]


TEXTS = ["abc", "a", "ab"]
PROMPTS = ["p", "p", "q"]
COLUMNS = {"bonus": [10, 20, 30]}
BOTH = [RewardFunction("length", length, alone=True), RewardFunction("rank", rank, 100.0)]


@pytest.mark.parametrize("order", [(), (2,), (2, 0, 1), (1, 1)])
def test_what_was_judged_early_changes_nothing(order):
    early = EarlyScores(BOTH, PROMPTS, COLUMNS)
    for number in order:
        early.add(number, TEXTS[number])
    scores = score(BOTH, PROMPTS, TEXTS, COLUMNS, early=early)
    # lengths 3, 1, 2 and bonuses 10, 20, 30; ranks 2, 0, 1
    np.testing.assert_array_equal(scores.components, [[13, 21, 32], [2, 0, 1]])
    assert scores.rewards.tolist() == [213, 21, 132]
    assert scores.valid.all()


def test_what_it_raises_is_a_failure_of_that_completion_only():
    scores = score(BOTH, PROMPTS, ["abc", "", "ab"], COLUMNS)
    # called with all three at once, none would have a reward
    assert scores.valid.tolist() == [True, False, True]
    assert scores.failures == {"length": 1}
    assert "reward function 'length' raised ValueError: empty at " in scores.last_error


def test_an_error_names_the_completion_among_all():
    nan = RewardFunction("nan", lambda prompts, completions: [float("nan")], alone=True)
    scores = score([nan], PROMPTS, TEXTS, {})
    assert scores.failures == {"nan": 3}
    assert scores.last_error == "reward function 'nan' returned nan for completion 2"


def test_the_decorator_marks_it():
    assert reward_function(alone=True)(length).alone
    assert not reward_function(length).alone
