"""The command line: list, show, diff, find, train, eval, bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from .learners import Algorithm, anatomy
from .learners import algorithm as named_algorithm
from .learners.arguments import (
    OPEN_MAPPINGS,
    check_flags,
    refuse_twice,
    take_dotted,
    take_named,
    with_options,
)
from .learners.compilation import keep_compilations
from .learners.run_config import RunConfig, read_yaml, setting_names
from .learners.search import search
from .learners.stopping import RunStopped
from .registry import (
    ZootomyError,
    load_plugin,
    slot,
    slots,
    unknown_name,
)

USER_ERROR = 2
# As `EX_TEMPFAIL` in sysexits.h: try again, which is what a scheduler does with `--resume`.
SAVED = 75
INTERRUPTED = 130
# Options of `train` beside the settings of a run.
WORDS = ("algorithm", "config", "plugin", "resume")

app = tyro.extras.SubcommandApp()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words after `zootomy`; None takes them from the process.

    Returns:
        The exit code: 0; 2 for an error of the user's; 75 for a run that was asked to stop and is
        saved; 130 for one that was interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        given = _load_plugins(given)
        if given[:1] == ["train"]:
            _train(given[1:])
        elif given[:1] == ["bench"]:
            return _bench(given[1:])
        else:
            refuse_twice(given)
            app.cli(prog="zootomy", args=given)
    except ZootomyError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return USER_ERROR
    except RunStopped as stopped:
        print(stopped, file=sys.stderr)  # noqa: T201
        return SAVED
    except BrokenPipeError:
        # Whoever read the output has seen enough, as in `zootomy show grpo | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return 0


@app.command(name="list")
def list_names(
    what: Annotated[str | None, tyro.conf.Positional] = None, /, *, json: bool = False
) -> None:
    """List the blocks of a slot, of every slot, or the algorithms.

    Args:
        what: a slot, or `algorithms`; everything if left out.
        json: print JSON.
    """
    known = ["algorithms", *(place.name for place in slots())]
    if what is not None and what not in known:
        raise unknown_name("slot", what, known)
    table = {name: anatomy.summaries(name) for name in known if what in (None, name)}
    if json:
        _print_json(table)
        return
    for name, entries in table.items():
        question = f"  {slot(name).question}" if name != "algorithms" else ""
        _print(f"{name}{question}")
        width = max((len(entry) for entry in entries), default=0)
        for entry, summary in entries.items():
            _print(f"  {entry:{width}}  {summary}".rstrip())
        _print("")


@app.command
def show(
    name: Annotated[str, tyro.conf.Positional], /, *, latex: bool = False, json: bool = False
) -> None:
    """Show an algorithm, or a block as SLOT.BLOCK: formula, every value, paper, needs, cost.

    Args:
        name: an algorithm (`grpo`, `grpo+tis`), a config file, or a block (`policy_loss.ppo_clip`).
        latex: print only the formula, in LaTeX.
        json: print JSON.
    """
    first, _, block_name = name.partition(".")
    if block_name and first in {place.name for place in slots()}:
        if json:
            _print_json(anatomy.block_data(first, block_name))
        else:
            page = anatomy.block_latex if latex else anatomy.describe_block
            _print(page(first, block_name))
        return
    found = _algorithm(name)
    if json:
        _print_json(anatomy.algorithm_data(found))
    else:
        _print(anatomy.objective_latex(found) if latex else found.describe())


@app.command
def diff(
    left: Annotated[str, tyro.conf.Positional],
    right: Annotated[str, tyro.conf.Positional],
    /,
    *,
    json: bool = False,
) -> None:
    """Show only what two algorithms differ in.

    Args:
        left: an algorithm or a config file.
        right: another.
        json: print JSON.
    """
    a, b = _algorithm(left), _algorithm(right)
    if json:
        x, y = a.to_dict(), b.to_dict()
        keys = [key for key in {**x, **y} if x.get(key) != y.get(key)]
        _print_json({key: [x.get(key), y.get(key)] for key in keys})
    else:
        _print(a.diff(b))


@app.command
def find(
    words: Annotated[str, tyro.conf.Positional], /, *, limit: int = 15, json: bool = False
) -> None:
    """Search what blocks and algorithms say of themselves: names, summaries, docstrings.

    Args:
        words: what to look for, e.g. `"length bias"`.
        limit: how many to show.
        json: print JSON.
    """
    if limit < 1:
        raise ZootomyError(f"--limit must be 1 or more, got {limit}.")
    hits = search(words)
    if json:
        _print_json([asdict(hit) for hit in hits[:limit]])
        return
    for hit in hits[:limit]:
        _print(f"{hit.name}  {hit.summary}\n    {hit.where}")
    if not hits:
        _print(f"Nothing that is registered speaks of {words!r}.")
    elif len(hits) > limit:
        _print(f"{len(hits) - limit} more; see --limit.")


@app.command
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


@app.command(name="show-cluster")
def show_cluster(
    *,
    config: str = "",
    algorithm: str = "",
    mesh: str = "",
    devices: int | None = None,
    json: bool = False,
) -> None:
    """Draw which role sits where and what it takes there, and explain every batch size.

    Args:
        config: a YAML file, as of `train`.
        algorithm: instead of the file's.
        mesh: instead of the file's `cluster.mesh`, e.g. `fsdp=4,tensor=2`.
        devices: how many there are to be; None: those of this machine for `auto`, else any.
        json: print JSON.
    """
    from .learners.seating import draw_seats, seat_roles
    from .learners.sizes import explain_sizes

    chosen, run = _starting_point(algorithm, config)
    if mesh:
        run = replace(run, cluster=replace(run.cluster, mesh=mesh))
    seats = seat_roles(chosen, run, devices)
    sizes = explain_sizes(chosen, run, devices)
    if json:
        _print_json({"roles": [asdict(seat) for seat in seats], "sizes": sizes.splitlines()})
        return
    _print(f"{draw_seats(seats)}\n\n{sizes}")


@app.command(name="eval")
def evaluate_run(
    folder: Annotated[str, tyro.conf.Positional],
    /,
    *,
    size: Annotated[int | None, tyro.conf.arg(name="evaluation.size")] = None,
    samples: Annotated[int | None, tyro.conf.arg(name="evaluation.samples")] = None,
    temperature: Annotated[float | None, tyro.conf.arg(name="evaluation.temperature")] = None,
    model: str = "",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Examine the trained policy of a run folder on held-out prompts.

    Args:
        folder: a run folder.
        size: held-out prompts, the first of the task's; None: as the run itself was evaluated.
        samples: completions a prompt; None: likewise.
        temperature: of the sampling, 0 is greedy; None: likewise.
        model: a Hugging Face folder to examine instead of the run's own.
        seed: of the sampling.
        json: print JSON.
    """
    from .learners.run import evaluate_folder

    keep_compilations()
    given = {"size": size, "samples": samples, "temperature": temperature}
    changes = {name: value for name, value in given.items() if value is not None}
    metrics = evaluate_folder(Path(folder), changes, model, seed)
    if json:
        _print_json(metrics)
        return
    for key, value in metrics.items():
        _print(f"{key}: {value:.4g}")


