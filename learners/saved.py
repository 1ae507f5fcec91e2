"""Models out of runs of our own: a run folder, or a checkpoint in it, in place of a model's folder.

What a run folder holds: `run.yaml`, `checkpoints/STEP`, `backbone/` under adapters, `model/`.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from flax import nnx

from ..clusters import Checkpoints, nothing_whole, read_stored, stored_arrays
from ..models import (
    PRESETS,
    Decoder,
    ModelConfig,
    ScalarModel,
    add_adapters,
    load_config,
    load_model,
    load_scalar_model,
    merge_adapters,
    trained_part,
)
from ..registry import ZootomyError
from .run_config import RunConfig, read_yaml

CONFIG_FILE = "run.yaml"
CHECKPOINT_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
BACKBONE_FOLDER = "backbone"
# How arrays of a checkpoint are called: an actor's, that of an actor with a value head, a critic's.
_ACTOR, _SHARED, _CRITIC = "actor.params.", "actor.params.policy.", "critic.params."
_EMBEDDING = "embed_tokens.embedding"

Scalar = TypeVar("Scalar", bound=ScalarModel)


class Saved(NamedTuple):
    """A checkpoint of a run.

    Attributes:
        run: the run folder.
        step: of the checkpoint.
    """

    run: Path
    step: int

    @property
    def folder(self) -> Path:
        """Of the checkpoint."""
        return self.run / CHECKPOINT_FOLDER / str(self.step)

    @property
    def config(self) -> RunConfig:
        """Of the run."""
        return read_yaml(self.run / CONFIG_FILE)[1]

    @property
    def source(self) -> str:
        """Where the weights under a run's adapters come from, or where its model began."""
        backbone = self.run / BACKBONE_FOLDER
        return str(backbone) if backbone.is_dir() else self.config.model.path


def find_saved(path: str | Path) -> Saved | None:
    """The checkpoint that a path names; None for one that names no run.

    Args:
        path: a run folder or its `RUN/checkpoints` (the newest whole one), or
            `RUN/checkpoints/STEP`.

    Raises:
        ZootomyError: if there is no checkpoint, the one that is named is damaged, or all are.
    """
    folder, run = Path(path), run_of(path)
    if run is None:
        return None
    if not _names_step(folder):
        return _newest(run)
    if not (run / CONFIG_FILE).is_file():
        raise ZootomyError(
            f"{str(path)!r} is called like a checkpoint, but {str(run)!r} has no {CONFIG_FILE}, "
            "which says what model it is of; keep checkpoints in their run folder."
        )
    with Checkpoints(folder.parent) as checkpoints:
        step = int(folder.name)
        if step not in checkpoints.steps():
            there = ", ".join(map(str, checkpoints.steps())) or "none"
            raise ZootomyError(
                f"There is no checkpoint of step {step} in {str(folder.parent)!r}; there is: "
                f"{there}."
            )
        wrong = checkpoints.damage(step)
        if wrong is not None:
            rest = ", ".join(str(one) for one in checkpoints.steps() if one != step) or "none"
            raise ZootomyError(
                f"The checkpoint {str(path)!r} is damaged: {wrong}. Others of that run: {rest}."
            )
    return Saved(run, step)


def run_of(path: str | Path) -> Path | None:
    """The run folder that a path names, itself or by its checkpoints; None for no run."""
    folder = Path(path)
    if (folder / CONFIG_FILE).is_file():
        return folder
    if folder.name == CHECKPOINT_FOLDER and (folder.parent / CONFIG_FILE).is_file():
        return folder.parent
    return folder.parent.parent if _names_step(folder) else None


def _names_step(folder: Path) -> bool:
    """Whether a path is called like one checkpoint."""
    return folder.parent.name == CHECKPOINT_FOLDER and folder.name.isdecimal()


def _newest(run: Path) -> Saved:
    folder = run / CHECKPOINT_FOLDER
    if not folder.is_dir():
        raise ZootomyError(f"The run in {str(run)!r} has written no checkpoint yet.")
    with Checkpoints(folder) as checkpoints:
        step, broken = checkpoints.newest_whole()
        if step is None and broken:
            raise ZootomyError(nothing_whole(folder, broken))
        if step is None:
            raise ZootomyError(f"The run in {str(run)!r} has written no checkpoint yet.")
    for other, wrong in broken.items():
        warnings.warn(
            f"The checkpoint {str(folder / str(other))!r} is damaged: {wrong}. That of step {step} "
            "is used.",
            stacklevel=3,
        )
    return Saved(run, step)


def source_config(path: str | Path, *, scalar: bool = False) -> ModelConfig:
    """Sizes of the model that a path names: a Hugging Face folder, a run, or a checkpoint.

    Args:
        path: as of `load_policy`.
        scalar: a folder is that of a sequence classifier.
    """
    saved = find_saved(path)
    return load_config(path, scalar=scalar) if saved is None else _config(saved, critic=scalar)


