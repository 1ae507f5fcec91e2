"""Supervised warm-up: imitate a task's demonstrations before reinforcement begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..clusters import Cluster, ClusterConfig, ModelOutputs, OptimizerConfig, Role, Sequences
from ..models import Decoder
from ..registry import ZootomyError
from ..rollout import RolloutConfig, fit_prompts
from ..tasks import Demonstration, PromptOrder, Task, Tokenizer
from .seeds import derive_seed


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """How long and in which portions demonstrations are imitated.

    Attributes:
        steps: optimizer steps; 0 for none.
        batch: demonstrations a step.
        learning_rate: the peak, after which it falls to 0 in a half cosine.

    Raises:
        ZootomyError: for a number out of range.
    """

    steps: int = 0
    batch: int = 64
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ZootomyError(f"warmup.steps must be 0 or more, got {self.steps}.")
        if self.batch < 1:
            raise ZootomyError(f"warmup.batch must be 1 or more, got {self.batch}.")
        if self.learning_rate <= 0:
            raise ZootomyError(f"warmup.learning_rate must be above 0, got {self.learning_rate}.")


def warm_up(
    model: Decoder,
    task: Task,
    *,
    config: WarmupConfig,
    cluster: ClusterConfig,
    rollout: RolloutConfig,
    seed: int,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Decoder:
    """The model after imitating the task's demonstrations.

        loss = −Σ logp(token) / number of tokens, over the completions and their stop token

    Args:
        model: where to start; it is left as it is.
        task: it must have demonstrations.
        config: steps and portions.
        cluster: mesh and row shapes.
        rollout: length limits.
        seed: of the order of demonstrations.
        report: called after each step with its number and the loss in nats a token.

    Returns:
        The model that has learned.

    Raises:
        ZootomyError: if the task has no demonstrations.
    """
    if not task.demonstrations:
        raise ZootomyError(
            f"Task {task.name!r} has no demonstrations to warm up on; set warmup.steps to 0 and "
            f"start from a model that can do the task now and then."
        )
    if not config.steps:
        return model
    optimizer = OptimizerConfig(
        learning_rate=config.learning_rate,
        schedule="cosine",
        warmup_steps=min(max(1, config.steps // 20), config.steps - 1),
    )
    trainer = Cluster(
        cluster, actor=model, optimizer=optimizer, total_steps=config.steps,
        max_tokens=rollout.max_prompt_tokens + rollout.max_new_tokens,
    )  # fmt: skip
    order = PromptOrder(len(task.demonstrations), derive_seed(seed, "warm-up"))
    for step in range(config.steps):
        indices = order.take(step * config.batch, config.batch)
        chosen = [task.demonstrations[index] for index in indices]
        sequences = _sequences(chosen, task.tokenizer, rollout)
        weights = sequences.mask / sequences.mask.sum()
        result = trainer.update(Role.ACTOR, sequences, weights, imitation_loss)
        report(step + 1, result.loss)
    return trainer.model(Role.ACTOR)


def imitation_loss(
    outputs: ModelOutputs, weights: jax.Array, coefficients: Mapping[str, Any] | None
) -> tuple[jax.Array, dict[str, Any]]:
    """`−Σ weights · logp`, the negative log-likelihood of the demonstrated tokens."""
    del coefficients
    assert outputs.logp is not None
    return -jnp.sum(weights * jnp.where(weights > 0, outputs.logp, 0.0)), {}


def _sequences(
    chosen: list[Demonstration], tokenizer: Tokenizer, rollout: RolloutConfig
) -> Sequences:
    """Demonstrations as tokens, each completion closed by the tokenizer's stop token."""
    prompts = fit_prompts([tokenizer.encode_prompt(one.prompt) for one in chosen], rollout)
    completions = [
        np.asarray([*tokenizer.encode(one.completion), tokenizer.stop_ids[0]], np.int32)
        for one in chosen
    ]
    return Sequences(prompts, completions, rollout.max_new_tokens)
