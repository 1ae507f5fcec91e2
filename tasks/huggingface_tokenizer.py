"""A Hugging Face tokenizer from a local folder, with its chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .lazy import require
from .types import Prompt, TaskError


class HuggingFaceTokenizer:
    """What `transformers.AutoTokenizer` finds in a folder, as a `Tokenizer`.

    A completion stops on the tokenizer's end token and on every `eos_token_id` of the folder's
    `generation_config.json`.

    Args:
        folder: a local folder that holds the tokenizer's files; nothing is downloaded.
        trust_remote_code: run tokenizer code that the folder brings along.

    Raises:
        TaskError: if the folder or its tokenizer cannot be read, or no token ends a completion.
    """

    def __init__(self, folder: str | Path, *, trust_remote_code: bool = False):
        folder = Path(folder)
        if not folder.is_dir():
            raise TaskError(
                f"There is no tokenizer folder {str(folder)!r}; give a local folder with the "
                "tokenizer's files."
            )
        # Without torch it advises to install it, which a tokenizer does not need.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        transformers = require("transformers", "A Hugging Face tokenizer")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            raise TaskError(
                f"The folder {str(folder)!r} holds no readable tokenizer: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._stop_ids = _stop_ids(folder, self._tokenizer.eos_token_id)
        pad = self._tokenizer.pad_token_id
        self._pad_id = int(self._stop_ids[0] if pad is None else pad)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; a model's own may be larger."""
        return len(self._tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokenizer's end token, then those of the generation config."""
        return self._stop_ids

    @property
    def pad_id(self) -> int:
        """The tokenizer's padding token, or a stop token where it has none."""
        return self._pad_id

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts go through a chat template."""
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with no special tokens added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens and with its spaces as they are."""
        return self._tokenizer.decode(
            [int(token) for token in ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt up to where the model's answer begins.

        A text is one user message where there is a chat template; elsewhere it is encoded with
        the tokenizer's own special tokens.

        Raises:
            TaskError: for messages without a chat template, messages the template refuses, or an
                empty prompt.
        """
        if not prompt:
            raise TaskError("The prompt is empty; a completion needs at least one token before it.")
        if not self.has_chat_template:
            if not isinstance(prompt, str):
                raise TaskError(
                    "The tokenizer has no chat template, so a prompt must be a text, got messages: "
                    f"{prompt!r}."
                )
            return list(self._tokenizer.encode(prompt, add_special_tokens=True))
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            encoded = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:
            raise TaskError(
                f"The chat template refuses the messages {messages!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return [int(token) for token in encoded["input_ids"]]


def _stop_ids(folder: Path, own: int | list[int] | None) -> tuple[int, ...]:
    found = _as_list(own) + _as_list(_generation_config(folder).get("eos_token_id"))
    if not found:
        raise TaskError(
            f"No token ends a completion: neither the tokenizer in {str(folder)!r} nor its "
            "generation_config.json names an end token."
        )
    return tuple(dict.fromkeys(found))


def _as_list(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return [int(i) for i in ids] if isinstance(ids, list) else [int(ids)]


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: not valid JSON: {error}.") from None
