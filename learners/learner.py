"""The one learner that runs every online algorithm."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax

from ..clusters import Cluster, ClusterState
from ..monitor import Spans
from ..registry import ZootomyError, bind, get
from ..rollout import RolloutConfig
from ..tasks import Task
from .algorithm import Algorithm
from .batch import BatchConfig
from .checks import check_choices, check_options, check_run
from .collect import Collected, Collector, rehearse_filter
from .difference import plain_differences
from .evaluation import Evaluation, EvaluationConfig, evaluate
from .judge import Judge
from .memory import Memory
from .pipeline import Pipeline
from .score_scale import ScoreScale, check_scales, scalings_of, score_metrics
from .seeds import derive_seed
from .stand_in import stand_in
from .statistics import mean_staleness, rollout_metrics
from .update import Updater
from .validation import check_token_rewards
from .vocabulary import before_the_update, in_the_update

# Where the memory of rewards stands among a checkpoint's arrays, beside the models' roles.
MEMORY = "memory"


@dataclass(frozen=True, eq=False)
class StepReport:
    """What one step did.

    Attributes:
        step: the step, counted from 1.
        metrics: name -> value, under the field's names.
        collected: the batch it learned from.
    """

    step: int
    metrics: dict[str, float]
    collected: Collected


class Learner:
    """Sample, roll out, score, filter, learn, sync: one loop for every algorithm.

    It owns no maths: what is computed is in the blocks, how it is put together in the two
    functions of `assemble`. Nor does it write anything; `train` and anyone's own loop do that
    with what `step` returns.

    Args:
        algorithm: a config of blocks.
        task: prompts and reward functions.
        cluster: the models; it must have what the algorithm needs.
        rollout: sampling settings and length limits.
        batch: batch sizes.
        seed: everything random follows from it.
        critic_warmup: steps in which only the critic learns.
        score_scales: what becomes of the scores of a reward model, by its name; one given to the
            cluster without a name is `reward_model`.
        value_coef: factor of the value loss, for a critic on the actor's backbone; None: 0.1.
        max_staleness: 1 samples each batch while the step before it learns, 0 after it.
        reference_refresh_steps: after how many steps the actor becomes the reference; 0: never.

    Raises:
        ZootomyError: if the algorithm, the cluster and the sampling do not fit together.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        cluster: Cluster,
        *,
        rollout: RolloutConfig,
        batch: BatchConfig,
        seed: int = 0,
        critic_warmup: int = 0,
        score_scales: Mapping[str, ScoreScale] = MappingProxyType({}),
        value_coef: float | None = None,
        max_staleness: int = 0,
        reference_refresh_steps: int = 0,
    ):
        algorithm = algorithm.resolve_length(rollout.max_new_tokens)
        check_choices(algorithm, rollout, batch, critic_warmup)
        check_run(algorithm, cluster, rollout, batch)
        check_scales(algorithm, score_scales)
        self.algorithm = algorithm
        self.task = task
        self.cluster = cluster
        self.rollout = rollout
        self.batch = batch
        self.seed = seed
        self.steps_done = 0
        self.cursor = 0
        # Told of every span that ends; see `Spans`.
        self.on_span: Callable[[str, float, float], None] | None = None
        assert cluster.engine is not None
        weights = {name: scale.weight for name, scale in score_scales.items()}
        self.judge = Judge(task, cluster, width=rollout.max_new_tokens, model_weights=weights)
        if self.judge.in_parts:
            check_token_rewards(algorithm)
        self.collector = Collector(
            algorithm, task, self.judge, cluster.engine, rollout, batch, seed
        )
        self.pipeline = Pipeline(
            self.collector.collect, max_staleness=max_staleness, overlaps=cluster.samples_apart
        )
        self.reference_refresh_steps = check_options(
            algorithm, cluster, max_staleness, reference_refresh_steps
        )
        updater = functools.partial(
            Updater, algorithm, batch=batch, temperature=rollout.temperature,
            width=rollout.max_new_tokens, seed=seed, critic_warmup=critic_warmup,
            reward_weights=self.judge.weights, token_rewards=self.judge.in_parts,
            value_coef=value_coef,
        )  # fmt: skip
        self.updater = updater(cluster)
        self._make_updater = updater
        self._begun = False  # to compile ahead
        self.updater.rehearse(len(self.judge.names))
        rehearse_filter(algorithm, batch)
        self.controllers = {
            name: get("controller", spec.name)(**bind("controller", spec))
            for name, spec in algorithm.controllers.items()
        }
        self.controller_states = {name: one.init() for name, one in self.controllers.items()}
        self.scalings = scalings_of(self.judge.names, score_scales)
        self.memory = Memory.start(algorithm, len(task.train), self.scalings)

    def step(self, on_batch: Callable[[Collected], None] | None = None) -> StepReport:
        """One step: a full batch from prompts to new weights in the engine.

        Args:
            on_batch: told of the batch, once, while the devices learn from it.

        Returns:
            The report; the learner has moved on by one step.

        Raises:
            ZootomyError: if no completion has a reward, too few groups teach, or a loss or
                gradient is not finite. The failing optimizer step changes no weights, and the
                learner does not move on; earlier mini-batches of the step stay learned.
        """
        began = time.perf_counter()
        self.compile_ahead()
        spans = Spans(record=self.on_span)
        coefficients = self._coefficients()
        sampled = self.pipeline.take(self.cursor, self.steps_done, spans)
        behind = {"staleness": mean_staleness(sampled, self.cluster.version)}
        cursor = self.cursor + sampled.consumed
        with self.pipeline.ahead(sampled, cursor, self.steps_done + 1, spans):
            memory = self.memory.see(sampled, self.scalings)
            collected = memory.recall(sampled, self.scalings)
            # What is said of the batch is worked out while the devices learn from it.
            said = functools.cache(lambda: self._described(sampled, collected, memory, on_batch))
            totals = self.updater.update(collected, self.steps_done, coefficients, spans, said)
        with spans("sync"):
            self.cluster.sync_weights()

        metrics = dict(said())
        metrics |= behind if self.pipeline.max_staleness else {}
        metrics |= totals.result()
        for name, coefficient in coefficients.items():
            if name != "kl":
                part = name.removeprefix("regularizer.")
                metrics[f"{part}_regularizer_coefficient"] = coefficient
            elif self.algorithm.kl_placement != "none":
                metrics["kl_coefficient"] = coefficient
        # While the policy stands still (a critic's warm-up, a batch that teaches nothing), so do
        # the coefficients.
        if "policy_loss" in metrics:
            self._steer({**metrics, "sequences": float(self.batch.completions)})
        self.memory = memory.learn(collected, metrics.get("policy_shift", 0.0))
        self.cursor = cursor
        self.steps_done += 1
        if self.reference_refresh_steps and not self.steps_done % self.reference_refresh_steps:
            self.cluster.refresh_reference()
        metrics["epoch"] = self.cursor / len(self.task.train)
        metrics |= _speed(collected, spans, time.perf_counter() - began)
        return StepReport(self.steps_done, metrics, collected)

    def compile_ahead(self) -> None:
        """Compile what an update takes, beside what is done until the first one; `step` asks too.

        It is begun once. Heads and hidden states that whole distributions take are no stand-ins on
        a mesh, whose programs must not run beside those of the engine: nothing is done there.
        """
        if self._begun:
            return
        self._begun = True
        meshes = any(self.cluster.config.mesh_of(role).size > 1 for role in self.cluster.roles)
        whole = before_the_update(self.algorithm) or in_the_update(self.algorithm)
        if not (meshes and whole):
            batch = stand_in(
                self.algorithm, self.batch, self.rollout, len(self.judge.names),
                token_rewards=self.judge.in_parts,
            )  # fmt: skip
            given = batch, self.steps_done, self._coefficients()
            self.cluster.compile_ahead(functools.partial(_try_update, self._make_updater, *given))

    def _coefficients(self) -> dict[str, float]:
        """What controllers steer, by name."""
        return {name: state["coefficient"] for name, state in self.controller_states.items()}

    def _described(
        self,
        sampled: Collected,
        collected: Collected,
        memory: Memory,
        on_batch: Callable[[Collected], None] | None,
    ) -> dict[str, float]:
        """Metrics of a batch before anything is learned from it."""
        if on_batch is not None:
            on_batch(collected)
        return {
            **rollout_metrics(collected, self.judge.names),
            **score_metrics(sampled, self.scalings, memory.scores),
        }

    def _steer(self, metrics: Mapping[str, float]) -> None:
        """Let each controller that has a coefficient to steer read the step's metrics."""
        for name, controller in self.controllers.items():
            if name != "kl" or self.algorithm.kl_placement != "none":
                state = self.controller_states[name]
                self.controller_states[name], _ = controller.update(state, metrics)

    def evaluate(self, config: EvaluationConfig) -> Evaluation:
        """Examine the current weights on the task's held-out prompts."""
        seed = derive_seed(self.seed, "evaluation")
        return evaluate(self.task, self.collector.engine, self.rollout, config, seed)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that a resumed run needs: arrays, and a record of plain data."""
        cluster = self.cluster.state()
        arrays = dict(cluster.arrays)
        if jax.tree.leaves(self.memory):
            arrays[MEMORY] = self.memory
        return arrays, {
            "cluster": cluster.counters,
            "steps_done": self.steps_done,
            "cursor": self.cursor,
            "controllers": {name: dict(state) for name, state in self.controller_states.items()},
            "seed": self.seed,
            "algorithm": _for_json(self.algorithm.to_dict()),
            "in_flight": self.pipeline.state(),
        }

    def restore(self, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ZootomyError: if it is the state of another seed, algorithm or model.
        """
        for key, mine in (("seed", self.seed), ("algorithm", _for_json(self.algorithm.to_dict()))):
            if state[key] != mine:
                changed = "; ".join(plain_differences(state[key], mine, key))
                raise ZootomyError(
                    f"The checkpoint was written with another {key} (its own → this run's): "
                    f"{changed}. Start a new run folder, or resume with the same {key}."
                )
        models = {name: tree for name, tree in arrays.items() if name != MEMORY}
        self.cluster.restore(ClusterState(models, dict(state["cluster"])))
        self.memory = arrays.get(MEMORY, self.memory)
        self.steps_done = state["steps_done"]
        self.cursor = state["cursor"]
        self.controller_states = {name: dict(one) for name, one in state["controllers"].items()}
        self.pipeline.restore(state["in_flight"])


def _try_update(
    make_updater: Callable[[Cluster], Updater],
    batch: Collected,
    step: int,
    coefficients: Mapping[str, float],
    cluster: Cluster,
) -> None:
    """An update with a cluster that compiles; the optimizers' steps in any case."""
    try:
        make_updater(cluster).update(batch, step, coefficients, Spans())
    finally:
        cluster.compile_steps()


def _speed(collected: Collected, spans: Spans, seconds: float) -> dict[str, float]:
    """Times by span, and tokens sampled a second of the whole step."""
    tokens = sum(
        group.greedy_tokens + sum(len(one.tokens) for one in group.completions)
        for group in collected.sampled
    )
    return {**spans.take(), "time/step": seconds, "tokens_per_second": tokens / seconds}


def _for_json(data: Any) -> Any:
    """Plain data with infinite hyperparameters, which JSON has no word for, as text."""
    if isinstance(data, Mapping):
        return {key: _for_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_for_json(value) for value in data]
    return str(data) if isinstance(data, float) and math.isinf(data) else data
