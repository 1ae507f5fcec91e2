"""The learner's own cost: the share of a step in which no device computes.

Runs steps of a real run (task, scoring, packing, experience, logs, samples, screen) under
`jax.profiler` and takes the time off in which any program runs on a device. What is left is all
that a step waits for: the learner, the engine's scheduling, JAX's start of programs. Work of the
host beside a computing device is not in it. Prints JSON, one line a size and shape of a step: that
of the benchmarks (8 prompts of 32 tokens, 4 completions of 64 each), and one of short completions
(8 prompts of 8, 8 completions of up to 32 that end where they like), which has less to compute for
twice as many sequences.

    python benchmarks/overhead.py                     # 0.8M and 10M parameters
    python benchmarks/overhead.py --sizes 0.8M --shapes short
"""

from __future__ import annotations

import io
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import tyro
import zootomy as z
from flax import nnx
from jax.profiler import ProfileData, ProfileOptions
from rich.console import Console
from zootomy.clusters import Checkpoints
from zootomy.learners.loop import Loop
from zootomy.learners.run import build_learner
from zootomy.learners.run_config import RunConfig, read_yaml
from zootomy.learners.telemetry import Telemetry
from zootomy.models import ModelConfig, make_model
from zootomy.monitor import RunLog, SampleLog, Screen
from zootomy.tasks import CharacterTokenizer, Task, make_task

DEMO = Path(__file__).parent.parent / "examples" / "demo.yaml"
RECORDING = "recording"
STEP = "a step of the learner"  # its mark in the recording
COMPILING = 4  # steps before, in which each program is compiled
# Hidden size, layers, width of the MLP: 0.8 and 10.5 million parameters with heads of 32 and 64.
SIZES = {"0.8M": (128, 4, 384, 32), "10M": (384, 6, 1152, 64)}


@dataclass(frozen=True)
class Arguments:
    """What is measured.

    Attributes:
        sizes: models.
        shapes: of a step.
        steps: steps with a clock, and as many recorded; the median counts.
    """

    sizes: tuple[str, ...] = ("0.8M", "10M")
    shapes: tuple[str, ...] = ("benchmarks", "short")
    steps: int = 5


class Shape(NamedTuple):
    """Of a step with 8 prompts.

    Attributes:
        terms: numbers in a prompt, which has twice as many tokens.
        group: completions of a prompt.
        tokens: of a completion, at most.
        whole: whether no token ends one before.
    """

    terms: int
    group: int
    tokens: int
    whole: bool


SHAPES = {"benchmarks": Shape(16, 4, 64, True), "short": Shape(4, 8, 32, False)}


class Endless(CharacterTokenizer):
    """No token ends a completion."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """None."""
        return ()


class Part(NamedTuple):
    """A step in a recording, in seconds.

    Attributes:
        whole: of the step.
        idle: no device computed.
        dispatch: of that, a program was being started.
    """

    whole: float
    idle: float
    dispatch: float


Spans = list[tuple[float, float]]


class Recording(NamedTuple):
    """What `jax.profiler` wrote down, each a list of (begin, end) in ns.

    Attributes:
        steps: those that were marked.
        computing: programs under way on the devices.
        starting: programs being started on the host.
    """

    steps: Spans
    computing: Spans
    starting: Spans

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Of a folder that a recording was written to."""
        found = cls([], [], [])
        (file,) = folder.rglob("*.xplane.pb")
        for plane in ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                device = plane.name.startswith("/device:") or line.name.startswith("tf_XLA")
                for event in line.events:
                    span = event.start_ns, event.end_ns
                    # Small programs run in the thread that starts them.
                    if device or event.name.startswith("ThunkExecutor::Execute"):
                        found.computing.append(span)
                    elif event.name.startswith("PjitFunction"):
                        found.starting.append(span)
                    elif event.name == STEP:
                        found.steps.append(span)
        return found

    def parts(self) -> list[Part]:
        """The steps in parts."""
        found = []
        for begin, end in self.steps:
            idle = end - begin - covered(self.computing, begin, end)
            neither = end - begin - covered([*self.computing, *self.starting], begin, end)
            found.append(Part((end - begin) / 1e9, idle / 1e9, (idle - neither) / 1e9))
        return found


