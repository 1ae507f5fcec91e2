"""Collecting a batch: sample prompts, roll out each G times, score, filter, refill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ..monitor import Spans
from ..registry import ZootomyError, bind, get, setting
from ..rollout import Completion, Request, RolloutConfig, RolloutEngine, fit_prompts, stream
from ..tasks import PromptOrder, Task
from .algorithm import Algorithm
from .batch import BatchConfig
from .contents import one
from .judge import Judge
from .seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Group:
    """A prompt with its G completions and their rewards.

    Attributes:
        example: index of the prompt among the task's training examples.
        prompt: its token ids, as both the engine and the trainer see them.
        completions: G completions.
        rewards: `[G]` float32.
        valid: `[G]` bool.
        components: `[F, G]` float32, NaN where a reward function does not apply.
        teaches: false where the group filter left it out: it is counted, and not trained on.
        baseline: a reward to compare with: the greedy completion's (NaN where it has none), or
            what is remembered of the prompt; None where no shaping asks.
        scale: a remembered deviation to divide rewards by; None where no shaping asks.
        greedy_tokens: of the greedy completion, where there is one.
        token_rewards: G arrays `[T]`, the part of the rewards that stands on single tokens; None
            where no reward function gives any.
    """

    example: int
    prompt: tuple[int, ...]
    completions: Sequence[Completion]
    rewards: np.ndarray
    valid: np.ndarray
    components: np.ndarray
    teaches: bool = True
    baseline: float | None = None
    scale: float | None = None
    greedy_tokens: int = 0
    token_rewards: Sequence[np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Collected:
    """A full batch of groups, and what collecting it took.

    Attributes:
        groups: `full` groups.
        consumed: prompts taken from the order, refills included.
        sampled: every group that was rolled out, filtered ones too.
        refills: rounds of sampling after the first.
        failures: reward function -> completions it failed on.
    """

    groups: list[Group]
    consumed: int
    sampled: list[Group]
    refills: int
    failures: Counter[str]


class Collector:
    """Fills full batches from a task's prompts.

    Args:
        algorithm: says which groups still teach.
        task: prompts.
        judge: scores completions.
        engine: samples them.
        rollout: sampling settings and limits.
        batch: how many prompts and completions.
        seed: the run's seed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        judge: Judge,
        engine: RolloutEngine,
        rollout: RolloutConfig,
        batch: BatchConfig,
        seed: int,
    ):
        self.algorithm = algorithm
        self.task = task
        self.judge = judge
        self.engine = engine
        self.rollout = rollout
        self.batch = batch
        self.seed = seed
        self.order = PromptOrder(len(task.train), derive_seed(seed, "prompts"))
        self.greedy = "greedy_baseline" in algorithm.needs

    def collect(self, cursor: int, step: int, spans: Spans | None = None) -> Collected:
        """The batch of a step, from the prompts after `cursor`.

        Args:
            cursor: prompts consumed by the steps before.
            step: the step, counted from 0.
            spans: timers, by name.

        Raises:
            ZootomyError: if every completion is invalid, or too few groups pass the filter.
        """
        spans = Spans() if spans is None else spans
        spec = self.algorithm.group_filter
        strategy = None if spec is None else setting("group_filter", one(spec), "strategy")
        kept, sampled, failures = [], [], Counter()
        refills, consumed = 0, 0
        while True:
            wanted = self.batch.full - len(kept)
            indices = self.order.take(cursor + consumed, wanted)
            consumed += wanted
            groups, error = self._roll_out(indices, step, refills, failures, spans)
            sampled += groups
            _refuse_unscored(sampled, step, error)
            if strategy != "refill":
                kept = groups
                break
            kept += [group for group in groups if group.teaches]
            if len(kept) == self.batch.full:
                break
            if refills == setting("group_filter", one(spec), "max_refills"):
                kept = self._short(kept, groups, step, refills)
                break
            refills += 1
        if strategy == "replace":
            kept = _replace(kept)
        return Collected(kept, consumed, sampled, refills, failures)

    def _roll_out(
        self,
        indices: Sequence[int],
        step: int,
        attempt: int,
        failures: Counter[str],
        spans: Spans,
    ) -> tuple[list[Group], str | None]:
        """G scored completions for each of some prompts, and what went wrong in scoring."""
        examples = [self.task.train[index] for index in indices]
        tokenizer = self.task.tokenizer
        prompts = fit_prompts(
            [tokenizer.encode_prompt(example.prompt) for example in examples], self.rollout
        )
        size = self.batch.group_size
        sampling = self.rollout.sampling(tokenizer.stop_ids)
        seed = derive_seed(self.seed, "rollout", step, attempt)
        judging = self.judge.begin(examples, size, step)
        found: dict[tuple[int, int], Completion] = {}
        requests = [Request(prompt, size) for prompt in prompts]
        with spans("rollout"):
            for request, index, completion in stream(self.engine, requests, sampling, seed):
                found[request, index] = completion
                judging.add(request, index, completion)
        completions = [[found[i, g] for g in range(size)] for i in range(len(prompts))]
        with spans("reward"):
            scores = self.judge.end(judging, prompts, completions)
        failures.update(scores.failures)
        baseline: list[float | None] = [None] * len(prompts)
        greedy_tokens = [0] * len(prompts)
        if self.greedy:
            greedy = replace(sampling, temperature=0.0)
            with spans("rollout"):
                likeliest = self.engine.generate(
                    [Request(prompt) for prompt in prompts], greedy, seed
                )
            with spans("reward"):
                own = self.judge(examples, prompts, likeliest, step)
            failures.update(own.failures)
            baseline = np.where(own.valid, own.rewards, np.nan).tolist()
            greedy_tokens = [len(one.tokens) for (one,) in likeliest]
        rewards = scores.rewards.reshape(-1, size)
        valid = scores.valid.reshape(-1, size)
        teaches = self._teaches(rewards, valid)
        components = scores.components.reshape(len(scores.names), -1, size)
        groups = [
            Group(
                index,
                prompts[i],
                completions[i],
                rewards[i],
                valid[i],
                components[:, i],
                bool(teaches[i]),
                baseline[i],
                greedy_tokens=greedy_tokens[i],
                token_rewards=None
                if scores.token_rewards is None
                else scores.token_rewards[i * size : (i + 1) * size],
            )
            for i, index in enumerate(indices)
        ]
        return groups, scores.last_error

    def _teaches(self, rewards: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """`[P]` bool: the group filter's answer."""
        spec = self.algorithm.group_filter
        if spec is None:
            return np.ones(len(rewards), bool)
        keep = get("group_filter", one(spec).name)(
            jnp.asarray(rewards), jnp.asarray(valid), **bind("group_filter", one(spec))
        )
        return np.asarray(keep, bool)

    def _short(self, kept: list[Group], last: list[Group], step: int, refills: int) -> list[Group]:
        """What to do when the refills are used up: an error, or a batch with gaps."""
        spec = one(self.algorithm.group_filter)
        if setting("group_filter", spec, "when_short") == "error":
            raise ZootomyError(
                f"Step {step}: only {len(kept)} of {self.batch.full} groups passed group_filter "
                f"{spec.name!r} after {refills} refills. The prompts may be too easy or too hard; "
                f"raise group_filter.max_refills, set group_filter.when_short to 'train' to train "
                f"on what there is, or set group_filter to 'none'."
            )
        silent = [group for group in last if not group.teaches]
        return kept + silent[: self.batch.full - len(kept)]


def rehearse_filter(algorithm: Algorithm, batch: BatchConfig) -> None:
    """Go through the group filter with shapes alone.

    Raises:
        ZootomyError: what it would say of a value out of range.
    """
    if algorithm.group_filter is not None:
        spec = one(algorithm.group_filter)
        shape = (batch.full, batch.group_size)
        function = partial(get("group_filter", spec.name), **bind("group_filter", spec))
        rewards = jax.ShapeDtypeStruct(shape, jnp.float32)
        jax.eval_shape(function, rewards, jax.ShapeDtypeStruct(shape, bool))


def _refuse_unscored(sampled: list[Group], step: int, error: str | None) -> None:
    """Stop where nothing that a step has sampled so far has a reward."""
    if any(group.valid.any() for group in sampled):
        return
    reason = error or "every reward function gave None"
    raise ZootomyError(
        f"Step {step}: none of the {sum(len(group.valid) for group in sampled)} completions has a "
        f"reward: {reason}. Fix the reward function, or give one that applies to these prompts."
    )


def _replace(groups: list[Group]) -> list[Group]:
    """Groups that do not teach give their place to copies of those that do, in turn."""
    teaching = [group for group in groups if group.teaches]
    if not teaching:
        return groups
    spare = iter(range(len(groups)))
    return [g if g.teaches else teaching[next(spare) % len(teaching)] for g in groups]
