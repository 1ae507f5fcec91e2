"""From a small config to a task: the one door the learner and the command line use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..registry.errors import unknown_name
from .arithmetic import ArithmeticOptions, make_arithmetic
from .huggingface_tokenizer import HuggingFaceTokenizer
from .jsonl import load_jsonl, split, warn_of_overlap
from .math_verify import math_verify_reward
from .options import check_options
from .reasoning_gym import make_reasoning_gym
from .rewards import check_rewards
from .types import Demonstration, Example, RewardFunction, Task, TaskError, Tokenizer
from .user_functions import load_reward_functions

_GENERATED_SIZE = 1000
_MATH_VERIFY = "math_verify"
_PREFIX = "reasoning_gym:"


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What to learn: a built-in task, a reasoning-gym family, or a data set of one's own.

    Args:
        name: `arithmetic`, `reasoning_gym:FAMILY`, or the path of a `.jsonl` file.
        options: of `arithmetic` (see `ArithmeticOptions`) or of the family; a data set has none.
        train_size: training examples; None: all lines of a data set, else 1000 (or what
            arithmetic's options leave).
        eval_size: held-out examples; for a data set without `eval_file`, taken out of it.
        seed: which examples, and which are held out.
        eval_file: a second `.jsonl` file to evaluate on.
        rewards: `math_verify`, `path.py:function`, or `path.py` (every marked function); a data
            set needs at least one, elsewhere they come on top of the task's own.
        reward_weights: one a reward function of `rewards`, in order; empty: their own.
        tokenizer: a folder with a Hugging Face tokenizer; empty: characters, which only
            `arithmetic` and `reasoning_gym` have.
        system_prompt: put before every text prompt as a system message; needs a chat template.
        answer_tag: the answer to a reasoning_gym question is read from `<tag>...</tag>`.
        solved_by: the reward function that decides `eval/accuracy`; empty: the task's own.
        solved_at: from what value on it says "right".
    """

    name: str = "arithmetic"
    options: Mapping[str, Any] = field(default_factory=dict)
    train_size: int | None = None
    eval_size: int = 100
    seed: int = 0
    eval_file: str = ""
    rewards: tuple[str, ...] = ()
    reward_weights: tuple[float, ...] = ()
    tokenizer: str = ""
    system_prompt: str = ""
    answer_tag: str = ""
    solved_by: str = ""
    solved_at: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("eval_size", self.eval_size), ("seed", self.seed)):
            if value < 0:
                raise TaskError(f"task.{name} must be 0 or more, got {value}.")
        if self.train_size is not None and self.train_size < 1:
            raise TaskError(f"task.train_size must be at least 1, got {self.train_size}.")
        if self.eval_file and not self.is_dataset:
            raise TaskError(f"task.eval_file goes with a .jsonl data set, not with {self.name!r}.")
        if self.answer_tag and not self.name.startswith(_PREFIX):
            raise TaskError(
                f"task.answer_tag goes with a reasoning_gym task, not with {self.name!r}."
            )

    @property
    def is_dataset(self) -> bool:
        """Whether the name is a file of JSON lines."""
        return self.name.endswith(".jsonl")


def make_task(config: TaskConfig, tokenizer: Tokenizer | None = None) -> Task:
    """Build the task a config describes.

    Args:
        config: what to learn.
        tokenizer: one that is loaded already, e.g. the model's; takes the place of
            `config.tokenizer`, which must then be empty.

    Returns:
        The task, its reward functions checked against its columns.

    Raises:
        TaskError: for anything about the config that cannot be, naming it.
    """
    if config.tokenizer:
        if tokenizer is not None:
            raise TaskError(
                f"task.tokenizer={config.tokenizer!r} and a tokenizer were given; give one of them."
            )
        tokenizer = HuggingFaceTokenizer(config.tokenizer)
    extra = _rewards(config)
    task = _base_task(config, tokenizer, extra)
    if config.system_prompt:
        task = _with_system_prompt(task, config.system_prompt)
    task = replace(
        task,
        solved_by=config.solved_by or task.solved_by,
        solved_at=config.solved_at,
    )
    check_rewards(task.rewards, sorted(task.train[0].columns))
    return task


