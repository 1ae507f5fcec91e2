"""Any family of reasoning-gym by its name, with its own verifier as the reward.

What its version 0.1.25 does and this adapter guards against: item i is drawn from
`Random(seed + i)`, so neighbouring seeds share almost all their questions; small families repeat
questions; `basic_arithmetic` has wrong gold answers with division or without parentheses; a few
families give other questions in every process unless `PYTHONHASHSEED` is fixed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..registry.errors import unknown_name
from .character import CharacterTokenizer
from .lazy import require
from .options import check_options
from .types import Demonstration, Example, Prompt, RewardFunction, Task, TaskError, Tokenizer

HASH_ORDERED = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Families whose questions depend on Python's hash seed as well as on their own."""

_RESERVED_OPTIONS = ("seed", "size")
_WINDOW = 2**24
_DRAWS_A_QUESTION = 20
_SPARE_DRAWS = 200


def families() -> list[str]:
    """The names of all families that are installed."""
    return sorted(_datasets())


def make_reasoning_gym(
    family: str,
    options: Mapping[str, Any],
    *,
    train_size: int,
    eval_size: int,
    seed: int,
    tokenizer: Tokenizer | None = None,
    answer_tag: str = "",
) -> Task:
    """A task whose questions, answers and verifier are a reasoning-gym family's.

    The two splits draw from windows of seeds that cannot meet, and every question is kept once:
    the held-out ones first, so that none of them is trained on.

    Args:
        family: its name, e.g. `"chain_sum"`.
        options: fields of the family's own config, except its `seed` and `size`.
        train_size: distinct questions to train on.
        eval_size: distinct questions held out.
        seed: which ones.
        tokenizer: a model's own; None makes a `CharacterTokenizer` over the characters found.
        answer_tag: the answer is what stands in the last `<tag>...</tag>` of a completion; empty:
            the whole completion, stripped.

    Returns:
        The task, with the columns `answer` and `entry` (the family's own record).

    Raises:
        TaskError: for an unknown family or option, or too few distinct questions.
    """
    datasets = _datasets()
    if family not in datasets:
        raise unknown_name("reasoning-gym family", family, datasets)
    owner = f"reasoning_gym:{family}"
    if reserved := [name for name in _RESERVED_OPTIONS if name in options]:
        raise TaskError(
            f"{owner}: {reserved[0]!r} is not an option here; set the task's own seed, train_size "
            "and eval_size."
        )
    config = datasets[family][1]
    known = [name for name in config.__dataclass_fields__ if name not in _RESERVED_OPTIONS]
    check_options(owner, options, known)
    _warn_of_hash_order(family)
    build = _builder(family, options)
    seen: set[str] = set()
    held_out = _distinct(owner, "evaluation", build, eval_size, _first_seed(seed, 1), seen)
    training = _distinct(owner, "training", build, train_size, _first_seed(seed, 0), seen)
    if tokenizer is None:
        entries = [*held_out, *training]
        texts = [text for e in entries for text in (e["question"], _answer(e))]
        texts += [f"<{answer_tag}>", f"</{answer_tag}>"] if answer_tag else []
        tokenizer = CharacterTokenizer.over(texts)
    return Task(
        name=owner,
        train=[_example(entry) for entry in training],
        eval=[_example(entry) for entry in held_out],
        rewards=(RewardFunction("answer", _verifier(build(0, 1), answer_tag), alone=True),),
        tokenizer=tokenizer,
        demonstrations=_demonstrations(training, answer_tag),
        solved_by="answer",
    )


def extract_answer(completion: str, tag: str) -> str | None:
    """The stripped text of the last `<tag>...</tag>`; None where there is none.

    With an empty tag, the whole completion, stripped.
    """
    if not tag:
        return completion.strip()
    before, closing, _ = completion.rpartition(f"</{tag}>")
    _, found, answer = before.rpartition(f"<{tag}>")
    return answer.strip() if closing and found else None


