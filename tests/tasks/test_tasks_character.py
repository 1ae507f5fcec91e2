"""One token a character."""

import pytest
from zootomy.tasks import CharacterTokenizer, TaskError


def test_ids_and_back():
    tokenizer = CharacterTokenizer("0123456789+=")
    # Pad 0, end 1, then the alphabet from 2: "7" is 2 + 7.
    assert tokenizer.encode("7+5=") == [9, 12, 7, 13]
    assert tokenizer.decode([9, 12, 7, 13, 1]) == "7+5="
    assert tokenizer.vocab_size == 14
    assert tokenizer.stop_ids == (1,)
    assert tokenizer.pad_id == 0
    assert tokenizer.encode_prompt("7+5=") == tokenizer.encode("7+5=")


def test_a_sampled_pad_token_cannot_make_a_wrong_answer_right():
    # Dropped silently, the ids of "1", pad, "2" would read "12".
    tokenizer = CharacterTokenizer("012")
    assert tokenizer.decode([3, 0, 4, 1]) == "1\ufffd2"


def test_unknown_character():
    with pytest.raises(TaskError) as error:
        CharacterTokenizer("01+").encode("1+x")
    assert str(error.value) == "Unknown character 'x' at position 2 of '1+x'. Alphabet: '01+'."


def test_wrong_input():
    tokenizer = CharacterTokenizer("ab")
    with pytest.raises(TaskError, match="Token id 4 lies outside the vocabulary of 4"):
        tokenizer.decode([2, 4])
    with pytest.raises(TaskError, match="has no chat template"):
        tokenizer.encode_prompt([{"role": "user", "content": "a"}])
    with pytest.raises(TaskError, match="The prompt is empty"):
        tokenizer.encode_prompt("")
    with pytest.raises(TaskError, match="holds 'a' more than once"):
        CharacterTokenizer("aba")
    with pytest.raises(TaskError, match="at least one character"):
        CharacterTokenizer("")


def test_alphabet_of_texts():
    assert CharacterTokenizer.over(["cab", "d a"]).alphabet == " abcd"