@app.command
def bench() -> None:
    """Measure speed beside the peers and the machine's limits; `zootomy bench --help` says how.

    Peers take part whose environments are there; `make bench` makes them first.
    """
    raise AssertionError("main hands bench on before this is called")


def _bench(arguments: list[str]) -> int:
    """`zootomy bench`: the script in the repository, in a process of its own."""
    script = Path(__file__).parent / "benchmarks" / "bench.py"
    if not script.is_file():
        raise ZootomyError(
            "The benchmarks are in the repository and not in an installed package. Clone it, "
            "`pip install --editable .`, and run `zootomy bench` or `make bench` there."
        )
    return subprocess.call([sys.executable, str(script), *arguments])


def _train(arguments: list[str]) -> None:
    """`zootomy train`: the algorithm's own names are taken out before tyro reads the rest."""
    arguments, changes = take_dotted(arguments, tuple(place.name for place in slots()))
    arguments, options = take_dotted(arguments, OPEN_MAPPINGS)
    arguments, names_given = take_named(arguments, "algorithm")
    arguments, files = take_named(arguments, "config")
    if not {"-h", "--help"} & set(arguments):
        places = [place.name for place in slots()]
        check_flags(arguments, [*setting_names(), *places, *WORDS])
    file = _only("config", files)
    chosen, run = _starting_point(_only("algorithm", names_given), file)
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
    from .learners.run import train as train_run

    console = Console()
    result = train_run(chosen, run, resume=resume, console=console)
    console.print()
    before, after = result.before.get("eval/accuracy"), result.after.get("eval/accuracy")
    if before is not None and after is not None:
        _print(
            f"held-out accuracy: {100 * before:.1f}% before, {100 * after:.1f}% after "
            f"({100 * (after - before):+.1f} points)"
        )
    _print(f"curves:  {result.plot}")
    _print(f"weights: {result.folder / 'model'}")
    _print(f"log:     {result.folder / 'metrics.jsonl'}")


def _only(name: str, values: list[str]) -> str:
    """The one value given for a name, or an empty text; two are an error."""
    if len(values) > 1:
        raise ZootomyError(f"--{name} is given {len(values)} times: {', '.join(values)}; give one.")
    return values[0] if values else ""


def _starting_point(name: str, file: str) -> tuple[Algorithm, RunConfig]:
    """The algorithm and settings that `--algorithm` and `--config` name."""
    chosen, run = read_yaml(file) if file else (named_algorithm("grpo"), RunConfig())
    return named_algorithm(name) if name else chosen, run


def _load_plugins(arguments: list[str]) -> list[str]:
    """Run every `--plugin FILE`, so that its blocks have names; the rest is returned."""
    rest, paths = take_named(arguments, "plugin")
    for path in paths:
        load_plugin(path)
    return rest


def _algorithm(name: str) -> Algorithm:
    if name.endswith((".yaml", ".yml")):
        return read_yaml(name)[0]
    return named_algorithm(name)


def _print_json(data: Any) -> None:
    _print(json.dumps(data, indent=2, ensure_ascii=False))


def _print(text: str) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
