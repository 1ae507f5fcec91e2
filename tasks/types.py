"""The words of a task: examples, reward functions, tokenizers, and what they make together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, get_args

from ..registry import ZootomyError

Prompt = str | list[dict[str, Any]]
"""Plain text, or chat messages `[{"role": ..., "content": ...}, ...]`."""

OPTIONAL = ("step", "tokens", "turns")
"""What reaches a reward function only if it names it: `**kwargs` is for columns."""

RESERVED = ("prompts", "completions", *OPTIONAL)
"""Arguments a reward function gets from the library; no column may carry these names."""

Per = Literal["completion", "token", "turn"]
"""What a reward function gives a number for."""


class TaskError(ZootomyError):
    """A task, data set or reward function that cannot be used as given."""


@dataclass(frozen=True)
class Example:
    """One prompt and what is known about it.

    Args:
        prompt: text or chat messages.
        columns: what the reward functions read, e.g. `{"answer": "42"}`.
    """

    prompt: Prompt
    columns: Mapping[str, Any] = field(default_factory=dict)


class Demonstration(NamedTuple):
    """A prompt with a completion worth imitating, for a supervised warm-up.

    The completion is text without its end: whoever trains on it appends a stop token.
    """

    prompt: Prompt
    completion: str


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of ids: every id lies in `[0, vocab_size)`."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a completion, the usual one first."""
        ...

    @property
    def pad_id(self) -> int:
        """The id that fills unused places; masks, not this id, say what is unused."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with nothing added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without stop tokens."""
        ...

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids a completion follows: through the chat template where there is one."""
        ...


@dataclass(frozen=True)
class RewardFunction:
    """A named function that judges completions, and how much its judgement counts.

    Args:
        name: what metrics and errors call it.
        function: `f(prompts, completions, **columns) -> list[float | None]`, see `score`.
        weight: its factor in the total reward.
        per: what it gives a number for: a `completion`; or, with a list of numbers a completion,
            each `token` of it (the stop token included) or each `turn`. A turn's reward stands on
            its last token, and the completion's is the sum.
        alone: whether it judges each completion by itself. Then it is called with one completion
            at a time, as soon as that one has ended, while others are still sampled; and what it
            raises is a failure of that one only.

    Raises:
        TaskError: if the function cannot be called, the weight is not a finite number, or `per`
            is none of the three words.
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    per: Per = "completion"
    alone: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TaskError(
                f"Reward function {self.name!r} must be callable, got {self.function!r}."
            )
        if not math.isfinite(self.weight):
            raise TaskError(
                f"Reward function {self.name!r} has weight {self.weight!r}; give a finite number."
            )
        if self.per not in get_args(Per):
            raise TaskError(
                f"Reward function {self.name!r}: per must be {' or '.join(get_args(Per))}, got "
                f"{self.per!r}."
            )

    @cached_property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What the function asks for; read once, since reading takes as long as a small reward.

        Raises:
            TaskError: if it cannot be told.
        """
        try:
            return tuple(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            raise TaskError(
                f"Reward function {self.name!r} has no readable signature; wrap it in a Python "
                "function `f(prompts, completions, **columns)`."
            ) from None

    def __call__(self, *arguments: Any, **columns: Any) -> Any:
        """Call the bare function, so that a decorated function still works by itself."""
        return self.function(*arguments, **columns)


@dataclass(frozen=True)
class Task:
    """Prompts to learn from, prompts to be examined on, and how answers are judged.

    Args:
        name: how it was asked for.
        train: the examples sampled for training.
        eval: the held-out examples; none of their prompts is in `train`.
        rewards: the functions whose weighted sum is the reward.
        tokenizer: what turns the prompts into tokens.
        demonstrations: worked answers to `train` prompts for a supervised warm-up, or None.
        solved_by: name of the reward function that says whether an answer is right; None where
            no function says so, and then there is no accuracy, only a mean reward.
        solved_at: an answer counts as right when that function gives at least this.

    Raises:
        TaskError: if there is nothing to train on, two rewards share a name, or `solved_by`
            names none of them.
    """

    name: str
    train: Sequence[Example]
    eval: Sequence[Example]
    rewards: tuple[RewardFunction, ...]
    tokenizer: Tokenizer
    demonstrations: Sequence[Demonstration] | None = None
    solved_by: str | None = None
    solved_at: float = 1.0

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise TaskError(f"Task {self.name!r} has no training examples; give at least one.")
        if not self.rewards:
            raise TaskError(f"Task {self.name!r} has no reward function; give at least one.")
        names = [reward.name for reward in self.rewards]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise TaskError(
                f"Task {self.name!r} has several reward functions named "
                f"{', '.join(map(repr, repeated))}; give each a name of its own."
            )
        if self.solved_by is not None and self.solved_by not in names:
            raise TaskError(
                f"Task {self.name!r}: solved_by={self.solved_by!r} is none of its reward "
                f"functions {', '.join(map(repr, names))}."
            )
