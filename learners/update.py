"""From a collected batch to new weights: passes, experience, epochs × mini-batches, critic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ..clusters import Cluster, ModelOutputs, Role, Sequences
from ..models import to_host
from ..monitor import MetricAccumulator, Spans
from ..registry import ZootomyError, describe
from .algorithm import Algorithm
from .arrays import Experience, Rollouts
from .batch import BatchConfig
from .calling import VALUE
from .collect import Collected
from .compiled import PART, programs_of
from .gather import ACTOR_EXTRAS, Gatherer
from .mismatch import mismatch_metrics
from .seeds import derive_seed
from .vocabulary import in_the_update
from .whole import IN_THE_UPDATE, at_once, check_one_micro_batch

VALUE_COEF = 0.1
"""Factor of the value loss beside the policy loss, for a critic on the actor's backbone."""


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
        reward_weights: of the reward functions, in their order; None: 1 each.
        token_rewards: whether some of them give rewards to tokens or turns.
        value_coef: factor of the value loss, for a critic on the actor's backbone; None: 0.1.

    Raises:
        ZootomyError: for a factor that is not above 0, or has no effect.
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
        reward_weights: tuple[float, ...] | None = None,
        token_rewards: bool = False,
        value_coef: float | None = None,
    ):
        self.algorithm = algorithm
        self.cluster = cluster
        self.batch = batch
        self.temperature = temperature
        self.width = width
        self.measures_shift = "prompt_values" in algorithm.needs
        self.shared = algorithm.value_loss is not None and cluster.shares_backbone
        self.value_coef = _value_coef(value_coef, self.shared)
        self._at_once = {role: at_once(algorithm, role) for role in IN_THE_UPDATE}
        if self.shared:
            both = filter(None, self._at_once.values())
            self._at_once[Role.ACTOR] = " and ".join(both)
        self.seed = seed
        self.critic_warmup = critic_warmup
        self._steered = tuple(algorithm.controllers)
        blocks = tuple(describe(slot, spec.name).function for slot, spec in algorithm.specs())
        programs = programs_of(algorithm, blocks)
        self.gather = Gatherer(
            algorithm, cluster, temperature, width, reward_weights, self.needs_old_logp,
            programs.before, token_rewards,
        )  # fmt: skip
        self._with_head = bool(in_the_update(algorithm))
        self._experience = programs.experience
        self._weights = programs.weights
        self._actor_loss = programs.actor_loss
        self._critic_loss = programs.critic_loss
        if self.shared:
            # One forward pass gives both, and one step learns from both.
            self._actor_loss = programs.shared_loss

    def update(
        self,
        collected: Collected,
        step: int,
        coefficients: Mapping[str, float],
        spans: Spans,
        beside: Callable[[], object] | None = None,
    ) -> MetricAccumulator:
        """All optimizer steps of one learner step.

        Args:
            collected: the full batch.
            step: the learner step, counted from 0.
            coefficients: those that controllers steer, e.g. `{"kl": 0.04}`.
            spans: timers, by name.
            beside: as of `Cluster.update`; called once in each optimizer step, of which there may
                be several, or none.

        Returns:
            The step's metrics; averages are over all optimizer steps.
        """
        sequences = _sequences(collected, self.width)
        rollouts, ref_hidden = self.gather(collected, sequences, spans)
        shared = self.gather.shared() if self._with_head else {}
        totals = MetricAccumulator()
        given = rollouts, dict(coefficients), self.batch.mini_prompts == self.batch.full
        experience, metrics, all_weights = self.cluster.run(self._experience, *given)
        experience, all_weights = jax.tree.map(np.asarray, (experience, all_weights))
        for mini, (part, weights) in self._mini_batches(experience, all_weights, step):
            part_sequences = sequences.take(mini)
            hidden = ref_hidden[mini] if self._with_head and ref_hidden is not None else None
            learns = step >= self.critic_warmup
            if learns:
                value = {VALUE: self.value_coef} if self.shared else {}
                with spans("train"):
                    self._one(
                        Role.ACTOR, part_sequences, (part, weights, hidden),
                        {**coefficients, **value, **shared}, self._actor_loss, totals, beside,
                    )  # fmt: skip
            if self.shared and learns:
                totals.gauge("critic/lr", self.cluster.learning_rate(Role.CRITIC))
            elif self.algorithm.value_loss is not None:
                with spans("critic"):
                    self._one(
                        Role.CRITIC, part_sequences, (part, weights, None),
                        coefficients, self._critic_loss, totals, beside,
                    )  # fmt: skip
        if self.measures_shift:
            with spans("shift"):
                totals.add_sum("policy_shift", *self._shift(sequences, rollouts, experience))
        _describe(totals, rollouts, experience, to_host(metrics))
        return totals

    def rehearse(self, functions: int) -> None:
        """Go through both functions with shapes alone, before anything is sampled.

        Args:
            functions: F, how many reward functions there are.

        Raises:
            ZootomyError: what a block would say in the first step: of a value out of range, or
                of an input that is not there.
        """
        coefficients = {name: jax.ShapeDtypeStruct((), np.float32) for name in self._steered}
        rollouts = self.gather.outline(self.batch.full, self.batch.group_size, functions)
        self.gather.rehearse(rollouts)
        experience, _, _ = jax.eval_shape(
            lambda *given: self._experience(*given, False), rollouts, coefficients
        )
        weights = jax.eval_shape(self._weights, experience.counted, experience.group_ids)
        tokens: Any = jax.ShapeDtypeStruct(rollouts.mask.shape, np.float32)
        outputs = ModelOutputs(logp=tokens, entropy=tokens)
        hidden, shared = None, {}
        if self._with_head:
            head, hidden, shared = self.gather.outline_heads(tokens.shape)
            outputs = outputs._replace(head=head)
        if self.shared:
            outputs = outputs._replace(values=tokens)
        jax.eval_shape(
            self._actor_loss, outputs, (experience, weights, hidden), {**coefficients, **shared}
        )
        if self.algorithm.value_loss is not None:
            jax.eval_shape(
                self._critic_loss, ModelOutputs(values=tokens), (experience, weights, None),
                coefficients,
            )  # fmt: skip

    def _shift(
        self, sequences: Sequences, rollouts: Rollouts, experience: Experience
    ) -> tuple[float, float]:
        """How far the step has moved the policy: k3 of KL(before ‖ after), a sum and its weight."""
        used = np.flatnonzero(experience.mask.any(axis=1))
        if not len(used):
            return 0.0, 1.0
        mask = np.asarray(experience.mask)[used]
        after, before = self.gather.logp(sequences.take(used)), np.asarray(rollouts.old_logp)[used]
        d = np.clip(np.where(mask > 0, after - before, 0.0), -20.0, 20.0)
        return float(np.sum(np.exp(d) - d - 1.0)), float(mask.sum())

    def _one(
        self,
        role: Role,
        sequences: Sequences,
        batch: tuple[Experience, np.ndarray, np.ndarray | None],
        coefficients: Mapping[str, Any],
        loss: Any,
        totals: MetricAccumulator,
        beside: Callable[[], object] | None,
    ) -> None:
        """One optimizer step of one role."""
        check_one_micro_batch(self._at_once[role], self.cluster, sequences)
        result = self.cluster.update(
            role,
            sequences,
            batch,
            loss,
            temperature=self.temperature,
            coefficients=dict(coefficients),
            with_entropy=role is Role.ACTOR,
            whole=bool(self._at_once[role]),
            with_head=role is Role.ACTOR and self._with_head,
            with_values=role is Role.ACTOR and self.shared,
            beside=beside,
        )
        for name, (total, weight) in result.metrics.items():
            if name.startswith(PART):
                totals.add(name.removeprefix(PART), total)
            else:
                totals.add_sum(name, total, weight)
        prefix = "" if role is Role.ACTOR else f"{role}/"
        totals.add(f"{prefix}grad_norm", result.grad_norm)
        totals.gauge(f"{prefix}lr", result.lr)

    def _mini_batches(
        self, experience: Experience, weights: np.ndarray | None, step: int
    ) -> Iterator[tuple[np.ndarray, tuple[Experience, np.ndarray]]]:
        """The rows of each mini-batch that hold an action, with their experience and weights.

        Whole groups stay together; the weights are computed on the whole mini-batch before
        anything is cut, so that no later split can change them. They are given where all is one
        mini-batch.
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
                part, own = experience, weights
                if own is None:
                    part = jax.tree.map(lambda x, rows=rows: x[rows], experience)
                    asked = self.cluster.run(self._weights, part.counted, part.group_ids)
                    own = np.asarray(asked)
                used = np.flatnonzero(part.mask.any(axis=1))
                if len(used):
                    kept = jax.tree.map(lambda x, used=used: x[used], (part, own))
                    yield rows[used], kept

    @property
    def needs_old_logp(self) -> bool:
        """Whether a pass before the update is needed; a single on-policy step has ratio 1."""
        asked = self.algorithm.extra_inputs
        if self.measures_shift or asked & set(ACTOR_EXTRAS):
            return True
        if self.algorithm.bypasses:
            return False
        return (
            self.batch.updates > 1
            or self.algorithm.kl_placement in ("reward", "advantage")
            or self.algorithm.correction is not None
            or bool(asked & {"old_logp", "logp"})
        )


def _describe(
    totals: MetricAccumulator,
    rollouts: Rollouts,
    experience: Experience,
    metrics: Mapping[str, tuple[float, float]],
) -> None:
    """Add what is known of a batch before its update; devices need not wait for it."""
    for name, (total, weight) in metrics.items():
        totals.add_sum(name, total, weight)
    if rollouts.old_logp is not None and rollouts.rollout_logp is not None:
        drift = mismatch_metrics(
            rollouts.old_logp, rollouts.rollout_logp, experience.mask, experience.correction
        )
        for name, value in drift.items():
            totals.gauge(name, value)


def _value_coef(given: float | None, shared: bool) -> float:
    if given is not None and not shared:
        raise ZootomyError(
            f"value_coef is {given}, but the critic has a backbone of its own, so it has no "
            "effect. Make the cluster with critic='shared', or leave it out."
        )
    if given is not None and not given > 0:
        raise ZootomyError(f"value_coef must be above 0, got {given}.")
    return VALUE_COEF if given is None else given


def _sequences(collected: Collected, width: int) -> Sequences:
    """All completions of a batch with their prompts, prompt-major."""
    prompts: list[np.ndarray] = []
    for group in collected.groups:
        prompts += [np.asarray(group.prompt, np.int32)] * len(group.completions)
    return Sequences(
        prompts=prompts,
        completions=[one.tokens for group in collected.groups for one in group.completions],
        width=width,
    )
