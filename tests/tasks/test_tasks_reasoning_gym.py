"""Reasoning-gym families: their own verifier, splits that share no question."""

import sys

import pytest
from zootomy.registry import ZootomyError
from zootomy.tasks import (
    TaskConfig,
    TaskError,
    accuracy,
    families,
    gather_columns,
    make_task,
    score,
)
from zootomy.tasks.reasoning_gym import extract_answer, make_reasoning_gym

TWO_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def questions(examples):
    return [example.prompt for example in examples]


@pytest.fixture(scope="module")
def chain_sum():
    return make_task(
        TaskConfig(name="reasoning_gym:chain_sum", options=TWO_DIGITS, train_size=100, eval_size=60)
    )


def test_splits_are_distinct_even_in_a_small_family(chain_sum):
    # Only 200 distinct questions: seeds apart by themselves would share most of them.
    everything = questions(chain_sum.train) + questions(chain_sum.eval)
    assert len(everything) == 160
    assert len(set(everything)) == 160


def test_the_familys_own_verifier_is_the_reward(chain_sum):
    right = [str(e.columns["answer"]) for e in chain_sum.train]
    columns = gather_columns(chain_sum.train)
    scores = score(
        chain_sum.rewards, questions(chain_sum.train), [f" {r}\n" for r in right], columns
    )
    solved = accuracy(chain_sum, scores)
    assert solved is not None
    assert scores.rewards.min() == 1.0
    assert (solved == 1).all()
    wrong = score(chain_sum.rewards, questions(chain_sum.train), ["x"] * 100, columns)
    assert wrong.valid.all()
    assert wrong.rewards.max() == 0.0


def test_characters_and_demonstrations(chain_sum):
    assert chain_sum.demonstrations is not None
    for example, demonstration in zip(chain_sum.train, chain_sum.demonstrations, strict=True):
        assert demonstration == (example.prompt, example.columns["answer"])
        ids = chain_sum.tokenizer.encode_prompt(example.prompt)
        assert chain_sum.tokenizer.decode(ids) == example.prompt
    for example in chain_sum.eval:
        chain_sum.tokenizer.encode_prompt(example.prompt)


def test_seeds_choose_and_repeat():
    def make(seed):
        return questions(make_reasoning_gym("gcd", {}, train_size=5, eval_size=3, seed=seed).train)

    assert make(1) == make(1)
    assert not set(make(1)) & set(make(2))


@pytest.mark.parametrize("family", ["pool_matrix", "graph_color", "letter_counting"])
def test_unusual_families(family):
    # pool_matrix takes 32-bit seeds only; graph_color has a verifier but no gold answer.
    task = make_reasoning_gym(family, {}, train_size=4, eval_size=2, seed=9, answer_tag="answer")
    scores = score(
        task.rewards, questions(task.train), ["no answer"] * 4, gather_columns(task.train)
    )
    assert scores.valid.all(), scores.last_error
    assert (task.demonstrations is None) == (family == "graph_color")


def test_answer_tags():
    assert extract_answer("so <answer> 4 </answer> no <answer>5</answer>.", "answer") == "5"
    assert extract_answer("4", "answer") is None
    assert extract_answer("</answer>4<answer>", "answer") is None
    assert extract_answer(" 4\n", "") == "4"
    task = make_reasoning_gym("gcd", {}, train_size=1, eval_size=0, seed=0, answer_tag="answer")
    assert task.demonstrations is not None
    demonstration = task.demonstrations[0].completion
    assert demonstration.startswith("<answer>")
    gold = task.train[0].columns["answer"]
    scores = score(
        task.rewards * 1,
        ["q"] * 2,
        [demonstration, gold],
        gather_columns(task.train, 2),
    )
    assert scores.rewards.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("chain_sun", {}, "Unknown reasoning-gym family 'chain_sun'. Did you mean 'chain_sum'"),
        (
            "chain_sum",
            {"min_term": 2},
            "Unknown option of reasoning_gym:chain_sum 'min_term'. Did you",
        ),
        ("chain_sum", {"seed": 2}, "'seed' is not an option here; set the task's own seed"),
        (
            "chain_sum",
            {"min_terms": -1},
            "reasoning_gym:chain_sum refuses its options {'min_terms': -1}",
        ),
        (
            "chain_sum",
            TWO_DIGITS,
            "reasoning_gym:chain_sum: 5200 draws gave only 190 distinct training questions (those "
            "of the other split left out), 250 are wanted; ask for fewer",
        ),
        ("basic_arithmetic", {}, "has wrong gold answers with division or without parentheses"),
        (
            "basic_arithmetic",
            {"operators": ["+"], "allow_parentheses": False},
            "set operators=[+, -, *] and allow_parentheses=true",
        ),
    ],
)
def test_wrong_names_and_options(name, options, words):
    with pytest.raises(ZootomyError) as error:
        make_reasoning_gym(name, options, train_size=250, eval_size=10, seed=0)
    assert words in str(error.value)


def test_basic_arithmetic_with_right_gold_answers():
    options = {"operators": ["+", "-", "*"], "allow_parentheses": True}
    task = make_reasoning_gym("basic_arithmetic", options, train_size=20, eval_size=0, seed=0)
    for example in task.train:
        expression = example.columns["entry"]["metadata"]["expression"]
        assert eval(expression) == int(example.columns["answer"])


def test_hash_ordered_families_warn(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.warns(UserWarning, match="start Python with PYTHONHASHSEED=0"):
        make_reasoning_gym("ransom_note", {}, train_size=1, eval_size=0, seed=0)


def test_families_are_listed():
    assert {"chain_sum", "gsm_symbolic", "spell_backward"} <= set(families())


@pytest.mark.parametrize(
    "module, purpose, fields",
    [
        ("reasoning_gym", "A reasoning_gym task", {"name": "reasoning_gym:gcd"}),
        ("math_verify", "The math_verify reward", {"rewards": ("math_verify",)}),
        ("transformers", "A Hugging Face tokenizer", {"tokenizer": "."}),
    ],
)
def test_a_missing_package_names_the_extra(module, purpose, fields, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TaskError) as error:
        make_task(TaskConfig(**fields))
    assert str(error.value) == (
        f"{purpose} needs the package {module!r}, which is not installed: "
        'pip install "zootomy[tasks]"'
    )
