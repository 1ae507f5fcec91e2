"""What a run folder holds beside its log: checkpoints, the policy, what is under its adapters."""

from __future__ import annotations

from pathlib import Path

from ..clusters import Checkpoints, nothing_whole
from ..models import (
    Decoder,
    has_adapters,
    load_model,
    merge_adapters,
    save_adapters,
    save_model,
)
from ..registry import ZootomyError
from .run_config import CheckpointConfig, ModelSource

PLOT_FILE = "curves.png"
CHECKPOINT_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
ADAPTER_FOLDER = "adapter"
BACKBONE_FOLDER = "backbone"


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
        name = str(base.absolute()) if base.is_dir() else source.path
        save_adapters(model, folder / ADAPTER_FOLDER, base_model=name)
    save_model(
        merge_adapters(model), folder / MODEL_FOLDER, companions=source.path or None, overwrite=True
    )


def keep_backbone(folder: Path, model: Decoder, source: ModelSource) -> None:
    """Write what is under the adapters, where no folder holds it: checkpoints hold them alone."""
    save_model(model, folder / BACKBONE_FOLDER, companions=source.path or None, overwrite=True)


def kept_backbone(folder: Path, source: ModelSource) -> Decoder | None:
    """What `keep_backbone` wrote; None if it wrote nothing."""
    path = folder / BACKBONE_FOLDER
    if not path.is_dir():
        return None
    return load_model(
        path,
        dtype=source.dtype,
        param_dtype=source.param_dtype,
        remat=source.remat,
        layers=source.layers,
        attention=source.attention,
    )