def _base_task(
    config: TaskConfig, tokenizer: Tokenizer | None, extra: tuple[RewardFunction, ...]
) -> Task:
    if config.is_dataset:
        return _dataset(config, tokenizer, extra)
    if config.name == "arithmetic":
        task = make_arithmetic(
            config.options,
            train_size=_arithmetic_size(config),
            eval_size=config.eval_size,
            seed=config.seed,
            tokenizer=tokenizer,
        )
    elif config.name.startswith(_PREFIX):
        task = make_reasoning_gym(
            config.name.removeprefix(_PREFIX),
            config.options,
            train_size=_GENERATED_SIZE if config.train_size is None else config.train_size,
            eval_size=config.eval_size,
            seed=config.seed,
            tokenizer=tokenizer,
            answer_tag=config.answer_tag,
        )
    else:
        known = ["arithmetic", f"{_PREFIX}FAMILY", "FILE.jsonl"]
        raise unknown_name("task", config.name, known)
    return replace(task, rewards=(*task.rewards, *extra))


def _arithmetic_size(config: TaskConfig) -> int:
    if config.train_size is not None:
        return config.train_size
    check_options("arithmetic", config.options, ArithmeticOptions.__dataclass_fields__)
    left = ArithmeticOptions(**config.options).space() - config.eval_size
    return max(1, min(_GENERATED_SIZE, left))


def _dataset(
    config: TaskConfig, tokenizer: Tokenizer | None, rewards: tuple[RewardFunction, ...]
) -> Task:
    if config.options:
        raise TaskError(
            f"The data set {config.name!r} has no options, got {', '.join(config.options)}."
        )
    if not rewards:
        raise TaskError(
            f"The data set {config.name!r} needs a reward; set task.rewards to math_verify or to "
            "path.py:function."
        )
    if tokenizer is None:
        raise TaskError(
            f"The data set {config.name!r} needs a tokenizer; set task.tokenizer to a folder that "
            "holds one."
        )
    examples = load_jsonl(config.name)
    if config.eval_file:
        train, held_out = examples, load_jsonl(config.eval_file)[: config.eval_size]
        warn_of_overlap(train, held_out)
    else:
        train, held_out = split(examples, config.eval_size, config.seed)
    if config.train_size is not None:
        if config.train_size > len(train):
            raise TaskError(
                f"task.train_size={config.train_size}, but {config.name!r} has {len(train)} "
                "training examples."
            )
        train = train[: config.train_size]
    return Task(
        name=config.name,
        train=train,
        eval=held_out,
        rewards=rewards,
        tokenizer=tokenizer,
        solved_by=_MATH_VERIFY if _MATH_VERIFY in [r.name for r in rewards] else None,
    )


def _rewards(config: TaskConfig) -> tuple[RewardFunction, ...]:
    found: list[RewardFunction] = []
    for spec in config.rewards:
        found += [math_verify_reward()] if spec == _MATH_VERIFY else load_reward_functions(spec)
    if not config.reward_weights:
        return tuple(found)
    if len(config.reward_weights) != len(found):
        raise TaskError(
            f"task.reward_weights has {len(config.reward_weights)} weights for {len(found)} reward "
            f"functions ({', '.join(r.name for r in found) or 'none'}); give one each."
        )
    return tuple(
        replace(reward, weight=weight)
        for reward, weight in zip(found, config.reward_weights, strict=True)
    )


def _with_system_prompt(task: Task, system_prompt: str) -> Task:
    system = {"role": "system", "content": system_prompt}

    def prompted(prompt: Any) -> list[dict[str, Any]]:
        if isinstance(prompt, str):
            return [system, {"role": "user", "content": prompt}]
        if prompt[0]["role"] == "system":
            raise TaskError(
                "task.system_prompt is set, but a prompt has a system message of its own: "
                f"{prompt[0]['content']!r}."
            )
        return [system, *prompt]

    def examples(split: Sequence[Example]) -> list[Example]:
        return [Example(prompted(e.prompt), e.columns) for e in split]

    demonstrations = task.demonstrations and [
        Demonstration(prompted(d.prompt), d.completion) for d in task.demonstrations
    ]
    return replace(
        task,
        train=examples(task.train),
        eval=examples(task.eval),
        demonstrations=demonstrations,
    )
