"""Data sets of JSON lines: every fault is named with its file and line."""

import json

import pytest
from zootomy.tasks import Example, TaskError, load_jsonl
from zootomy.tasks.jsonl import split


def write(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_texts_messages_and_columns(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü?"}]
    path = write(
        tmp_path,
        json.dumps({"prompt": "1+1=", "answer": "2", "level": None}),
        "",
        json.dumps({"prompt": messages, "answer": 3, "level": [1, 2]}, ensure_ascii=False),
    )
    assert load_jsonl(path) == [
        Example("1+1=", {"answer": "2", "level": None}),
        Example(messages, {"answer": 3, "level": [1, 2]}),
    ]


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"prompt": "x"', "not valid JSON: "),
        ("[1, 2]", "expected a JSON object with a 'prompt', got list."),
        ('{"question": "x", "answer": 1}', "no 'prompt'; the line has answer, question."),
        ('{"prompt": "", "answer": 1}', "the prompt is empty."),
        (
            '{"prompt": 3, "answer": 1}',
            "'prompt' must be a text or a list of chat messages, got 3.",
        ),
        ('{"prompt": [], "answer": 1}', "'prompt' must be a text or a list of chat messages"),
        ('{"prompt": [{"content": "x"}], "answer": 1}', "a chat message must be an object with"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', "has no 'content'."),
        ('{"prompt": "x", "step": 1}', "the column name 'step' is taken"),
        (
            '{"prompt": "x"}',
            "the column 'answer' is missing, which {path}:1 has; give every line the same columns "
            "(null where there is no value).",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = write(tmp_path, '{"prompt": "x", "answer": 1}', "", line)
    with pytest.raises(TaskError) as error:
        load_jsonl(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert (
        words.format(path=path) in str(error.value)
        if "{path}" in words
        else words in str(error.value)
    )


def test_a_column_the_first_line_lacks(tmp_path):
    path = write(tmp_path, '{"prompt": "x"}', '{"prompt": "y", "answer": 1}')
    with pytest.raises(TaskError) as error:
        load_jsonl(path)
    assert str(error.value).startswith(
        f"{path}:1: the column 'answer' is missing, which {path}:2 has"
    )


def test_no_file_and_no_lines(tmp_path):
    with pytest.raises(TaskError, match="There is no data set file"):
        load_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="is empty; give at least one line"):
        load_jsonl(write(tmp_path, "", " "))
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(TaskError, match="is not UTF-8 text"):
        load_jsonl(binary)


def test_split_keeps_equal_prompts_together():
    examples = [Example(f"p{i % 5}", {"answer": i}) for i in range(10)]
    train, held_out = split(examples, 4, seed=0)
    assert len(train) == 6
    assert len(held_out) == 4
    assert not {e.prompt for e in train} & {e.prompt for e in held_out}
    assert split(examples, 4, seed=0) == (train, held_out)
    assert any(split(examples, 4, seed=s)[1] != held_out for s in range(1, 9))
    assert split(examples, 0, seed=0) == (examples, [])
    with pytest.raises(TaskError, match="leaves none to train on; lower eval_size"):
        split(examples, 10, seed=0)
