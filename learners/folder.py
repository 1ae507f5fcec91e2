"""The folder of a run: made for a new one, checked for one that goes on."""

from __future__ import annotations

from pathlib import Path

from ..monitor.log import METRICS_FILE
from ..registry import ZootomyError
from .algorithm import Algorithm
from .difference import plain_differences
from .run_config import RunConfig, read_yaml, to_plain, write_yaml

CONFIG_FILE = "run.yaml"


def prepare_folder(folder: Path, algorithm: Algorithm, config: RunConfig, resume: bool) -> None:
    """Make the run folder, or check that the run in it is this one.

    What was refused before its first evaluation is no run: put right, it may begin there again.
    """
    file, log = folder / CONFIG_FILE, folder / METRICS_FILE
    begun = file.is_file() and log.is_file() and log.stat().st_size > 0
    if begun and not resume:
        raise ZootomyError(
            f"{str(folder)!r} holds a run already. Pass --resume to go on with it, or choose "
            f"another folder."
        )
    if resume and not file.is_file():
        raise ZootomyError(
            f"There is no run to resume in {str(folder)!r}: it has no {CONFIG_FILE}."
        )
    if resume:
        _check_same_run(file, algorithm, config)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_yaml(file, algorithm, config)
    except OSError as error:
        raise ZootomyError(
            f"The run folder {str(folder)!r} cannot be written to: {error.strerror}. Set folder "
            f"to another one."
        ) from error


def _check_same_run(file: Path, algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse to resume with other settings than the run began with; more steps are fine."""
    old_algorithm, old = read_yaml(file)
    if old_algorithm != algorithm:
        raise ZootomyError(
            f"The run in {str(file.parent)!r} has another algorithm:\n"
            f"{old_algorithm.diff(algorithm)}Resume it as it is, or start a new folder."
        )
    before, now = to_plain(old), to_plain(config)
    for free in ("steps", "checkpoint", "telemetry", "samples", "folder"):
        del before[free], now[free]
    changed = plain_differences(before, now)
    if changed:
        listing = "".join(f"  {line}\n" for line in changed)
        raise ZootomyError(
            f"The run in {str(file.parent)!r} has other settings (its own → given):\n{listing}"
            f"Resume it as it is, or start a new folder."
        )
