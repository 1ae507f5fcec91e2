"""Held-out evaluation: sample, score, count; it changes no training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..registry import ZootomyError
from ..rollout import Completion, Request, RolloutConfig, RolloutEngine, SamplingParams, fit_prompts
from ..tasks import Example, Task, accuracy, gather_columns, score
from .agreed import agreed_scores


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a policy is examined.

    Attributes:
        every: steps between evaluations; 0 evaluates only before the first and after the last.
        size: held-out prompts, the first of the task's; None takes all.
        samples: completions a prompt.
        temperature: 0 is greedy.

    Raises:
        ZootomyError: for a number out of range, or several samples of a greedy policy.
    """

    every: int = 10
    size: int | None = 256
    samples: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ZootomyError(f"evaluation.every must be 0 or more, got {self.every}.")
        if self.size is not None and self.size < 1:
            raise ZootomyError(f"evaluation.size must be 1 or more, or None, got {self.size}.")
        if self.samples < 1:
            raise ZootomyError(f"evaluation.samples must be 1 or more, got {self.samples}.")
        if not self.temperature >= 0:
            raise ZootomyError(
                f"evaluation.temperature must be 0 (greedy) or more, got {self.temperature}."
            )
        if self.temperature == 0 and self.samples > 1:
            raise ZootomyError(
                f"evaluation.samples is {self.samples} at temperature 0: all would be the same. "
                f"Set evaluation.temperature above 0, or evaluation.samples to 1."
            )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an examination found.

    Attributes:
        metrics: `eval/accuracy` where the task says what is right, `eval/reward/mean`, lengths.
        examples: the prompts.
        completions: one list of `samples` a prompt.
        rewards: `[P * samples]`.
        valid: `[P * samples]` bool, false where there is no reward.
        solved: `[P * samples]` 1 right, 0 wrong, NaN not judged; None without a judge.
    """

    metrics: dict[str, float]
    examples: Sequence[Example]
    completions: list[list[Completion]]
    rewards: np.ndarray
    valid: np.ndarray
    solved: np.ndarray | None


def check_prompts(
    task: Task, rollout: RolloutConfig, config: EvaluationConfig
) -> list[tuple[int, ...]]:
    """The token ids of the held-out prompts that an evaluation takes.

    Raises:
        ZootomyError: for one that is empty, or too long.
    """
    encode = task.tokenizer.encode_prompt
    ids = [encode(example.prompt) for example in task.eval[: config.size]]
    return fit_prompts(ids, rollout, "held-out prompt")


def evaluate(
    task: Task,
    engine: RolloutEngine,
    rollout: RolloutConfig,
    config: EvaluationConfig,
    seed: int = 0,
) -> Evaluation:
    """Examine the engine's weights on the held-out prompts.

    Args:
        task: its `eval` examples and reward functions.
        engine: samples completions.
        rollout: limits on lengths.
        config: how many prompts and at which temperature.
        seed: of the sampling.

    Raises:
        ZootomyError: if the task has no held-out examples.
    """
    examples = list(task.eval[: config.size])
    if not examples:
        raise ZootomyError(f"Task {task.name!r} has no held-out examples to evaluate on.")
    tokenizer = task.tokenizer
    prompts = check_prompts(task, rollout, config)
    completions = engine.generate(
        [Request(prompt, config.samples) for prompt in prompts],
        SamplingParams(
            temperature=config.temperature,
            max_new_tokens=rollout.max_new_tokens,
            stop_ids=tuple(tokenizer.stop_ids),
        ),
        seed,
    )
    flat = [one for group in completions for one in group]
    scores = agreed_scores(
        lambda: score(
            task.rewards,
            [example.prompt for example in examples for _ in range(config.samples)],
            [tokenizer.decode(one.tokens.tolist()) for one in flat],
            gather_columns(examples, config.samples),
            tokens=[one.tokens.tolist() for one in flat],
            turns=[one.turn_ids.tolist() for one in flat],
        )
    )
    metrics = {
        "eval/completions/mean_length": float(np.mean([len(one.tokens) for one in flat])),
        "eval/completions/clipped_ratio": float(
            np.mean([one.stop_reason == "length" for one in flat])
        ),
        "eval/invalid": float(np.mean(~scores.valid)),
    }
    if scores.valid.any():
        metrics["eval/reward/mean"] = float(scores.rewards[scores.valid].mean())
    solved = accuracy(task, scores)
    if solved is not None and np.isfinite(solved).any():
        metrics["eval/accuracy"] = float(np.nanmean(solved))
    return Evaluation(metrics, examples, completions, scores.rewards, scores.valid, solved)
