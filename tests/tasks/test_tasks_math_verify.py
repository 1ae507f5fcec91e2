"""Answers compared as mathematics."""

import threading

import pytest
from zootomy.tasks import math_verify_reward, score
from zootomy.tasks.math_verify import compare_answers, gold_text


@pytest.mark.parametrize(
    "answer, completion, expected",
    [
        ("42", "The answer is 42", 1),
        (42, "\\boxed{42}", 1),
        ("So 6*7. #### 42", "6*7 = \\boxed{42}", 1),
        ("So 6*7. #### 42", "#### 41", 0),
        ("The result is \\boxed{\\frac{1}{2}}", "\\boxed{0.5}", 1),
        ("\\frac{1}{2}", "$\\frac{2}{4}$", 1),
        ("1/2", "it is 1/3", 0),
        ("#### 1,234", "1234", 1),
        ("x^2+1", "\\boxed{1+x^2}", 1),
        ("42", "I do not know", 0),
        ("42", "", 0),
    ],
)
def test_equal_or_not(answer, completion, expected):
    scores = score([math_verify_reward()], ["q"], [completion], {"answer": [answer]})
    assert scores.valid.all(), scores.last_error
    assert scores.rewards.tolist() == [expected]


def test_gold_text():
    assert gold_text("a #### b #### 7 ") == "$7$"
    assert gold_text("\\boxed{7}") == "\\boxed{7}"
    assert gold_text("so $7$") == "so $7$"


def test_an_unreadable_gold_is_a_failure_of_its_completions_alone():
    scores = score(
        [math_verify_reward(2.0)], ["q"] * 3, ["7"] * 3, {"answer": ["7", "$$", "#### 7"]}
    )
    assert scores.valid.tolist() == [True, False, True]
    assert scores.rewards.tolist() == [2.0, 0.0, 2.0]
    assert scores.failures == {"math_verify": 1}
    assert scores.last_error is not None
    assert "the gold answer '$$' cannot be read as mathematics" in scores.last_error


@pytest.mark.parametrize(
    "completion",
    ["$9^{9^{9^{9}}}$", "\\boxed{2^{10^{12}}}", "$2^{3 \\cdot 10^{9}}$", "$(10^9)!$", "9**9**9**9"],
)
def test_endless_numbers_end_at_once(completion):
    assert compare_answers(["q"], [completion], ["3"]) == [0.0]


def test_off_the_main_thread():
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(compare_answers(["q"] * 2, ["0.5", "2"], ["1/2", "1/2"]))
    )
    thread.start()
    thread.join()
    assert found == [1.0, 0.0]
