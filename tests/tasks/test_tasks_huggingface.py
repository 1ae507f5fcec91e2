"""Hugging Face tokenizers: a tiny one is made here, saved, and read back."""

import json

import pytest
from zootomy.tasks import HuggingFaceTokenizer, TaskError

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Make folders with a byte-level tokenizer: two tokens a merge, special tokens at the end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["hello hello world , twelve"], trainer)

    def make(name, template=TEMPLATE, eos="</s>", generation=None):
        folder = tmp_path_factory.mktemp(name)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token=eos)
        fast.chat_template = template
        fast.save_pretrained(folder)
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        return folder

    return make


@pytest.fixture(scope="module")
def chat(save):
    return HuggingFaceTokenizer(save("chat", generation={"eos_token_id": [2, 1]}))


def test_text_and_back(chat):
    text = "hello  world , ü\n"
    ids = chat.encode(text)
    assert len(ids) < len(text)
    assert chat.decode(ids) == text
    assert chat.decode([*ids, 1]) == text
    assert all(0 <= i < chat.vocab_size for i in ids)


def test_stop_ids_are_those_of_tokenizer_and_generation_config(chat, save):
    # Fault 48: a second end token of the generation config once did not stop.
    assert chat.stop_ids == (1, 2)
    assert chat.pad_id == 1
    assert HuggingFaceTokenizer(save("one", generation={"eos_token_id": 2})).stop_ids == (1, 2)
    assert HuggingFaceTokenizer(save("plain")).stop_ids == (1,)
    with pytest.raises(TaskError, match="No token ends a completion"):
        HuggingFaceTokenizer(save("endless", eos=None))


def test_the_chat_template_ends_where_the_answer_begins(chat):
    # <|user|> 4, <|end|> 2, <|assistant|> 5: special tokens of the template are single ids.
    expected = [4, *chat.encode("hello"), 2, 5]
    assert chat.encode_prompt("hello") == expected
    assert chat.encode_prompt([{"role": "user", "content": "hello"}]) == expected
    with_system = chat.encode_prompt(
        [{"role": "system", "content": "world"}, {"role": "user", "content": "hello"}]
    )
    assert with_system == [3, *chat.encode("world"), 2, *expected]


def test_without_a_template(save):
    plain = HuggingFaceTokenizer(save("no_template", template=None))
    assert not plain.has_chat_template
    assert plain.encode_prompt("hello") == plain.encode("hello")
    with pytest.raises(TaskError, match="has no chat template, so a prompt must be a text"):
        plain.encode_prompt([{"role": "user", "content": "hello"}])


def test_wrong_folders_and_prompts(chat, save, tmp_path):
    with pytest.raises(TaskError, match="There is no tokenizer folder"):
        HuggingFaceTokenizer(tmp_path / "none")
    with pytest.raises(TaskError, match="holds no readable tokenizer"):
        HuggingFaceTokenizer(tmp_path)
    with pytest.raises(TaskError, match="The prompt is empty"):
        chat.encode_prompt("")
    strict = "{{ raise_exception('users first') }}"
    with pytest.raises(TaskError, match=r"The chat template refuses the messages .*users first"):
        HuggingFaceTokenizer(save("strict", template=strict)).encode_prompt("hello")
