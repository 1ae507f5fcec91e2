"""Batch sizes, evaluation settings, seeds: what they come to and what they refuse."""

import pytest
from zootomy import ZootomyError
from zootomy.learners import BatchConfig, EvaluationConfig, WarmupConfig
from zootomy.learners.seeds import derive_seed


def fails(function, **arguments):
    with pytest.raises(ZootomyError) as error:
        function(**arguments)
    return str(error.value)


def test_sizes():
    batch = BatchConfig(full=4, mini=2, group_size=3, epochs=2)
    assert (batch.mini_prompts, batch.completions, batch.updates) == (2, 12, 4)
    assert BatchConfig(full=4, group_size=3).updates == 1
    assert BatchConfig(full=4, group_size=3).mini_prompts == 4


def test_the_plan_in_words():
    assert BatchConfig(full=4, mini=2, group_size=3, epochs=2).explain(steps=10) == (
        "4 prompts × 3 = 12 completions a step; 2 epochs × 2 mini-batches of 2 prompts (6 "
        "completions) = 4 optimizer steps a step; 10 steps = 40 optimizer steps and 120 "
        "completions."
    )
    assert BatchConfig(full=1, group_size=1).explain(steps=1) == (
        "1 prompts × 1 = 1 completions a step; 1 epoch × 1 mini-batch of 1 prompt (1 completions) "
        "= 1 optimizer step a step; 1 step = 1 optimizer step and 1 completions."
    )


def test_sizes_that_do_not_divide():
    assert fails(BatchConfig, full=8, mini=3) == (
        "batch.mini must divide batch.full: 8 prompts cannot be cut into mini-batches of 3. Use 2 "
        "or 4."
    )
    assert fails(BatchConfig, full=7, mini=8) == (
        "batch.mini must divide batch.full: 7 prompts cannot be cut into mini-batches of 8. Use 1 "
        "or 7."
    )
    assert fails(BatchConfig, full=1, mini=2).endswith("Use 1.")


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4"])
@pytest.mark.parametrize("name", ["full", "mini", "group_size", "epochs"])
def test_a_size_that_is_none(name, value):
    assert fails(BatchConfig, **{name: value}) == (
        f"batch.{name} must be a whole number of 1 or more, got {value!r}."
    )


def test_only_mini_may_be_left_open():
    assert BatchConfig(mini=None).mini is None
    assert fails(BatchConfig, full=None) == (
        "batch.full must be a whole number of 1 or more, got None."
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": -1}, "evaluation.every must be 0 or more, got -1."),
        ({"size": 0}, "evaluation.size must be 1 or more, or None, got 0."),
        ({"samples": 0}, "evaluation.samples must be 1 or more, got 0."),
        (
            {"temperature": -0.5},
            "evaluation.temperature must be 0 (greedy) or more, got -0.5.",
        ),
        (
            {"samples": 4},
            "evaluation.samples is 4 at temperature 0: all would be the same. Set "
            "evaluation.temperature above 0, or evaluation.samples to 1.",
        ),
    ],
)
def test_evaluation(arguments, text):
    assert fails(EvaluationConfig, **arguments) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"steps": -1}, "warmup.steps must be 0 or more, got -1."),
        ({"batch": 0}, "warmup.batch must be 1 or more, got 0."),
        ({"learning_rate": 0.0}, "warmup.learning_rate must be above 0, got 0.0."),
    ],
)
def test_warmup(arguments, text):
    assert fails(WarmupConfig, **arguments) == text


def test_seeds_are_addresses():
    assert derive_seed(0, "rollout", 3, 1) == derive_seed(0, "rollout", 3, 1)
    seeds = {
        derive_seed(run, purpose, *numbers)
        for run in (0, 1)
        for purpose in ("rollout", "prompts")
        for numbers in ((), (0,), (1,), (0, 1), (1, 0))
    }
    assert len(seeds) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_negative_seed():
    assert fails(lambda: derive_seed(-1, "rollout")) == "seed must be 0 or more, got -1."