def is_folder(path: str) -> bool:
    """Whether a path names a Hugging Face folder, and no run and not nothing."""
    return bool(path) and run_of(path) is None


def origin(path: str) -> str:
    """The Hugging Face folder that a run's model began with; empty for one from scratch.

    That it is there no longer is no error: only files beside the weights are taken from it.
    """
    run = run_of(path) if path else None
    if run is None:
        return path
    file = run / CONFIG_FILE
    return origin(read_yaml(file)[1].model.path) if file.is_file() else ""


def pinned(path: str) -> str:
    """The checkpoint that a run folder stands for at present; other paths as they are."""
    if not path or run_of(path) is None or _names_step(Path(path)):
        return path
    saved = find_saved(path)
    return path if saved is None else str(saved.folder)


def load_policy(path: str | Path, **options: Any) -> Decoder:
    """A language model from a Hugging Face folder, or the actor of a run.

    Adapters are merged into the weights. Each device reads its part; see `load_model`.

    Args:
        path: a Hugging Face folder, a run folder or `RUN/checkpoints` (its newest checkpoint), or
            `RUN/checkpoints/STEP`.
        options: those of `load_model`.

    Raises:
        ZootomyError: if a checkpoint is damaged, not there, or does not fit its run's model.
    """
    saved = find_saved(path)
    if saved is None:
        return load_model(path, **options)
    prefix = _prefix(saved)
    place = options.get("place")
    lora = saved.config.lora
    if not lora.rank:
        model = _abstract(Decoder, _config(saved), options)
        return _filled(model, saved, prefix, place)
    # The checkpoint holds adapters alone.
    adapted = add_adapters(load_policy(saved.source, **options), lora, rngs=nnx.Rngs(0))
    return merge_adapters(_filled(adapted, saved, prefix, place))


def load_scalar(path: str | Path, kind: type[Scalar], **options: Any) -> Scalar:
    """A critic or reward model from a Hugging Face folder, or the critic of a run.

    Args:
        path: as of `load_policy`.
        kind: `ValueModel` or `RewardModel`.
        options: those of `load_scalar_model`.

    Raises:
        ZootomyError: as of `load_policy`, or if the run has no critic.
    """
    saved = find_saved(path)
    if saved is None:
        return load_scalar_model(path, kind, **options)
    names, place = stored_arrays(saved.folder), options.get("place")
    if f"{_CRITIC}score.kernel" in names:
        model = _abstract(kind, _config(saved, critic=True), options)
        return _filled(model, saved, _CRITIC, place)
    if f"{_ACTOR}score.kernel" not in names:
        roles = ", ".join(sorted({name.split(".")[0] for name in names}))
        raise ZootomyError(
            f"The checkpoint {str(saved.folder)!r} has no critic; it has {roles}. Name a run of an "
            "algorithm with a critic, or a Hugging Face folder of a sequence classifier."
        )
    # A head on the actor's backbone.
    model = kind.from_decoder(load_policy(path, **options), rngs=nnx.Rngs(0))
    head = {f"{_ACTOR}score.kernel": _wanted(("score", "kernel"), model.score.kernel, place)}
    model.score.kernel.set_value(*read_stored(saved.folder, head).values())
    return model


def _prefix(saved: Saved) -> str:
    shared = any(name.startswith(_SHARED) for name in stored_arrays(saved.folder))
    return _SHARED if shared else _ACTOR


def _config(saved: Saved, *, critic: bool = False) -> ModelConfig:
    """Sizes of a run's actor, or of its critic, which may have come from a folder of its own."""
    if critic and saved.config.critic.path:
        return source_config(saved.config.critic.path, scalar=True)
    if saved.source:
        return source_config(saved.source)
    vocabulary = stored_arrays(saved.folder)[f"{_prefix(saved)}{_EMBEDDING}"].shape[0]
    return replace(PRESETS[saved.config.model.preset], vocab_size=vocabulary)


def _abstract(kind: Any, config: ModelConfig, options: dict[str, Any]) -> Any:
    given = {name: value for name, value in options.items() if name != "place"}
    if given.get("param_dtype") is None:
        given["param_dtype"] = given.get("dtype", "float32")
    return nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0), **given))


def _filled(model: Any, saved: Saved, prefix: str, place: Any) -> Any:
    """A model whose trained part is that of a checkpoint; changed in place."""
    state = dict(nnx.to_flat_state(nnx.state(model, trained_part(model))))
    names = {path: f"{prefix}{'.'.join(map(str, path))}" for path in state}
    wanted = {names[path]: _wanted(path, leaf, place) for path, leaf in state.items()}
    found = read_stored(saved.folder, wanted)
    for path, leaf in state.items():
        leaf.set_value(found[names[path]])
    nnx.update(model, nnx.from_flat_state(state))
    return model


def _wanted(path: tuple[Any, ...], leaf: Any, place: Any) -> jax.ShapeDtypeStruct:
    if place is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    else:
        sharding = place(path, leaf.shape)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
