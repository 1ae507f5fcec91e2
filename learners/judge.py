"""All that gives a completion its reward: the task's functions and the cluster's reward models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..clusters import Cluster, Sequences
from ..models import is_first
from ..registry import ZootomyError, unknown_name
from ..rollout import Completion
from ..tasks import EarlyScores, Example, Scores, Task, check_rewards, gather_columns, score
from .agreed import agreed_scores


class Judge:
    """Scores completions.

        R = Σ_f weight_f · r_f + Σ_m weight_m · score of reward model m

    Each model scores every completion that the functions leave valid; its score is one more
    component, after those of the functions.

    Args:
        task: reward functions and tokenizer.
        cluster: its reward models count if it has any; None: functions alone.
        width: T, the longest completion in tokens.
        model_weights: the factor of a reward model by its name; 1 for one that is left out.

    Raises:
        ZootomyError: if a reward function has the name of a model's component.
    """

    def __init__(
        self,
        task: Task,
        cluster: Cluster | None = None,
        *,
        width: int,
        model_weights: Mapping[str, float] = MappingProxyType({}),
    ):
        self.task = task
        self.cluster = cluster
        self.models = () if cluster is None else cluster.reward_models
        self.width = width
        self.names = tuple(reward.name for reward in task.rewards)
        self.weights = tuple(reward.weight for reward in task.rewards)
        for name in model_weights:
            if name not in self.models:
                raise unknown_name("reward model", name, self.models)
        check_names(task, self.models)
        for name in self.models:
            self.names += (name,)
            self.weights += (model_weights.get(name, 1.0),)

    @property
    def in_parts(self) -> bool:
        """Whether a function gives rewards to single tokens or turns."""
        return any(reward.per != "completion" for reward in self.task.rewards)

    def __call__(
        self,
        examples: Sequence[Example],
        prompts: Sequence[tuple[int, ...]],
        completions: Sequence[Sequence[Completion]],
        step: int,
    ) -> Scores:
        """The scores of some completions of each example, the same number for each.

        Args:
            examples: P examples.
            prompts: their token ids, as the engine saw them.
            completions: one list a prompt.
            step: the learner step, for functions that ask for it.
        """
        judging = self.begin(examples, len(completions[0]), step)
        for request, group in enumerate(completions):
            for index, completion in enumerate(group):
                judging.add(request, index, completion)
        return self.end(judging, prompts, completions)

    def begin(self, examples: Sequence[Example], size: int, step: int) -> Judging:
        """Start to score completions that come one at a time.

        Args:
            examples: P examples.
            size: completions of each.
            step: the learner step.
        """
        return Judging(self.task, examples, size, step)

    def end(
        self,
        judging: Judging,
        prompts: Sequence[tuple[int, ...]],
        completions: Sequence[Sequence[Completion]],
    ) -> Scores:
        """The scores, once every completion was added.

        Args:
            judging: what `begin` gave.
            prompts: token ids of the P prompts, as the engine saw them.
            completions: one list a prompt.
        """
        scores = judging.scores()
        if self.cluster is None or not self.models:
            return scores
        flat = [one for group in completions for one in group]
        repeated = [
            prompt for prompt, group in zip(prompts, completions, strict=True) for _ in group
        ]
        sequences = Sequences(repeated, [one.tokens for one in flat], self.width)
        weights = self.weights[-len(self.models) :]
        for name, weight in zip(self.models, weights, strict=True):
            scores = _with_model(scores, name, self.cluster.scores(sequences, name), weight)
        return scores


def check_names(task: Task, models: Iterable[str]) -> None:
    """Refuse a name that a reward function and a reward model share.

    Args:
        task: its reward functions.
        models: names of the reward models.

    Raises:
        ZootomyError: naming it.
    """
    functions = {reward.name for reward in task.rewards}
    for name in models:
        if name in functions:
            raise ZootomyError(
                f"A reward function is named {name!r}, and so is a reward model; their metrics "
                f"would be one. Give one of them another name."
            )


class Judging:
    """Texts and rewards of completions, taken as they come.

    Args:
        task: reward functions and tokenizer.
        examples: P examples.
        size: G, completions of each.
        step: the learner step.
    """

    def __init__(self, task: Task, examples: Sequence[Example], size: int, step: int):
        self._task = task
        self._size = size
        self._step = step
        self._prompts = [example.prompt for example in examples for _ in range(size)]
        self._columns = gather_columns(examples, size)
        self._found: dict[int, _Text] = {}
        check_rewards(task.rewards, tuple(self._columns))
        self._early = EarlyScores(task.rewards, self._prompts, self._columns, step=step)

    def add(self, request: int, index: int, completion: Completion) -> None:
        """Decode a completion, and ask the functions that judge it by itself.

        In several processes, the first does so for all.
        """
        if not is_first():
            return
        number = request * self._size + index
        tokens = completion.tokens.tolist()
        found = _Text(self._task.tokenizer.decode(tokens), tokens, completion.turn_ids.tolist())
        self._found[number] = found
        self._early.add(number, *found)

    def scores(self) -> Scores:
        """What all functions say of all completions."""
        return agreed_scores(self._scores)

    def _scores(self) -> Scores:
        found = [self._found[number] for number in range(len(self._prompts))]
        return score(
            self._task.rewards,
            self._prompts,
            [one.text for one in found],
            self._columns,
            step=self._step,
            tokens=[one.tokens for one in found],
            turns=[one.turns for one in found],
            early=self._early,
        )


class _Text(NamedTuple):
    """A completion as reward functions see it."""

    text: str
    tokens: list[int]
    turns: list[int]


def _with_model(scores: Scores, name: str, values: np.ndarray, weight: float) -> Scores:
    """The scores with a model's as one more component; one that is not finite is a failure."""
    failed = ~np.isfinite(values)
    values = np.where(failed, np.nan, values).astype(np.float32)
    valid = scores.valid & ~failed
    failures = dict(scores.failures)
    if failed.any():
        failures[name] = int(failed.sum())
    return replace(
        scores,
        rewards=np.where(valid, scores.rewards + weight * values, 0.0).astype(np.float32),
        valid=valid,
        components=np.concatenate([scores.components, values[None]]),
        names=(*scores.names, name),
        failures=failures,
        last_error=f"reward model {name!r} gave a score that is not finite"
        if failed.any()
        else scores.last_error,
    )
