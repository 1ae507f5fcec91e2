"""Rewards: what a function gets, and what becomes of everything it may return."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.tasks import (
    Example,
    RewardFunction,
    TaskError,
    check_rewards,
    gather_columns,
    score,
)

PROMPTS = ["p", "p", "p"]
COMPLETIONS = ["a", "bb", "ccc"]


def judge(*functions, columns=None, step=None, weights=None):
    weights = weights or [1.0] * len(functions)
    rewards = [
        RewardFunction(f"f{i}", f, w)
        for i, (f, w) in enumerate(zip(functions, weights, strict=True))
    ]
    return score(rewards, PROMPTS, COMPLETIONS, columns or {}, step=step)


def returning(values):
    return lambda prompts, completions: values


def test_weighted_sum_over_the_functions_that_apply():
    # 2*[1,2,3] + 0.5*[4,-,6]: the None is left out, not counted as 0.
    scores = judge(returning([1, 2, 3]), returning([4, None, 6]), weights=[2.0, 0.5])
    np.testing.assert_array_equal(scores.rewards, np.float32([2 + 2, 4, 6 + 3]))
    assert scores.rewards.dtype == np.float32
    assert scores.valid.all()
    assert scores.failures == {}
    assert scores.last_error is None
    np.testing.assert_array_equal(scores.components, np.float32([[1, 2, 3], [4, np.nan, 6]]))


def test_none_from_every_function_is_invalid_not_zero():
    # Faults 14, 105, 134: rewards [1, None, 1] once became [1, 0, 1] with a group mean of 0.667.
    scores = judge(returning([1, None, 1]), returning([None, None, 0.5]))
    assert scores.valid.tolist() == [True, False, True]
    assert scores.rewards[scores.valid].tolist() == [1.0, 1.5]
    assert np.isnan(scores.components[:, 1]).all()
    assert scores.failures == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1", [1.0], 1j, 1e39, object()])
def test_one_bad_value_makes_one_completion_invalid(bad):
    # Fault 15: one NaN once made every advantage of the batch NaN.
    scores = judge(returning([1.0, bad, 0.0]), returning([1.0, 1.0, 1.0]))
    assert scores.valid.tolist() == [True, False, True]
    assert scores.rewards.tolist() == [2.0, 0.0, 1.0]
    assert scores.failures == {"f0": 1}
    assert scores.last_error is not None
    assert "'f0'" in scores.last_error
    assert "completion 1" in scores.last_error


@pytest.mark.parametrize(
    "returned, words",
    [
        (1.0, "the bare number 1.0"),
        (np.float32(2), "the bare number"),
        ([1.0, 2.0], "2 values for 3 completions"),
        ([], "0 values for 3 completions"),
        (None, "a NoneType"),
        ("abc", "a str"),
        ({"a": 1, "b": 2, "c": 3}, "a dict"),
        ((x for x in (1, 2, 3)), "a generator"),
    ],
)
def test_a_wrong_answer_makes_all_completions_invalid(returned, words):
    scores = judge(returning(returned))
    assert not scores.valid.any()
    assert scores.failures == {"f0": 3}
    assert scores.last_error is not None
    assert words in scores.last_error
    assert "expected a list of 3 numbers or Nones" in scores.last_error


def test_an_exception_makes_all_completions_invalid_and_is_told():
    def slow(prompts, completions):
        raise TimeoutError("the sandbox did not answer")

    scores = judge(slow, returning([1, 1, 1]))
    assert not scores.valid.any()
    assert scores.failures == {"f0": 3}
    assert scores.last_error is not None
    assert scores.last_error.startswith(
        "reward function 'f0' raised TimeoutError: the sandbox did not answer at "
    )
    assert "test_tasks_score.py:" in scores.last_error
    # What the other function said is still there to be logged.
    assert np.isnan(scores.components[0]).all()
    assert scores.components[1].tolist() == [1.0, 1.0, 1.0]


def test_a_returned_exception_concerns_its_completion_alone():
    # Faults 105, 134: group [1, 1, timeout] must keep the 1s and drop the third.
    scores = judge(returning([1, 1, TimeoutError("no answer")]))
    assert scores.valid.tolist() == [True, True, False]
    assert scores.failures == {"f0": 1}
    assert scores.last_error == (
        "reward function 'f0' reported TimeoutError: no answer for completion 2"
    )


@pytest.mark.parametrize(
    "values",
    [
        (1, 0, 1),
        [True, False, True],
        np.array([1, 0, 1]),
        [np.float64(1), np.int32(0), np.bool_(True)],
        [np.array(1.0), jnp.array(0.0), jnp.array(1, jnp.bfloat16)],
        jnp.array([1.0, 0.0, 1.0]),
    ],
)
def test_every_kind_of_number_is_a_reward(values):
    scores = judge(returning(values))
    assert scores.rewards.tolist() == [1.0, 0.0, 1.0]
    assert scores.valid.all()


def test_a_sum_beyond_float32_is_invalid():
    scores = judge(returning([3e38, 1, 1]), returning([3e38, 1, 1]))
    assert scores.valid.tolist() == [False, True, True]
    assert scores.failures == {"total": 1}


def test_no_completions_no_rewards():
    scores = score([RewardFunction("f", returning([]))], [], [], {})
    assert scores.rewards.shape == (0,)
    assert scores.components.shape == (1, 0)


def test_columns_reach_the_function_repeated_in_order():
    # Fault 96: 2 prompts, G = 2: row p*G+g carries the column of prompt p.
    examples = [
        Example("p", {"answer": "1", "level": 3}),
        Example("q", {"answer": "2", "level": 4}),
    ]
    columns = gather_columns(examples, repeats=2)
    assert columns == {"answer": ["1", "1", "2", "2"], "level": [3, 3, 4, 4]}
    seen = {}

    def f(prompts, completions, answer, **rest):
        seen.update(prompts=prompts, completions=completions, answer=answer, rest=rest)
        return [1.0] * 4

    score([RewardFunction("f", f)], ["p", "p", "q", "q"], list("wxyz"), columns, step=7)
    assert seen == {
        "prompts": ["p", "p", "q", "q"],
        "completions": list("wxyz"),
        "answer": ["1", "1", "2", "2"],
        "rest": {"level": [3, 3, 4, 4]},
    }


def test_step_goes_to_functions_that_name_it():
    # Fault 104.
    steps = []

    def named(prompts, completions, step):
        steps.append(step)
        return [0.0] * 3

    def with_default(completions, step=None):
        steps.append(step)
        return [0.0] * 3

    judge(named, with_default, step=12)
    assert steps == [12, 12]
    judge(with_default)
    assert steps == [12, 12, None]
    with pytest.raises(TaskError) as error:
        judge(named)
    assert str(error.value) == (
        "Reward function 'f0' asks for 'step', but `score` was given no step."
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda completions: [float(len(c)) for c in completions],
        lambda p, c: [float(len(x)) for x in c],
        lambda p, c, answer: [float(len(x)) for x in c],
        lambda p, c, **columns: [float(len(x)) for x in c],
        lambda *args, **columns: [float(len(x)) for x in args[1]],
        lambda completions, *, answer, other=5: [float(len(c)) for c in completions],
        lambda **everything: [float(len(c)) for c in everything["completions"]],
    ],
)
def test_signatures_that_work(function):
    scores = judge(function, columns={"answer": ["x"] * 3})
    assert scores.rewards.tolist() == [1.0, 2.0, 3.0], scores.last_error


def test_missing_column_is_an_error_before_any_call():
    called = []

    def first(prompts, completions):
        called.append(1)
        return [0.0] * 3

    def second(prompts, completions, answr):
        return [0.0] * 3

    with pytest.raises(TaskError) as error:
        judge(first, second, columns={"level": [1, 2, 3], "answer": ["x"] * 3})
    assert str(error.value) == (
        "Reward function 'f1' asks for the column 'answr', which the data does not have. Columns: "
        "answer, level; besides them it may name prompts, completions, step, tokens "
        "and turns."
    )
    assert called == []
    with pytest.raises(TaskError, match="'answr'"):
        check_rewards([RewardFunction("f1", second)], ["answer", "level"])
    check_rewards([RewardFunction("f", first)], [])


def test_a_misspelt_column_is_not_taken_for_the_prompts():
    with pytest.raises(TaskError, match="asks for the column 'txt'"):
        judge(lambda txt, answer: [0.0] * 3, columns={"answer": ["x"] * 3})


def test_functions_cannot_change_each_others_lists():
    def greedy(prompts, completions):
        completions.clear()
        return [0.0] * 3

    scores = judge(greedy, lambda completions: [float(len(c)) for c in completions])
    assert scores.rewards.tolist() == [1.0, 2.0, 3.0]


def test_wrong_calls():
    f = RewardFunction("f", returning([1, 1, 1]))
    with pytest.raises(TaskError, match="There are 2 prompts for 3 completions"):
        score([f], ["p", "p"], COMPLETIONS, {})
    with pytest.raises(TaskError, match="Column 'answer' has 1 values for 3 completions"):
        score([f], PROMPTS, COMPLETIONS, {"answer": ["x"]})
    with pytest.raises(TaskError, match="distinct names, got f, f"):
        score([f, f], PROMPTS, COMPLETIONS, {})
    with pytest.raises(TaskError, match="no reward function"):
        score([], PROMPTS, COMPLETIONS, {})
    with pytest.raises(TaskError, match="weight nan"):
        RewardFunction("f", returning([]), math.nan)
    with pytest.raises(TaskError, match="must be callable"):
        RewardFunction("f", 3)  # pyright: ignore[reportArgumentType]


def test_ragged_examples_name_the_missing_column():
    with pytest.raises(TaskError) as error:
        gather_columns([Example("p", {"answer": "1", "level": 1}), Example("q", {"level": 1})])
    assert str(error.value) == (
        "Example 1 has no column 'answer', which other examples have; it has level."
    )


def test_a_component_is_nan_where_it_does_not_apply():
    # Fault 16: [0.5, NaN, NaN, .8, .6, .7] has the mean .65 of 4 values; zeros would make it .43.
    values = [0.5, None, None, 0.8, 0.6, 0.7]
    scores = score([RewardFunction("f", returning(values))], ["p"] * 6, ["c"] * 6, {})
    applies = np.isfinite(scores.components[0])
    assert applies.tolist() == [True, False, False, True, True, True]
    assert scores.components[0][applies].mean() == pytest.approx(0.65)
