"""The learner's own cost: what of a step is not model compute, as a share of the step.

Runs steps of a real run (task, scoring, packing, experience, logs, samples, screen) and takes the
time that the models' programs were running (sampling, log-probabilities, gradients, optimizer)
off it. Prints JSON, one line a size. A step has 8 prompts of 8 completions.

    python benchmarks/overhead.py                     # 0.8M and 10M parameters
    python benchmarks/overhead.py --sizes 0.8M
"""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import tyro
import zootomy as z
from flax import nnx
from rich.console import Console
from zootomy.clusters import Checkpoints, passes
from zootomy.clusters.trained import TrainedModel
from zootomy.learners.loop import Loop
from zootomy.learners.run import build_learner
from zootomy.learners.run_config import RunConfig, read_yaml
from zootomy.learners.telemetry import Telemetry
from zootomy.models import ModelConfig, make_model
from zootomy.monitor import RunLog, SampleLog, Screen
from zootomy.tasks import make_task

DEMO = Path(__file__).parent.parent / "examples" / "demo.yaml"
# Hidden size, layers, width of the MLP: 0.8 and 10.5 million parameters with heads of 32 and 64.
SIZES = {"0.8M": (128, 4, 384, 32), "10M": (384, 6, 1152, 64)}


@dataclass(frozen=True)
class Arguments:
    """What is measured.

    Attributes:
        sizes: models.
        steps: measured steps, of which the median counts.
        tokens: longest completion.
    """

    sizes: tuple[str, ...] = ("0.8M", "10M")
    steps: int = 5
    tokens: int = 32


class Clock:
    """Adds up the time in wrapped functions, until their results are there."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed under a name."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = jax.block_until_ready(function(*arguments, **options))
            self.seconds[name] += time.perf_counter() - began
            return result

        return timed

    def around_each(
        self, name: str, function: Callable[..., Iterable[Any]]
    ) -> Callable[..., Iterator[Any]]:
        """The same generator function, with the time until each item is there under a name."""

        def timed(*arguments: Any, **options: Any) -> Iterator[Any]:
            items = iter(function(*arguments, **options))
            while True:
                began = time.perf_counter()
                item = next(items, None)
                self.seconds[name] += time.perf_counter() - began
                if item is None:
                    return
                yield item

        return timed

    def take(self) -> dict[str, float]:
        """The times since the last call."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken


def configured(arguments: Arguments, folder: Path) -> tuple[z.Algorithm, RunConfig]:
    """The demo's task with completions of any length and a log of everything."""
    algorithm, config = read_yaml(DEMO)
    rollout = replace(config.rollout, max_new_tokens=arguments.tokens)
    batch = replace(config.batch, full=8)
    optimizer = replace(config.optimizer, schedule="constant", warmup_steps=0)
    config = replace(config, optimizer=optimizer)
    config = replace(
        config, rollout=rollout, batch=batch, steps=arguments.steps + 3, folder=str(folder)
    )
    # Nothing is evaluated, so no checkpoint has a score to be kept by.
    checkpoint = replace(config.checkpoint, keep_best=0)
    evaluation = replace(config.evaluation, every=0)
    return algorithm, replace(config, evaluation=evaluation, checkpoint=checkpoint)


def measured(size: str, arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Shares of a step of one size."""
    algorithm, config = configured(arguments, folder)
    task = make_task(config.task)
    hidden, layers, inner, head = SIZES[size]
    model = make_model(
        ModelConfig(
            family="qwen3", vocab_size=task.tokenizer.vocab_size, hidden_size=hidden,
            intermediate_size=inner, num_layers=layers, num_heads=hidden // head,
            num_kv_heads=hidden // head // 2, head_dim=head, qk_norm=True, tie_embeddings=True,
        )
    )  # fmt: skip
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    clock = Clock()
    original = passes.forward, passes.accumulate, TrainedModel.step
    passes.forward = clock.around("log-probabilities", passes.forward)
    passes.accumulate = clock.around("gradients", passes.accumulate)
    TrainedModel.step = clock.around("optimizer", TrainedModel.step)  # type: ignore[method-assign]
    try:
        learner = build_learner(algorithm, config, task, model)
        engine = learner.collector.engine
        engine.stream = clock.around_each("sampling", engine.stream)
        records = list(steps(learner, config, clock, folder))
    finally:
        passes.forward, passes.accumulate, TrainedModel.step = original  # type: ignore
    shares = [1 - sum(times.values()) / total for total, times in records]
    return {
        "size": size,
        "parameters": parameters,
        "step_seconds": statistics.median(total for total, _ in records),
        "model_seconds": {
            name: statistics.median(times[name] for _, times in records) for name in records[0][1]
        },
        "own_share": statistics.median(shares),
    }


def steps(learner: Any, config: RunConfig, clock: Clock, folder: Path) -> Any:
    """(seconds, seconds by program) of each step after the first two, with everything written."""
    console = Console(file=io.StringIO())
    with (
        Checkpoints(folder / "checkpoints") as checkpoints,
        Screen("overhead", config.steps, console=console) as screen,
        RunLog(folder) as log,
        Telemetry(folder, config.telemetry, resume=False) as telemetry,
    ):
        samples = SampleLog(folder)
        loop = Loop(learner, config, screen, log, samples, checkpoints, telemetry)
        for n in range(config.steps - 1):
            clock.take()
            began = time.perf_counter()
            loop.step({})
            total = time.perf_counter() - began
            if n >= 2:
                yield total, clock.take()
        samples.close()


def main(arguments: Arguments) -> None:
    """Measure all sizes and print them."""
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(size, arguments, Path(folder))), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
