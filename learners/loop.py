"""The loop of a run: steps, evaluations, logs, samples and checkpoints in turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..clusters import Checkpoints
from ..models import from_first
from ..monitor import RunLog, Sample, SampleLog, Screen, choose, read_log
from ..registry import unknown_name
from ..tasks import Prompt
from .collect import Collected
from .evaluation import Evaluation
from .learner import Learner
from .run_config import RunConfig
from .stopping import RunStopped, StopSignals
from .telemetry import Telemetry


class Loop:
    """Steps, evaluations, logs and checkpoints in turn.

    Args:
        learner: does the steps.
        config: says when to evaluate and to save.
        screen: where progress is shown.
        log: where metrics are kept.
        samples: where completions are kept.
        checkpoints: where the run's state is kept.
        telemetry: follows the steps.
    """

    def __init__(
        self,
        learner: Learner,
        config: RunConfig,
        screen: Screen,
        log: RunLog,
        samples: SampleLog,
        checkpoints: Checkpoints,
        telemetry: Telemetry,
    ):
        self.learner = learner
        self.config = config
        self.screen = screen
        self.log = log
        self.samples = samples
        self.checkpoints = checkpoints
        self.telemetry = telemetry
        learner.on_span = telemetry.on_span
        self._shown: list[Sample] = []

    def first_evaluation(self, *, resumed: bool) -> dict[str, float]:
        """The metrics before the first step: measured, or read back from the log."""
        if resumed:
            folder = self.log.folder
            said = from_first(lambda: json.dumps(_logged_evaluation(folder)).encode())
            return json.loads(said)
        self.learner.compile_ahead()
        if not self.learner.task.eval:
            return {}
        self.screen.status("compiling and evaluating")
        evaluation = self.learner.evaluate(self.config.evaluation)
        self.log.write(0, evaluation.metrics)
        self.samples.write(0, self._held_out(evaluation), "eval")
        self.screen.update(0, evaluation.metrics)
        return evaluation.metrics

    def run(self, last: dict[str, float]) -> dict[str, float]:
        """All steps that are left; returns the last evaluation's metrics.

        Raises:
            RunStopped: after SIGTERM or SIGINT, when the step under way is done and saved.
        """
        self.screen.status("compiling the first step")
        with StopSignals() as stop:
            while self.learner.steps_done < self.config.steps:
                last = self.step(last, stop)
        return last

    def step(self, last: dict[str, float], stop: StopSignals | None = None) -> dict[str, float]:
        """One step, with what is due after it; returns the last evaluation's metrics."""
        self.telemetry.begin(self.learner.steps_done + 1)
        report = self.learner.step(self._take_samples)
        metrics = dict(report.metrics)
        if self._due(self.config.evaluation.every, report.step) and self.learner.task.eval:
            with self.telemetry.spans("evaluation"):
                evaluation = self.learner.evaluate(self.config.evaluation)
            last = evaluation.metrics
            metrics |= last
            self.samples.write(report.step, self._held_out(evaluation), "eval")
        metrics |= self.telemetry.end(report.step, self.learner.cluster)
        self._check_score({*metrics, *last})
        self.samples.write(report.step, self._shown)
        self.log.write(report.step, metrics)
        self.screen.update(report.step, metrics, self._shown)
        asked = None
        if stop is not None and report.step < self.config.steps:
            asked = stop.heard()
        if asked is not None or self._due(self.config.checkpoint.every, report.step):
            self.screen.status("saving a checkpoint")
            score = metrics.get(self.config.checkpoint.best_metric)
            with self.telemetry.spans("checkpoint"):
                self.checkpoints.save(report.step, *self.learner.state(), score=score)
        if asked is not None:
            self.checkpoints.wait()
            # None leaves before the first has put it in its place.
            from_first(bytes)
            raise RunStopped(asked, report.step, self.config.folder)
        return last

    def _check_score(self, known: set[str]) -> None:
        """Refuse a `checkpoint.best_metric` that the run does not measure."""
        name = self.config.checkpoint.best_metric
        unmeasured = name.startswith("eval/") and not self.learner.task.eval
        if self.config.checkpoint.keep_best and name not in known and not unmeasured:
            raise unknown_name("metric in checkpoint.best_metric:", name, known)

    def _due(self, every: int, step: int) -> bool:
        return step == self.config.steps or (every > 0 and step % every == 0)

    def _take_samples(self, collected: Collected) -> None:
        """Keep a few completions of the step under way, as text."""
        groups = collected.sampled
        size = self.learner.batch.group_size
        step = self.learner.steps_done + 1
        chosen = choose(len(groups) * size, self.config.samples, step, self.config.seed)
        found = []
        for index in chosen:
            group, member = groups[index // size], index % size
            example = self.learner.task.train[group.example]
            found.append(
                Sample(
                    prompt=_text(example.prompt),
                    completion=self._decode(group.completions[member].tokens),
                    reward=float(group.rewards[member]) if group.valid[member] else None,
                    answer=_answer(example.columns),
                )
            )
        self._shown = found

    def _held_out(self, evaluation: Evaluation) -> list[Sample]:
        """The first few held-out completions: always the same prompts, to see them change."""
        pairs = zip(evaluation.examples, evaluation.completions, strict=True)
        size = len(evaluation.completions[0])
        return [
            Sample(
                prompt=_text(example.prompt),
                completion=self._decode(completions[0].tokens),
                reward=float(evaluation.rewards[index * size])
                if evaluation.valid[index * size]
                else None,
                answer=_answer(example.columns),
            )
            for index, (example, completions) in enumerate(pairs)
            if index < self.config.samples
        ]

    def _decode(self, tokens: np.ndarray) -> str:
        return self.learner.task.tokenizer.decode(tokens.tolist())


def _logged_evaluation(folder: Path) -> dict[str, float]:
    """The evaluation before the first step, from the log of the run that began."""
    first = next((record for record in read_log(folder) if record["step"] == 0), {})
    return {name: value for name, value in first.items() if name.startswith("eval/")}


def _text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _answer(columns: Mapping[str, Any]) -> str | None:
    return str(columns["answer"]) if "answer" in columns else None
