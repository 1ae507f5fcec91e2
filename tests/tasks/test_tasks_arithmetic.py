"""Built-in arithmetic: right chains, exact verification, splits that cannot meet."""

import re

import pytest
from zootomy.registry import ZootomyError
from zootomy.tasks import (
    ArithmeticOptions,
    TaskConfig,
    TaskError,
    accuracy,
    gather_columns,
    make_task,
    score,
)
from zootomy.tasks.arithmetic import _shuffled_prefix, make_arithmetic

ALL_KINDS = [
    {},
    {"kind": "sum", "terms": 5, "max_value": 99},
    {"kind": "modular", "terms": 4, "modulus": 7},
    {"kind": "addition", "terms": 2, "max_value": 999},
    {"kind": "addition", "terms": 3, "max_value": 4321},
]


def make(options, **fields):
    return make_task(TaskConfig(options=options, **fields))


@pytest.mark.parametrize(
    "options, numbers, signs, prompt, completion",
    [
        # 7+5 = 12, 12+8 = 20.
        ({}, [7, 5, 8], "", "7+5+8=", "12,20"),
        # From left to right, modulo 10: 3*4 = 12 -> 2, 2+2 = 4, 4*6 = 24 -> 4.
        ({"kind": "modular", "terms": 4}, [3, 4, 2, 6], "*+*", "3*4+2*6%10=", "2,4,4"),
        # Columns from the right: 8+7 = 15, 5+6+1 = 12, 3+4+1 = 8; the sum is 825.
        (
            {"kind": "addition", "terms": 2, "max_value": 999},
            [358, 467],
            "",
            "358+467=",
            "15,12,8,825",
        ),
        # Numbers of different length: 9+7 = 16, 9+0+1 = 10; the sum is 106.
        ({"kind": "addition", "terms": 2, "max_value": 999}, [99, 7], "", "99+7=", "16,10,106"),
    ],
)
def test_worked_problems(options, numbers, signs, prompt, completion):
    difficulty = ArithmeticOptions(**options)
    base = difficulty.max_value + 1
    index = sum(n * base**i for i, n in enumerate(numbers))
    index += sum(2**i for i, s in enumerate(signs) if s == "*") * base ** len(numbers)
    problem = difficulty.problem(index)
    assert problem.prompt == prompt
    assert problem.completion() == completion


@pytest.mark.parametrize("options", ALL_KINDS)
def test_answers_agree_with_python(options):
    task = make(options, train_size=100, eval_size=20)
    for example in [*task.train, *task.eval]:
        assert isinstance(example.prompt, str)
        text = example.prompt.removesuffix("=")
        if options.get("kind") == "modular":
            text, modulus = text.split("%")
            numbers = re.split(r"[*+]", text)
            total = int(numbers[0])
            for sign, number in zip(re.findall(r"[*+]", text), numbers[1:], strict=True):
                total = total * int(number) if sign == "*" else total + int(number)
            right = total % int(modulus)
        else:
            right = sum(map(int, text.split("+")))
        assert example.columns["answer"] == str(right)


@pytest.mark.parametrize("options", ALL_KINDS)
def test_demonstrations_are_solved_and_fit_the_tokenizer(options):
    task = make(options | {"chain_weight": 0.5}, train_size=50, eval_size=5)
    assert task.demonstrations is not None
    prompts = [e.prompt for e in task.train]
    assert [d.prompt for d in task.demonstrations] == prompts
    completions = [d.completion for d in task.demonstrations]
    for text in completions:
        assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
    scores = score(task.rewards, prompts, completions, gather_columns(task.train))
    assert (scores.rewards == 1.5).all()
    right = accuracy(task, scores)
    assert right is not None
    assert (right == 1).all()


def test_verification_is_exact_on_the_final_answer():
    task = make({"chain_weight": 0.5}, train_size=5, eval_size=0)
    completions = ["12,20", "99,20", "20", "12,020", "12,20 ", "12,21", "", "12,20,20", "12,"]
    count = len(completions)
    scores = score(
        task.rewards,
        ["7+5+8="] * count,
        completions,
        {"answer": ["20"] * count, "chain": [["12", "20"]] * count},
    )
    assert scores.components[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 0]
    # Links right at their place over the longer length: "99,20" 1/2, "12,20,20" 2/3.
    assert scores.components[1].tolist() == pytest.approx([1, 0.5, 0, 0.5, 0.5, 0.5, 0, 2 / 3, 0.5])


def test_splits_are_disjoint_distinct_and_fill_the_space():
    task = make({"terms": 2}, train_size=70, eval_size=30)
    prompts = [e.prompt for e in [*task.train, *task.eval]]
    assert len(set(map(str, prompts))) == 100 == ArithmeticOptions(terms=2).space()


def test_held_out_problems_do_not_depend_on_the_training_size():
    small, large = (make({}, train_size=n, eval_size=30, seed=5) for n in (10, 500))
    assert small.eval == large.eval
    assert small.train == large.train[:10]
    assert make({}, train_size=10, eval_size=30, seed=6).eval != small.eval


def test_the_shuffle_is_one():
    assert sorted(_shuffled_prefix(50, 50, seed=3)) == list(range(50))
    assert _shuffled_prefix(2**62, 3, seed=3) == _shuffled_prefix(2**62, 5, seed=3)[:3]


def test_default_training_size_leaves_the_held_out_ones():
    assert len(make({"terms": 2}, eval_size=30).train) == 70
    assert len(make({"terms": 4}).train) == 1000


@pytest.mark.parametrize(
    "options, words",
    [
        ({"kind": "sums"}, "kind must be one of sum, modular, addition, got 'sums'."),
        ({"terms": 1}, "arithmetic: terms must be at least 2, got 1."),
        ({"terms": 2.5}, "arithmetic: terms must be a whole number, got 2.5."),
        ({"max_value": 0}, "arithmetic: max_value must be at least 1, got 0."),
        ({"modulus": 1}, "arithmetic: modulus must be at least 2, got 1."),
        ({"chain_weight": -1}, "arithmetic: chain_weight must be 0 or more, got -1."),
        ({"terms": 30}, "make more than 2^62 problems"),
        ({"term": 3}, "Unknown option of arithmetic 'term'. Did you mean 'terms'?"),
        (
            {"terms": 2},
            "80 training and 30 evaluation problems are wanted, but kind=sum, terms=2, "
            "max_value=9 has 100 distinct ones; ask for fewer, or raise terms or max_value.",
        ),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ZootomyError) as error:
        make(options, train_size=80, eval_size=30)
    assert words in str(error.value)


def test_no_training_examples():
    with pytest.raises(TaskError, match=r"task\.train_size must be at least 1, got 0"):
        make({}, train_size=0)


def test_unfinished_demonstrations_stop_before_the_last_link():
    def demonstrations(share):
        options = {"terms": 4, "unfinished": share}
        task = make_arithmetic(options, train_size=400, eval_size=10, seed=0)
        return [
            (d.completion, ",".join(e.columns["chain"]))
            for d, e in zip(task.demonstrations, task.train, strict=True)
        ]

    assert all(given == whole for given, whole in demonstrations(0.0))
    stopped = [given != whole for given, whole in demonstrations(0.5)]
    assert 160 < sum(stopped) < 240  # 200 of 400 expected, standard deviation 10
    for given, whole in demonstrations(1.0):
        # Always the first one or two links of three.
        assert whole.startswith(given + ",")
        assert given.count(",") in (0, 1)
    with pytest.raises(ZootomyError, match=r"arithmetic: unfinished must be 0 to 1, got 1.5."):
        demonstrations(1.5)
