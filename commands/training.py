"""`zootomy train`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from ..learners import Algorithm
from ..learners.run_config import RunConfig
from ..models import is_first
from .output import say
from .starting import read_start
from .words import print_help, wants_help


def train(
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008
    algorithm: str = "grpo",
    config: str = "",
    plugin: str = "",
    resume: bool = False,
) -> None:
    """Train a policy.

    Any slot or hyperparameter of the algorithm can be set by its dotted name:
    `--policy_loss.clip_high 0.28 --aggregation token_mean --reward_shaping overlong_penalty,clip`;
    options of a task or an optimizer likewise: `--task.options.terms 3`.

    Args:
        run: the settings of the run.
        algorithm: a name that `zootomy list algorithms` shows, or the zoo's name + a correction.
        config: a YAML file to take settings from; what the command line sets goes before it.
        plugin: a Python file that is run first, so that the blocks in it have names; it may be
            given several times, and goes with every command.
        resume: go on with the run in the folder, from its newest checkpoint.
    """
    del run, algorithm, config, plugin, resume
    raise AssertionError("main calls train_from instead")


def train_from(words: list[str]) -> None:
    """`zootomy train`: tyro writes the help; the words are read by name, as in a YAML file."""
    if wants_help(words):
        print_help(train, "train")
    chosen, run, given = read_start(words, {"resume": bool})
    _run(chosen, run, given.get("resume", False))


def _run(chosen: Algorithm, run: RunConfig, resume: bool) -> None:
    from ..learners.run import train as train_run

    console = Console()
    result = train_run(chosen, run, resume=resume, console=console)
    if not is_first():
        return
    console.print()
    before, after = result.before.get("eval/accuracy"), result.after.get("eval/accuracy")
    if before is not None and after is not None:
        say(
            f"held-out accuracy: {100 * before:.1f}% before, {100 * after:.1f}% after "
            f"({100 * (after - before):+.1f} points)"
        )
    say(f"curves:  {result.plot}")
    say(f"weights: {result.folder / 'model'}")
    say(f"log:     {result.folder / 'metrics.jsonl'}")