def covered(spans: Spans, begin: float, end: float) -> float:
    """How much of the time from begin to end lies in any of the spans."""
    total, reached = 0.0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        total += max(0.0, last - first)
        reached = max(reached, last)
    return total


def configured(
    arguments: Arguments, shape: Shape, folder: Path
) -> tuple[z.Algorithm, RunConfig, Task]:
    """The demo's task with a step's shape and a log of everything."""
    algorithm, config = read_yaml(DEMO)
    options = {**config.task.options, "terms": shape.terms}
    task = make_task(replace(config.task, options=options))
    if shape.whole:
        assert isinstance(task.tokenizer, CharacterTokenizer)
        task = replace(task, tokenizer=Endless(task.tokenizer.alphabet))
    config = replace(
        config,
        # Next to nothing is learned, so that all steps sample completions of like lengths.
        optimizer=replace(
            config.optimizer, schedule="constant", warmup_steps=0, learning_rate=1e-9
        ),
        rollout=replace(
            config.rollout, max_prompt_tokens=2 * shape.terms, max_new_tokens=shape.tokens
        ),
        batch=replace(config.batch, full=8, group_size=shape.group),
        folder=str(folder),
        steps=COMPILING + 2 * arguments.steps + 1,
        # Nothing is evaluated, so no checkpoint has a score to be kept by.
        evaluation=replace(config.evaluation, every=0),
        checkpoint=replace(config.checkpoint, keep_best=0),
    )
    return algorithm, config, task


def measured(size: str, shape: str, arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Shares of a step of one size and shape."""
    algorithm, config, task = configured(arguments, SHAPES[shape], folder)
    hidden, layers, inner, head = SIZES[size]
    model = make_model(
        ModelConfig(
            family="qwen3", vocab_size=task.tokenizer.vocab_size, hidden_size=hidden,
            intermediate_size=inner, num_layers=layers, num_heads=hidden // head,
            num_kv_heads=hidden // head // 2, head_dim=head, qk_norm=True, tie_embeddings=True,
        )
    )  # fmt: skip
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    learner = build_learner(algorithm, config, task, model)
    plain = record(learner, config, folder)
    parts = Recording.read(folder / RECORDING).parts()
    return {
        "size": size,
        "shape": shape,
        "parameters": parameters,
        "step_seconds": statistics.median(plain),
        "recorded_step_seconds": statistics.median(part.whole for part in parts),
        "idle_seconds": statistics.median(part.idle for part in parts),
        "of_that_dispatch": statistics.median(part.dispatch for part in parts),
        "own_share": statistics.median(part.idle / part.whole for part in parts),
    }


def record(learner: Any, config: RunConfig, folder: Path) -> list[float]:
    """Steps with everything written: first some that compile, some with a clock, then recorded.

    Returns:
        Seconds of each step with a clock alone.
    """
    console = Console(file=io.StringIO())
    options = ProfileOptions()
    options.python_tracer_level = 0
    with (
        Checkpoints(folder / "checkpoints") as checkpoints,
        Screen("overhead", config.steps, console=console) as screen,
        RunLog(folder) as log,
        Telemetry(folder, config.telemetry, resume=False) as telemetry,
    ):
        samples = SampleLog(folder)
        loop = Loop(learner, config, screen, log, samples, checkpoints, telemetry)
        # The last step of a run would save a checkpoint.
        measured = (config.steps - 1 - COMPILING) // 2
        for _ in range(COMPILING):
            loop.step({})
        plain = []
        for _ in range(measured):
            began = time.perf_counter()
            loop.step({})
            plain.append(time.perf_counter() - began)
        with jax.profiler.trace(str(folder / RECORDING), profiler_options=options):
            for _ in range(measured):
                with jax.profiler.TraceAnnotation(STEP):
                    loop.step({})
        samples.close()
    return plain


def main(arguments: Arguments) -> None:
    """Measure all sizes and shapes and print them."""
    for size, shape in itertools.product(arguments.sizes, arguments.shapes):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(size, shape, arguments, Path(folder))), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
