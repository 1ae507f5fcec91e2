"""Built-in arithmetic with worked chains: made of nothing, judged exactly, of any difficulty."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .character import CharacterTokenizer
from .options import check_options
from .types import Demonstration, Example, RewardFunction, Task, TaskError, Tokenizer

ALPHABET = "0123456789+*%=,"
KINDS = ("sum", "modular", "addition")
_LARGEST_SPACE = 2**62


@dataclass(frozen=True, kw_only=True)
class ArithmeticOptions:
    """How hard the problems are.

    Every completion is a chain of intermediate results joined by commas; the last one is the
    answer, and it alone is judged.

        kind        prompt       completion      the steps
        sum         7+5+8=       12,20           7+5=12, 12+8=20
        modular     3*4+2*6%10=  2,4,4           ((3·4)+2)·6 from left to right, each modulo 10
        addition    358+467=     15,12,8,825     columns from the right with carry, then the sum

    Args:
        kind: one of the above.
        terms: numbers in a problem, at least 2.
        max_value: the largest number; the smallest is 0.
        modulus: of `modular` problems, at least 2.
        chain_weight: weight of a second reward, the fraction of intermediate results that are
            right, place by place; 0 leaves it out.
        unfinished: share of the demonstrations that stop before the last step, as careless
            examples do; a policy that imitates them learns to give up half-way.

    Raises:
        TaskError: for a value out of range.
    """

    kind: str = "sum"
    terms: int = 3
    max_value: int = 9
    modulus: int = 10
    chain_weight: float = 0.0
    unfinished: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TaskError(
                f"arithmetic: kind must be one of {', '.join(KINDS)}, got {self.kind!r}."
            )
        for name, least in (("terms", 2), ("max_value", 1), ("modulus", 2)):
            value = self._integer(name)
            if value < least:
                raise TaskError(f"arithmetic: {name} must be at least {least}, got {value}.")
        if self.chain_weight < 0:
            raise TaskError(f"arithmetic: chain_weight must be 0 or more, got {self.chain_weight}.")
        if not 0 <= self.unfinished <= 1:
            raise TaskError(f"arithmetic: unfinished must be 0 to 1, got {self.unfinished}.")
        if self.space() > _LARGEST_SPACE:
            raise TaskError(
                f"arithmetic: {self.terms} numbers up to {self.max_value} make more than 2^62 "
                "problems; take fewer terms or a smaller max_value."
            )

    def _integer(self, name: str) -> int:
        value = {"terms": self.terms, "max_value": self.max_value, "modulus": self.modulus}[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TaskError(f"arithmetic: {name} must be a whole number, got {value!r}.")
        return value

    def space(self) -> int:
        """How many distinct problems there are."""
        signs = 2 ** (self.terms - 1) if self.kind == "modular" else 1
        return (self.max_value + 1) ** self.terms * signs

    def problem(self, index: int) -> Problem:
        """Problem `index` of `space()`: its digits are the numbers, then the signs."""
        numbers = []
        for _ in range(self.terms):
            index, number = divmod(index, self.max_value + 1)
            numbers.append(number)
        if self.kind == "modular":
            signs = ["*" if index >> i & 1 else "+" for i in range(self.terms - 1)]
            return _modular(numbers, signs, self.modulus)
        return (_sum if self.kind == "sum" else _addition)(numbers)


@dataclass(frozen=True)
class Problem:
    """A prompt and the chain that answers it; the last link is the answer."""

    prompt: str
    chain: tuple[int, ...]

    def completion(self, links: int | None = None) -> str:
        """The worked answer, or its first links."""
        return ",".join(map(str, self.chain[:links]))


def make_arithmetic(
    options: Mapping[str, Any],
    *,
    train_size: int,
    eval_size: int,
    seed: int,
    tokenizer: Tokenizer | None = None,
) -> Task:
    """Arithmetic problems with exact verification and a worked chain for each.

    All distinct problems are shuffled by the seed; the first `eval_size` are held out and the
    next `train_size` are for training, so no problem is in both, and the held-out ones stay the
    same when `train_size` changes.

    Args:
        options: fields of `ArithmeticOptions`.
        train_size: problems to train on.
        eval_size: problems held out.
        seed: which ones.
        tokenizer: another than the characters of `ALPHABET`.

    Returns:
        The task; `demonstrations[i]` answers `train[i]`.

    Raises:
        TaskError: for unknown or impossible options, or more problems than there are.
    """
    check_options("arithmetic", options, ArithmeticOptions.__dataclass_fields__)
    difficulty = ArithmeticOptions(**options)
    if train_size + eval_size > difficulty.space():
        raise TaskError(
            f"arithmetic: {train_size} training and {eval_size} evaluation problems are wanted, "
            f"but kind={difficulty.kind}, terms={difficulty.terms}, "
            f"max_value={difficulty.max_value} has {difficulty.space()} distinct ones; ask for "
            "fewer, or raise terms or max_value."
        )
    drawn = [
        difficulty.problem(index)
        for index in _shuffled_prefix(difficulty.space(), eval_size + train_size, seed)
    ]
    rewards = [RewardFunction("answer", answer_reward, alone=True)]
    if difficulty.chain_weight > 0:
        rewards.append(RewardFunction("chain", chain_reward, difficulty.chain_weight, alone=True))
    train = drawn[eval_size:]
    return Task(
        name="arithmetic",
        train=[_example(problem) for problem in train],
        eval=[_example(problem) for problem in drawn[:eval_size]],
        rewards=tuple(rewards),
        tokenizer=tokenizer if tokenizer is not None else CharacterTokenizer(ALPHABET),
        demonstrations=_demonstrations(train, difficulty.unfinished, seed),
        solved_by="answer",
    )


def final_answer(completion: str) -> str:
    """What stands after the last comma: the answer of a chain."""
    return completion.rpartition(",")[2]


def answer_reward(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str]
) -> list[float]:
    """1 where the final answer is exactly the right number, digit by digit, else 0."""
    return [float(final_answer(c) == a) for c, a in zip(completions, answer, strict=True)]


def chain_reward(
    prompts: Sequence[str], completions: Sequence[str], chain: Sequence[Sequence[str]]
) -> list[float]:
    """The fraction of links that are right at their place; longer chains than needed count whole.

    r = #{i: given_i = right_i} / max(len(given), len(right))
    """
    rewards = []
    for completion, right in zip(completions, chain, strict=True):
        given = completion.split(",")
        hits = sum(g == r for g, r in zip(given, right, strict=False))
        rewards.append(hits / max(len(given), len(right)))
    return rewards


def _demonstrations(
    problems: Sequence[Problem], unfinished: float, seed: int
) -> list[Demonstration]:
    """A worked answer a problem; some stop after a random link before the last."""
    rng = random.Random(f"demonstrations {seed}")
    found = []
    for problem in problems:
        stops = len(problem.chain) > 1 and rng.random() < unfinished
        links = rng.randrange(1, len(problem.chain)) if stops else None
        found.append(Demonstration(problem.prompt, problem.completion(links)))
    return found


def _example(problem: Problem) -> Example:
    links = [str(link) for link in problem.chain]
    return Example(problem.prompt, {"answer": links[-1], "chain": links})


def _sum(numbers: list[int]) -> Problem:
    chain, total = [], numbers[0]
    for number in numbers[1:]:
        total += number
        chain.append(total)
    return Problem("+".join(map(str, numbers)) + "=", tuple(chain))


def _modular(numbers: list[int], signs: list[str], modulus: int) -> Problem:
    text, chain, total = str(numbers[0]), [], numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        total = (total * number if sign == "*" else total + number) % modulus
        text += f"{sign}{number}"
        chain.append(total)
    return Problem(f"{text}%{modulus}=", tuple(chain))


def _addition(numbers: list[int]) -> Problem:
    columns, carry = [], 0
    for place in range(len(str(max(numbers)))):
        column = sum(number // 10**place % 10 for number in numbers) + carry
        columns.append(column)
        carry = column // 10
    return Problem("+".join(map(str, numbers)) + "=", (*columns, sum(numbers)))


def _shuffled_prefix(size: int, count: int, seed: int) -> list[int]:
    """The first `count` places of a shuffle of `range(size)`, without building the rest."""
    draw = random.Random(seed).randrange
    moved: dict[int, int] = {}
    prefix = []
    for place in range(count):
        other = draw(place, size)
        prefix.append(moved.get(other, other))
        moved[other] = moved.pop(place, place)
    return prefix
