"""One token a character: the tokenizer of tiny models and fast tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .types import Prompt, TaskError

PAD_ID = 0
END_ID = 1
_FIRST = 2
_PAD_SIGN = "\ufffd"


class CharacterTokenizer:
    """A fixed alphabet, plus a padding token (id 0) and an end token (id 1).

    Args:
        alphabet: the characters in the order of their ids, from id 2 on.

    Raises:
        TaskError: if the alphabet is empty or holds a character twice.

    >>> CharacterTokenizer("0123456789+=").encode("7+5=")
    [9, 12, 7, 13]
    """

    def __init__(self, alphabet: str):
        if not alphabet:
            raise TaskError("CharacterTokenizer needs at least one character, got none.")
        repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
        if repeated:
            raise TaskError(
                f"CharacterTokenizer's alphabet {alphabet!r} holds {repeated[0]!r} more than once; "
                "give each character once."
            )
        self.alphabet = alphabet
        self._ids = {character: _FIRST + i for i, character in enumerate(alphabet)}
        # What each id shows as: the padding, the end, the alphabet.
        self._signs = [_PAD_SIGN, "", *alphabet]

    @classmethod
    def over(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """A tokenizer over the characters found in some texts, in code point order."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        return cls("".join(sorted(found)))

    @property
    def vocab_size(self) -> int:
        """Number of characters plus two."""
        return _FIRST + len(self.alphabet)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end token alone."""
        return (END_ID,)

    @property
    def pad_id(self) -> int:
        """The padding token."""
        return PAD_ID

    def encode(self, text: str) -> list[int]:
        """The ids of the characters.

        Raises:
            TaskError: naming the first character that the alphabet does not hold.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            position = next(i for i, c in enumerate(text) if c not in self._ids)
            raise TaskError(
                f"Unknown character {text[position]!r} at position {position} of {text!r}. "
                f"Alphabet: {self.alphabet!r}."
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The characters of `ids`, without the end token.

        A padding token that a model *sampled* shows as U+FFFD: dropping it would turn a wrong
        answer into a right one.

        Raises:
            TaskError: if an id lies outside the vocabulary.
        """
        tokens = list(map(int, ids))
        for token in tokens:
            if not 0 <= token < len(self._signs):
                raise TaskError(
                    f"Token id {token} lies outside the vocabulary of {self.vocab_size}; does the "
                    "model's vocab_size match the tokenizer's?"
                )
        return "".join([self._signs[token] for token in tokens])

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a plain text prompt.

        Raises:
            TaskError: for chat messages, since there is no chat template, and for an empty prompt.
        """
        if not isinstance(prompt, str):
            raise TaskError(
                "CharacterTokenizer has no chat template; give the prompt as a string, or use a "
                f"tokenizer that has one. Prompt: {prompt!r}."
            )
        if not prompt:
            raise TaskError("The prompt is empty; a completion needs at least one token before it.")
        return self.encode(prompt)
