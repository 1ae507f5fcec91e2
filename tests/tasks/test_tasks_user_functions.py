"""Reward functions from a user's file."""

import pytest
from zootomy.registry import ZootomyError
from zootomy.tasks import RewardFunction, load_reward_functions, reward_function, score

MARKED = """
from zootomy.tasks import reward_function

@reward_function
def short(completions, **columns):
    return [-float(len(c)) for c in completions]

@reward_function(weight=0.5, name="digits")
def has_digits(prompts, completions):
    return [1.0 if any(x.isdigit() for x in c) else None for c in completions]

def plain(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

LIMIT = 3
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "rewards.py"
    file.write_text(MARKED)
    return str(file)


def test_all_marked_functions_in_order(path):
    rewards = load_reward_functions(path)
    assert [(r.name, r.weight) for r in rewards] == [("short", 1.0), ("digits", 0.5)]
    # -2 + 0.5*1, -3 (digits does not apply).
    scores = score(rewards, ["p", "p"], ["a1", "abc"], {})
    assert scores.rewards.tolist() == [-1.5, -3.0]


def test_one_function_by_name(path):
    (plain,) = load_reward_functions(f"{path}:plain")
    assert (plain.name, plain.weight) == ("plain", 1.0)
    assert plain.function(["a"], ["a"]) == [1.0]
    (digits,) = load_reward_functions(f"{path}:has_digits")
    assert (digits.name, digits.weight) == ("digits", 0.5)


def test_a_marked_function_still_works_by_itself():
    @reward_function
    def twice(completions):
        return [2.0 * len(c) for c in completions]

    assert isinstance(twice, RewardFunction)
    assert twice(["ab"]) == [4.0]


def test_wrong_files_and_names(path, tmp_path):
    def error_of(spec):
        with pytest.raises(ZootomyError) as error:
            load_reward_functions(spec)
        return str(error.value)

    assert error_of(f"{path}:plian") == (
        f"Unknown reward function of {path} 'plian'. Did you mean 'plain'? "
        "Known: has_digits, plain, reward_function, short."
    )
    assert "is a int, not a function" in error_of(f"{path}:LIMIT")
    assert error_of("rewards.txt") == (
        "A reward function is named as path.py or path.py:function, got 'rewards.txt'."
    )
    assert "There is no reward file" in error_of(str(tmp_path / "none.py"))

    unmarked = tmp_path / "unmarked.py"
    unmarked.write_text("def f(completions):\n    return []\n")
    assert "marks no reward functions" in error_of(str(unmarked))
    assert f"{unmarked}:FUNCTION. Functions there: f." in error_of(str(unmarked))

    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ny = x / 0\n")
    assert error_of(str(broken)) == (
        f"The reward file {broken} fails when loaded: ZeroDivisionError: division by zero (line 2)."
    )
