"""A data set of one JSON object a line: `prompt`, and any columns the reward functions read."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .types import RESERVED, Example, Prompt, TaskError

_ROLES = "system, user, assistant or tool"


def load_jsonl(path: str | Path) -> list[Example]:
    """Read examples from a file of JSON lines; empty lines are skipped.

    Args:
        path: UTF-8 text, each line `{"prompt": text or messages, "any column": value, ...}`, all
            lines with the same columns.

    Returns:
        One example a line, in order.

    Raises:
        TaskError: naming file and line, for a line that is no JSON object, has no usable prompt,
            or lacks a column the first line has (or the other way round); and for a missing or
            empty file.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskError(f"There is no data set file {str(path)!r}.")
    examples: list[Example] = []
    first_line = 0
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(_decoded(path, lines), start=1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            example = _example(place, line)
            if not examples:
                first_line = number
            else:
                _check_columns(place, example, examples[0], f"{path}:{first_line}")
            examples.append(example)
    if not examples:
        raise TaskError(f"The data set {str(path)!r} is empty; give at least one line.")
    return examples


def split(
    examples: Sequence[Example], eval_size: int, seed: int
) -> tuple[list[Example], list[Example]]:
    """Hold some examples out; all examples with the same prompt go to the same side.

    Args:
        examples: all of them.
        eval_size: how many to hold out, at least; a prompt that occurs several times may bring
            a few more.
        seed: which ones.

    Returns:
        Training and held-out examples, each in their first order.

    Raises:
        TaskError: if nothing would be left to train on.
    """
    groups: dict[str, list[int]] = {}
    for position, example in enumerate(examples):
        groups.setdefault(prompt_key(example.prompt), []).append(position)
    order = list(groups)
    random.Random(seed).shuffle(order)
    held_out: set[int] = set()
    for key in order:
        if len(held_out) >= eval_size:
            break
        held_out.update(groups[key])
    if len(held_out) == len(examples):
        raise TaskError(
            f"Holding {eval_size} examples out of {len(examples)} with {len(groups)} distinct "
            "prompts leaves none to train on; lower eval_size or give an eval_file."
        )
    train = [example for i, example in enumerate(examples) if i not in held_out]
    return train, [examples[i] for i in sorted(held_out)]


def warn_of_overlap(train: Sequence[Example], held_out: Sequence[Example]) -> None:
    """Warn if held-out prompts are trained on as well."""
    trained = {prompt_key(example.prompt) for example in train}
    common = sum(prompt_key(example.prompt) in trained for example in held_out)
    if common:
        warnings.warn(
            f"{common} of {len(held_out)} evaluation prompts are training prompts too; the "
            "evaluation will look better than it is.",
            stacklevel=3,
        )


def prompt_key(prompt: Prompt) -> str:
    """A text that is the same for equal prompts only."""
    return json.dumps(prompt, sort_keys=True, ensure_ascii=False)


def _decoded(path: Path, lines: Any) -> Any:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise TaskError(f"The data set {str(path)!r} is not UTF-8 text: {error}.") from None


def _example(place: str, line: str) -> Example:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{place}: not valid JSON: {error}.") from None
    if not isinstance(record, dict):
        raise TaskError(
            f"{place}: expected a JSON object with a 'prompt', got {type(record).__name__}."
        )
    if "prompt" not in record:
        raise TaskError(
            f"{place}: no 'prompt'; the line has {', '.join(sorted(record)) or 'nothing'}."
        )
    prompt = record.pop("prompt")
    _check_prompt(place, prompt)
    for name in record:
        if name in RESERVED:
            raise TaskError(
                f"{place}: the column name {name!r} is taken: reward functions get the library's "
                f"own {name} under it; rename the column."
            )
    return Example(prompt, record)


def _check_prompt(place: str, prompt: Any) -> None:
    if isinstance(prompt, str):
        if not prompt:
            raise TaskError(f"{place}: the prompt is empty.")
        return
    if not isinstance(prompt, list) or not prompt:
        raise TaskError(
            f"{place}: 'prompt' must be a text or a list of chat messages, got {prompt!r}."
        )
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TaskError(
                f"{place}: a chat message must be an object with 'role' ({_ROLES}) and 'content', "
                f"got {message!r}."
            )
        if "content" not in message:
            raise TaskError(f"{place}: the chat message {message!r} has no 'content'.")


def _check_columns(place: str, example: Example, first: Example, first_place: str) -> None:
    missing = sorted(set(first.columns) - set(example.columns))
    if missing:
        raise TaskError(
            f"{place}: the column {missing[0]!r} is missing, which {first_place} has; give every "
            "line the same columns (null where there is no value)."
        )
    extra = sorted(set(example.columns) - set(first.columns))
    if extra:
        raise TaskError(
            f"{first_place}: the column {extra[0]!r} is missing, which {place} has; give every "
            "line the same columns (null where there is no value)."
        )
