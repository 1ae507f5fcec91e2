"""A run folder: made or checked, and what it holds beside its log."""

from __future__ import annotations

from pathlib import Path

from ..clusters import Checkpoints, Role, nothing_whole
from ..models import (
    Decoder,
    from_first,
    has_adapters,
    load_model,
    merge_adapters,
    save_adapters,
    save_model,
)
from ..monitor.log import METRICS_FILE
from ..registry import ZootomyError
from .algorithm import Algorithm
from .difference import plain_differences
from .paths import whole_path, with_whole_paths
from .run_config import (
    CheckpointConfig,
    ModelSource,
    RunConfig,
    read_yaml,
    write_yaml,
)
from .saved import BACKBONE_FOLDER, CHECKPOINT_FOLDER, CONFIG_FILE, MODEL_FOLDER, origin
from .settings import to_plain
from .sources import model_options

PLOT_FILE = "curves.png"
ADAPTER_FOLDER = "adapter"


def prepare_folder(folder: Path, algorithm: Algorithm, config: RunConfig, resume: bool) -> None:
    """Make the run folder, or check that the run in it is this one; in the first process for all.

    What was refused before its first evaluation is no run: put right, it may begin there again.
    """
    from_first(lambda: _prepare(folder, algorithm, config, resume))


def _prepare(folder: Path, algorithm: Algorithm, config: RunConfig, resume: bool) -> bytes:
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
        return b""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_yaml(file, algorithm, with_whole_paths(config))
    except OSError as error:
        raise ZootomyError(
            f"The run folder {str(folder)!r} cannot be written to: {error.strerror}. Set folder "
            f"to another one."
        ) from error
    return b""


def open_checkpoints(folder: Path, config: CheckpointConfig) -> Checkpoints:
    """The checkpoints of a run folder."""
    return Checkpoints(
        folder / CHECKPOINT_FOLDER,
        keep=config.keep,
        keep_best=config.keep_best,
        asynchronous=config.asynchronous,
    )


def starting_point(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    """The step to go on from, and what is to be said of damaged checkpoints, which are set aside.

    Raises:
        ZootomyError: if there are checkpoints and all are damaged: to begin again in silence is
            not what was asked for.
    """
    start, broken = checkpoints.newest_whole()
    if start is None and broken:
        raise ZootomyError(nothing_whole(checkpoints.folder, broken))
    said = [
        f"the checkpoint of step {step} is damaged: {wrong}; it is now "
        f"{checkpoints.set_aside(step).name}, and the run goes on from step {start}"
        for step, wrong in broken.items()
    ]
    return start, said


def save_policy(folder: Path, model: Decoder, source: ModelSource) -> None:
    """Write a trained policy as a Hugging Face folder, and its adapters as a PEFT folder.

    Args:
        folder: of the run.
        model: the policy.
        source: where it came from; tokenizer and generation files are copied from there.
    """
    if has_adapters(model):
        base = folder / BACKBONE_FOLDER
        name = str(base.absolute()) if base.is_dir() else whole_path(source.path)
        save_adapters(model, folder / ADAPTER_FOLDER, base_model=name)
    save_model(
        merge_adapters(model),
        folder / MODEL_FOLDER,
        companions=origin(source.path) or None,
        overwrite=True,
    )


def keep_backbone(folder: Path, model: Decoder, source: ModelSource) -> None:
    """Write what is under the adapters, where no folder holds it: checkpoints hold them alone."""
    companions = origin(source.path) or None
    save_model(model, folder / BACKBONE_FOLDER, companions=companions, overwrite=True)


def kept_backbone(folder: Path, config: RunConfig) -> Decoder | None:
    """What `keep_backbone` wrote; None if it wrote nothing."""
    path = folder / BACKBONE_FOLDER
    return load_model(path, **model_options(config, Role.ACTOR)) if path.is_dir() else None


def _check_same_run(file: Path, algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse to resume with other settings than the run began with; more steps are fine."""
    old_algorithm, old = read_yaml(file)
    if old_algorithm != algorithm:
        raise ZootomyError(
            f"The run in {str(file.parent)!r} has another algorithm:\n"
            f"{old_algorithm.diff(algorithm)}Resume it as it is, or start a new folder."
        )
    before, now = (to_plain(with_whole_paths(one)) for one in (old, config))
    for free in ("steps", "checkpoint", "telemetry", "samples", "folder", "distributed"):
        del before[free], now[free]
    changed = plain_differences(before, now)
    if changed:
        listing = "".join(f"  {line}\n" for line in changed)
        raise ZootomyError(
            f"The run in {str(file.parent)!r} has other settings (its own → given):\n{listing}"
            f"Resume it as it is, or start a new folder."
        )