def _datasets() -> Mapping[str, tuple[type, Any]]:
    require("reasoning_gym", "A reasoning_gym task")
    return require("reasoning_gym.factory", "A reasoning_gym task").DATASETS


def _warn_of_hash_order(family: str) -> None:
    if family in HASH_ORDERED and os.environ.get("PYTHONHASHSEED", "random") == "random":
        warnings.warn(
            f"reasoning_gym:{family} draws other questions in every process, so a resumed run "
            "would see others too; start Python with PYTHONHASHSEED=0.",
            stacklevel=4,
        )


def _builder(family: str, options: Mapping[str, Any]) -> Callable[[int, int], Any]:
    """`build(seed, size)`; wrong option values come back as a TaskError."""
    module = require("reasoning_gym", "A reasoning_gym task")

    def build(seed: int, size: int) -> Any:
        try:
            dataset = module.create_dataset(family, seed=seed, size=size, **options)
        except (AssertionError, TypeError, ValueError) as error:
            raise TaskError(
                f"reasoning_gym:{family} refuses its options {dict(options)}: {error}"
            ) from None
        config = dataset.config
        if family == "basic_arithmetic" and (
            "/" in config.operators or not config.allow_parentheses
        ):
            raise TaskError(
                "reasoning_gym:basic_arithmetic has wrong gold answers with division or without "
                "parentheses; set operators=[+, -, *] and allow_parentheses=true, or use "
                "chain_sum."
            )
        return dataset

    return build


def _first_seed(seed: int, split: int) -> int:
    """A start in the lower (split 0) or upper (split 1) half of all 32-bit seeds."""
    state = int(np.random.SeedSequence([seed, split]).generate_state(1)[0])
    return split * 2**31 + state % (2**31 - _WINDOW)


def _distinct(
    owner: str,
    split: str,
    build: Callable[[int, int], Any],
    wanted: int,
    first_seed: int,
    seen: set[str],
) -> list[dict[str, Any]]:
    """The first `wanted` entries whose questions are not in `seen`, which grows by theirs."""
    if wanted == 0:
        return []
    draws = min(_WINDOW, wanted * _DRAWS_A_QUESTION + _SPARE_DRAWS)
    found: list[dict[str, Any]] = []
    for entry in _entries(build(first_seed, draws), draws):
        if entry["question"] not in seen:
            seen.add(entry["question"])
            found.append(entry)
            if len(found) == wanted:
                return found
    raise TaskError(
        f"{owner}: {draws} draws gave only {len(found)} distinct {split} questions (those of the "
        f"other split left out), {wanted} are wanted; ask for fewer, or choose options that make "
        "more."
    )


def _entries(dataset: Any, draws: int) -> Iterator[dict[str, Any]]:
    for index in range(draws):
        yield dataset[index]


def _answer(entry: Mapping[str, Any]) -> str:
    """The gold answer; empty where the family has only a verifier."""
    return "" if entry["answer"] is None else str(entry["answer"])


def _example(entry: Mapping[str, Any]) -> Example:
    return Example(entry["question"], {"answer": entry["answer"], "entry": entry})


def _demonstrations(entries: Sequence[Mapping[str, Any]], tag: str) -> list[Demonstration] | None:
    if any(entry["answer"] is None for entry in entries):
        return None
    wrap = f"<{tag}>{{}}</{tag}>" if tag else "{}"
    return [Demonstration(e["question"], wrap.format(_answer(e))) for e in entries]


def _verifier(dataset: Any, tag: str) -> Callable[..., list[float | Exception]]:
    def verify(
        prompts: Sequence[Prompt], completions: Sequence[str], entry: Sequence[dict[str, Any]]
    ) -> list[float | Exception]:
        scores: list[float | Exception] = []
        for completion, record in zip(completions, entry, strict=True):
            try:
                scores.append(dataset.score_answer(extract_answer(completion, tag), record))
            except Exception as error:
                # One answer the verifier chokes on must not cost the others their reward.
                scores.append(error)
        return scores

    return verify
