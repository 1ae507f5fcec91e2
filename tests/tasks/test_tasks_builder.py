"""From a config to a task."""

import subprocess
import sys

import pytest
from zootomy.registry import ZootomyError
from zootomy.tasks import (
    CharacterTokenizer,
    Example,
    RewardFunction,
    Task,
    TaskConfig,
    TaskError,
    accuracy,
    make_task,
    score,
)

TOKENIZER = CharacterTokenizer("ab")
REWARDS = """
from zootomy.tasks import reward_function

@reward_function
def same(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

@reward_function(weight=2.0)
def short(completions):
    return [-float(len(c)) for c in completions]
"""


@pytest.fixture
def files(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"prompt": "p{i}", "answer": "{i}"}}\n' for i in range(10)))
    rewards = tmp_path / "rewards.py"
    rewards.write_text(REWARDS)
    return {"name": str(data), "rewards": (str(rewards),)}


def test_a_data_set_with_user_rewards(files):
    task = make_task(TaskConfig(eval_size=3, **files), TOKENIZER)
    assert (len(task.train), len(task.eval)) == (7, 3)
    assert [(r.name, r.weight) for r in task.rewards] == [("same", 1.0), ("short", 2.0)]
    assert task.solved_by is None
    assert task.demonstrations is None
    scores = score(task.rewards, ["p"] * 2, ["3", "3"], {"answer": ["3", "4"]})
    assert scores.rewards.tolist() == [1 - 2, 0 - 2]
    assert accuracy(task, scores) is None


def test_weights_accuracy_and_sizes(files):
    config = TaskConfig(
        eval_size=3, train_size=4, reward_weights=(0.5, 0.0), solved_by="same", **files
    )
    task = make_task(config, TOKENIZER)
    assert [r.weight for r in task.rewards] == [0.5, 0.0]
    assert len(task.train) == 4
    scores = score(task.rewards, ["p"] * 2, ["3", "3"], {"answer": ["3", "4"]})
    right = accuracy(task, scores)
    assert right is not None
    assert right.tolist() == [1.0, 0.0]


def test_math_verify_decides_accuracy(files):
    config = TaskConfig(eval_size=0, **(files | {"rewards": ("math_verify", *files["rewards"])}))
    task = make_task(config, TOKENIZER)
    assert [r.name for r in task.rewards] == ["math_verify", "same", "short"]
    assert task.solved_by == "math_verify"


def test_an_invalid_completion_is_neither_right_nor_wrong():
    def f(prompts, completions):
        return [1.0, 0.2, None]

    task = Task("t", [Example("p")], [], (RewardFunction("f", f),), TOKENIZER, solved_by="f")
    right = accuracy(task, score(task.rewards, ["p"] * 3, ["c"] * 3, {}))
    assert right is not None
    assert right.tolist()[:2] == [1.0, 0.0]
    assert right[2] != right[2]


def test_an_evaluation_file_that_overlaps(files, tmp_path):
    held_out = tmp_path / "eval.jsonl"
    held_out.write_text('{"prompt": "p3", "answer": "3"}\n{"prompt": "q", "answer": "0"}\n')
    with pytest.warns(UserWarning, match="1 of 2 evaluation prompts are training prompts too"):
        task = make_task(TaskConfig(eval_file=str(held_out), **files), TOKENIZER)
    assert (len(task.train), len(task.eval)) == (10, 2)


def test_user_rewards_come_on_top_of_a_built_in_task(files):
    config = TaskConfig(rewards=files["rewards"], train_size=5, eval_size=2)
    assert [r.name for r in make_task(config).rewards] == ["answer", "same", "short"]


def test_system_prompt(files):
    task = make_task(TaskConfig(system_prompt="s", eval_size=3, **files), TOKENIZER)
    assert task.train[0].prompt == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "p" + task.train[0].columns["answer"]},
    ]
    built_in = make_task(TaskConfig(system_prompt="s", train_size=2, eval_size=1))
    assert built_in.demonstrations is not None
    assert built_in.demonstrations[0].prompt == built_in.train[0].prompt


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"name": "arithmetics"}, "Unknown task 'arithmetics'. Did you mean 'arithmetic'?"),
        ({"seed": -1}, "task.seed must be 0 or more, got -1."),
        ({"eval_size": -1}, "task.eval_size must be 0 or more, got -1."),
        ({"eval_file": "x.jsonl"}, "task.eval_file goes with a .jsonl data set, not with 'arith"),
        ({"answer_tag": "a"}, "task.answer_tag goes with a reasoning_gym task, not with 'arith"),
        ({"name": "none.jsonl", "rewards": ("math_verify",)}, "There is no data set file 'none.js"),
        ({"name": "none.jsonl"}, "needs a reward; set task.rewards to math_verify or to path.py"),
        ({"rewards": ("math_verify",), "reward_weights": (1.0, 2.0)}, "has 2 weights for 1 reward"),
        ({"solved_by": "nobody"}, "solved_by='nobody' is none of its reward functions 'answer'."),
        ({"tokenizer": "folder"}, "were given; give one of them"),
    ],
)
def test_wrong_configs(fields, words):
    with pytest.raises(ZootomyError) as error:
        make_task(TaskConfig(**fields), TOKENIZER)
    assert words in str(error.value)


def test_a_data_set_without_a_needed_column(files, tmp_path):
    data = tmp_path / "bare.jsonl"
    data.write_text('{"prompt": "x", "gold": "1"}\n')
    with pytest.raises(TaskError) as error:
        make_task(TaskConfig(eval_size=0, **(files | {"name": str(data)})), TOKENIZER)
    assert str(error.value).startswith(
        "Reward function 'same' asks for the column 'answer', which the data does not have. "
        "Columns: gold;"
    )


def test_data_sets_need_a_tokenizer_and_lines(files):
    with pytest.raises(TaskError, match=r"needs a tokenizer; set task\.tokenizer"):
        make_task(TaskConfig(**files))
    with pytest.raises(TaskError, match=r"task\.train_size=9, but .* has 7 training examples"):
        make_task(TaskConfig(train_size=9, eval_size=3, **files), TOKENIZER)
    with pytest.raises(TaskError, match="has no options, got terms"):
        make_task(TaskConfig(options={"terms": 3}, **files), TOKENIZER)
    with pytest.raises(TaskError, match="Holding 100 examples out of 10"):
        make_task(TaskConfig(**files), TOKENIZER)


def test_importing_is_light():
    code = (
        "import sys, zootomy.tasks\n"
        "print([m for m in ('transformers', 'reasoning_gym', 'math_verify', 'sympy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
