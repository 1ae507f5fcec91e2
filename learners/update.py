"""From a collected batch to new weights: passes, experience, epochs × mini-batches, critic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ..clusters import Cluster, LossFunction, ModelOutputs, Role, Sequences
from ..monitor import MetricAccumulator, Spans
from ..registry import describe
from .algorithm import Algorithm
from .assembly import assemble
from .batch import BatchConfig
from .collect import Collected
from .experience import Experience, Rollouts
from .objective import Loss, Outputs
from .seeds import derive_seed

_PART = "part of the loss: "


class Programs(NamedTuple):
    """The functions of an assembly in the form in which they are compiled."""

    experience: Callable[..., Any]
    weights: Callable[..., Any]
    actor_loss: LossFunction
    critic_loss: LossFunction


@functools.lru_cache(maxsize=32)
def _programs(algorithm: Algorithm, blocks: tuple[Callable[..., Any], ...]) -> Programs:
    """One set an algorithm, so that runs of other seeds in one process compile nothing anew.

    Args:
        algorithm: the algorithm.
        blocks: the functions that its names stand for at present.
    """
    assembly = assemble(algorithm)

    def actor_loss(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        experience, weights = batch
        given = Outputs(logp=outputs.logp, entropy=outputs.entropy)
        loss = assembly.objective(given, experience, coefficients, weights)
        return loss.total, _flatten(loss)

    def critic_loss(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        experience, weights = batch
        given = Outputs(values=outputs.values)
        loss = assembly.objective(given, experience, coefficients, weights)
        return loss.total, _flatten(loss)

    return Programs(
        jax.jit(assembly.experience), jax.jit(assembly.weights), actor_loss, critic_loss
    )


class Updater:
    """Turns batches into optimizer steps by the two functions of an assembly; it owns no maths.

    Args:
        algorithm: the algorithm, its lengths resolved.
        cluster: the models.
        batch: sizes of mini-batches, and epochs.
        temperature: at which log-probabilities are taken, that of the sampling.
        width: T, the longest completion in tokens.
        seed: the run's seed.
        critic_warmup: steps in which only the critic is trained.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        cluster: Cluster,
        *,
        batch: BatchConfig,
        temperature: float,
        width: int,
        seed: int,
        critic_warmup: int = 0,
    ):
        self.algorithm = algorithm
        self.cluster = cluster
        self.batch = batch
        self.temperature = temperature
        self.width = width
        self.seed = seed
        self.critic_warmup = critic_warmup
        blocks = tuple(describe(slot, spec.name).function for slot, spec in algorithm.specs())
        programs = _programs(algorithm, blocks)
        self._experience = programs.experience
        self._weights = programs.weights
        self._actor_loss = programs.actor_loss
        self._critic_loss = programs.critic_loss

    def update(
        self, collected: Collected, step: int, coefficients: Mapping[str, float], spans: Spans
    ) -> MetricAccumulator:
        """All optimizer steps of one learner step.

        Args:
            collected: the full batch.
            step: the learner step, counted from 0.
            coefficients: those that controllers steer, e.g. `{"kl": 0.04}`.
            spans: timers, by name.

        Returns:
            The step's metrics; averages are over all optimizer steps.
        """
        sequences = _sequences(collected, self.width)
        rollouts = self._passes(collected, sequences, spans)
        totals = MetricAccumulator()
        experience, metrics = self._experience(rollouts, dict(coefficients))
        for name, (total, weight) in jax.device_get(metrics).items():
            totals.add_sum(name, total, weight)
        experience = jax.tree.map(np.asarray, experience)
        for mini, part in self._mini_batches(experience, step):
            part_sequences = sequences.take(mini)
            if step >= self.critic_warmup:
                with spans("train"):
                    self._one(
                        Role.ACTOR, part_sequences, part, coefficients, self._actor_loss, totals
                    )
            if self.algorithm.value_loss is not None:
                with spans("critic"):
                    self._one(
                        Role.CRITIC, part_sequences, part, coefficients, self._critic_loss, totals
                    )
        return totals

    def _one(
        self,
        role: Role,
        sequences: Sequences,
        batch: tuple[Experience, np.ndarray],
        coefficients: Mapping[str, float],
        loss: Any,
        totals: MetricAccumulator,
    ) -> None:
        """One optimizer step of one role."""
        result = self.cluster.update(
            role,
            sequences,
            batch,
            loss,
            temperature=self.temperature,
            coefficients=dict(coefficients),
            with_entropy=role is Role.ACTOR,
        )
        for name, (total, weight) in result.metrics.items():
            if name.startswith(_PART):
                totals.add(name.removeprefix(_PART), total)
            else:
                totals.add_sum(name, total, weight)
        prefix = "" if role is Role.ACTOR else f"{role}/"
        totals.add(f"{prefix}grad_norm", result.grad_norm)
        totals.gauge(f"{prefix}lr", result.lr)

    def _mini_batches(
        self, experience: Experience, step: int
    ) -> Iterator[tuple[np.ndarray, tuple[Experience, np.ndarray]]]:
        """The rows of each mini-batch that hold an action, with their experience and weights.

        Whole groups stay together; the weights are computed on the whole mini-batch before
        anything is cut, so that no later split can change them.
        """
        group = self.batch.group_size
        size = self.batch.mini_prompts
        for epoch in range(self.batch.epochs):
            prompts = np.arange(self.batch.full)
            if size < self.batch.full:
                rng = np.random.default_rng(derive_seed(self.seed, "mini-batches", step, epoch))
                prompts = rng.permutation(prompts)
            for start in range(0, self.batch.full, size):
                chosen = prompts[start : start + size]
                rows = (chosen[:, None] * group + np.arange(group)).reshape(-1)
                part = jax.tree.map(lambda x, rows=rows: x[rows], experience)
                weights = np.asarray(self._weights(part.counted, part.group_ids))
                used = np.flatnonzero(part.mask.any(axis=1))
                if len(used):
                    kept = jax.tree.map(lambda x, used=used: x[used], (part, weights))
                    yield rows[used], kept

    def _passes(self, collected: Collected, sequences: Sequences, spans: Spans) -> Rollouts:
        """The rollouts as arrays, with what the models at the old weights say of them."""
        groups = collected.groups
        valid = np.stack([group.valid & group.teaches for group in groups])
        mask = sequences.mask
        rollouts = Rollouts(
            rewards=np.stack([group.rewards for group in groups]),  # pyright: ignore[reportArgumentType]
            valid=valid,  # pyright: ignore[reportArgumentType]
            mask=mask,  # pyright: ignore[reportArgumentType]
            truncated=np.array(
                [[one.stop_reason == "length" for one in group.completions] for group in groups]
            ),  # pyright: ignore[reportArgumentType]
            components=np.stack([group.components for group in groups], axis=1),  # pyright: ignore[reportArgumentType]
            rollout_logp=_rollout_logp(collected, self.width),
        )
        used = np.flatnonzero((mask > 0).any(axis=1) & valid.reshape(-1))
        some = sequences.take(used)

        def fill(values: Any) -> np.ndarray:
            full = np.zeros(mask.shape, np.float32)
            full[used] = np.asarray(values)
            return full

        found: dict[str, np.ndarray] = {}
        if self.needs_old_logp:
            with spans("old_logp"):
                found |= {name: fill(x) for name, x in self._old_pass(some).items()}
        if "reference" in self.algorithm.needs:
            with spans("reference"):
                given = self.cluster.log_probs(Role.REFERENCE, some, temperature=self.temperature)
                found["ref_logp"] = fill(given["logp"])
        if self.algorithm.value_loss is not None:
            with spans("values"):
                found["values"] = fill(self.cluster.values(some))
        return rollouts._replace(**found)

    def _old_pass(self, sequences: Sequences) -> dict[str, Any]:
        """What the actor says before the update, by its name in `Rollouts`."""
        asked = self.algorithm.extra_inputs
        given = self.cluster.log_probs(
            Role.ACTOR,
            sequences,
            temperature=self.temperature,
            with_entropy="entropy" in asked,
            with_sum_pi_squared="sum_pi_squared" in asked,
        )
        return {"old_logp" if name == "logp" else name: x for name, x in given.items()}

    @property
    def needs_old_logp(self) -> bool:
        """Whether a pass before the update is needed; a single on-policy step has ratio 1."""
        return (
            self.batch.updates > 1
            or self.algorithm.kl_placement in ("reward", "advantage")
            or self.algorithm.correction is not None
            or bool(self.algorithm.extra_inputs & {"old_logp", "logp", "entropy", "sum_pi_squared"})
        )


def _flatten(loss: Loss) -> dict[str, tuple[Any, Any]]:
    """Parts and metrics in the one form that adds up over micro-batches.

    A part of the loss is a sum and no mean: its name says so, and its weight is not read.
    """
    return {**{f"{_PART}{name}": (part, 1.0) for name, part in loss.parts.items()}, **loss.metrics}


def _sequences(collected: Collected, width: int) -> Sequences:
    """All completions of a batch with their prompts, prompt-major."""
    return Sequences(
        prompts=[group.prompt for group in collected.groups for _ in group.completions],
        completions=[one.tokens for group in collected.groups for one in group.completions],
        width=width,
    )


def _rollout_logp(collected: Collected, width: int) -> Any:
    """`[N, T]` float32: the engine's log-probabilities, 0 beyond a completion's end."""
    completions = [one for group in collected.groups for one in group.completions]
    padded = np.zeros((len(completions), width), np.float32)
    for row, one in zip(padded, completions, strict=True):
        row[: len(one.logp)] = one.logp
    return padded
