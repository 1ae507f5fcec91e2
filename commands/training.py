"""`zootomy train`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from ..learners import Algorithm
from ..learners import algorithm as named_algorithm
from ..learners.arguments import (
    OPEN_MAPPINGS,
    check_flags,
    take_dotted,
    take_named,
    with_options,
)
from ..learners.run_config import RunConfig, read_yaml, setting_names
from ..registry import ZootomyError, slots
from .output import say

# Options of `train` beside the settings of a run.
WORDS = ("algorithm", "config", "plugin", "resume")


def train(
    run: Annotated[RunConfig, tyro.conf.arg(name="")],
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
    raise AssertionError("main takes train apart before this is called")


def train_from(arguments: list[str]) -> None:
    """`zootomy train`: the algorithm's own names are taken out before tyro reads the rest."""
    arguments, changes = take_dotted(arguments, tuple(place.name for place in slots()))
    arguments, options = take_dotted(arguments, OPEN_MAPPINGS)
    arguments, names_given = take_named(arguments, "algorithm")
    arguments, files = take_named(arguments, "config")
    if not {"-h", "--help"} & set(arguments):
        places = [place.name for place in slots()]
        check_flags(arguments, [*setting_names(), *places, *WORDS])
    file = _only("config", files)
    chosen, run = starting_point(_only("algorithm", names_given), file)
    run = with_options(run, options)

    def read(
        run: Annotated[RunConfig, tyro.conf.arg(name="")] = run,
        algorithm: str = chosen.name,
        config: str = file,
        plugin: str = "",
        resume: bool = False,
    ) -> tuple[RunConfig, bool]:
        del algorithm, config, plugin
        return run, resume

    read.__doc__ = train.__doc__
    run, resume = tyro.cli(read, prog="zootomy train", args=arguments)
    if changes:
        chosen = chosen.override(changes)
    _run(chosen, run, resume)


def _run(chosen: Algorithm, run: RunConfig, resume: bool) -> None:
    from ..learners.run import train as train_run

    console = Console()
    result = train_run(chosen, run, resume=resume, console=console)
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


def _only(name: str, values: list[str]) -> str:
    """The one value given for a name, or an empty text; two are an error."""
    if len(values) > 1:
        raise ZootomyError(f"--{name} is given {len(values)} times: {', '.join(values)}; give one.")
    return values[0] if values else ""


def starting_point(name: str, file: str) -> tuple[Algorithm, RunConfig]:
    """The algorithm and settings that `--algorithm` and `--config` name."""
    chosen, run = read_yaml(file) if file else (named_algorithm("grpo"), RunConfig())
    return named_algorithm(name) if name else chosen, run
