"""The commands around a run: its cluster as a picture, its policy examined."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from ..learners.compilation import keep_compilations
from ..learners.evaluation import EvaluationConfig
from ..learners.settings import setting_kinds
from ..registry import ZootomyError
from .output import say, say_json
from .starting import read_start
from .words import print_help, read_words, wants_help


def show_cluster(
    *,
    config: str = "",
    algorithm: str = "",
    mesh: str = "",
    devices: int | None = None,
    processes: int | None = None,
    json: bool = False,
) -> None:
    """Draw which role sits where and what it takes there, and explain every batch size.

    Takes every option of `train` besides, as in `--batch.full 512 --lora.rank 8`.

    Args:
        config: a YAML file, as of `train`.
        algorithm: instead of the file's.
        mesh: short for `--cluster.mesh`, e.g. `fsdp=4,tensor=2`.
        devices: how many there are to be; None: those of this machine for `auto`, else any.
        processes: over how many they are dealt; None: the file's `distributed.processes`, if any.
        json: print JSON.
    """
    del config, algorithm, mesh, devices, processes, json
    raise AssertionError("main calls show_cluster_from instead")


def show_cluster_from(words: list[str]) -> None:
    """`zootomy show-cluster`: its words are read as those of `train`."""
    from ..learners.seating import draw_seats, seat_roles
    from ..learners.sizes import explain_sizes

    if wants_help(words):
        print_help(show_cluster, "show-cluster")
    own = {"devices": int | None, "processes": int | None, "json": bool}
    chosen, run, given = read_start([_long(word) for word in words], own)
    devices = given.get("devices")
    for name in ("devices", "processes"):
        if given.get(name) is not None and given[name] < 1:
            raise ZootomyError(f"--{name} must be 1 or more, got {given[name]}.")
    seats = seat_roles(chosen, run, devices)
    sizes = explain_sizes(chosen, run, devices)
    processes = given.get("processes", run.distributed.processes)
    picture = draw_seats(seats, processes)
    if given.get("json"):
        roles = [asdict(seat) for seat in seats]
        say_json({"roles": roles, "processes": processes, "sizes": sizes.splitlines()})
        return
    say(f"{picture}\n\n{sizes}")


def _long(word: str) -> str:
    """`--mesh` as the setting that it is short for."""
    key, sign, value = word.partition("=")
    return f"--cluster.mesh{sign}{value}" if key == "--mesh" else word


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
        size: held-out prompts, the first of the task's; left out: as the run was evaluated.
        samples: completions a prompt; left out: likewise.
        temperature: of the sampling, 0 is greedy; left out: likewise.
        model: a Hugging Face folder, a run, or RUN/checkpoints/STEP, in place of the run's own.
        seed: of the sampling.
        json: print JSON.
    """
    del folder, size, samples, temperature, model, seed, json
    raise AssertionError("main calls evaluate_from instead")


def evaluate_from(words: list[str]) -> None:
    """`zootomy eval`: the settings that it takes have the types that they have in a run."""
    from ..learners.run import evaluate_folder

    own = {"model": str, "seed": int, "json": bool}
    settings = setting_kinds(EvaluationConfig, "evaluation.")
    del settings["evaluation.every"]
    (folder,), given = read_words(evaluate_run, "eval", words, {**settings, **own})
    as_json = given.pop("json", False)
    changes = {name: given.pop(name) for name in settings if name in given}
    keep_compilations()
    metrics = evaluate_folder(Path(folder), changes, **given)
    if as_json:
        say_json(metrics)
        return
    for key, value in metrics.items():
        say(f"{key}: {value:.4g}")
