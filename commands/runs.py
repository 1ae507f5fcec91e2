"""The commands around a run: its cluster as a picture, its policy examined."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import tyro

from ..learners.compilation import keep_compilations
from .output import say, say_json
from .training import starting_point


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
    from ..learners.seating import draw_seats, seat_roles
    from ..learners.sizes import explain_sizes

    chosen, run = starting_point(algorithm, config)
    if mesh:
        run = replace(run, cluster=replace(run.cluster, mesh=mesh))
    seats = seat_roles(chosen, run, devices)
    sizes = explain_sizes(chosen, run, devices)
    if json:
        say_json({"roles": [asdict(seat) for seat in seats], "sizes": sizes.splitlines()})
        return
    say(f"{draw_seats(seats)}\n\n{sizes}")


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
    from ..learners.run import evaluate_folder

    keep_compilations()
    given = {"size": size, "samples": samples, "temperature": temperature}
    changes = {name: value for name, value in given.items() if value is not None}
    metrics = evaluate_folder(Path(folder), changes, model, seed)
    if json:
        say_json(metrics)
        return
    for key, value in metrics.items():
        say(f"{key}: {value:.4g}")
