"""Reading the weights of a Hugging Face folder; safetensors only, so loading executes no code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding
from safetensors import safe_open

from .axes import Placer
from .huggingface_names import EMBEDDING, HEAD, STORED_DTYPES, Place, places

# Buffers that older checkpoints carry; they are computed from the config.
_COMPUTED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
_NOT_SAFETENSORS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.gguf")


class _Stored(NamedTuple):
    """A tensor on disk; `name` is its name there."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        others = sorted(path.name for kind in _NOT_SAFETENSORS for path in folder.glob(kind))
        hint = f"; {', '.join(others)} cannot be read, convert to safetensors" if others else ""
        raise FileNotFoundError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json{hint}"
        )
    weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ValueError(f"{index} names files outside the folder: {', '.join(outside)}")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{index} names files that do not exist: {', '.join(absent)}")
    return [folder / name for name in names]


def _inventory(files: list[Path]) -> dict[str, _Stored]:
    """Every tensor by name, without reading the data."""
    tensors: dict[str, _Stored] = {}
    for file in files:
        with safe_open(file, framework="numpy") as source:
            for name in source.keys():  # noqa: SIM118 (a handle, not a dictionary)
                if name in tensors:
                    raise ValueError(f"{name} is in both {tensors[name].file.name} and {file.name}")
                part = source.get_slice(name)
                tensors[name] = _Stored(file, name, tuple(part.get_shape()), part.get_dtype())
    return tensors


def _compare(wanted: Mapping[str, tuple[int, ...]], tensors: Mapping[str, _Stored]) -> None:
    """One error that lists what is missing, unexpected, misshapen or of an unknown dtype."""
    present = {name: tensors[name] for name in wanted if name in tensors}
    missing = [name for name in wanted if name not in tensors]
    extra = [n for n in tensors if n not in wanted and not _COMPUTED.fullmatch(n)]
    shapes = [
        f"{name} {list(stored.shape)} (expected {list(wanted[name])})"
        for name, stored in present.items()
        if stored.shape != wanted[name]
    ]
    dtypes = [f"{n} {s.dtype}" for n, s in present.items() if s.dtype not in STORED_DTYPES]
    complaints = [
        f"{title}: {', '.join(names)}"
        for title, names in (
            ("missing tensors", missing),
            ("unexpected tensors", sorted(extra)),
            ("tensors of the wrong shape", shapes),
            (f"tensors of a dtype other than {', '.join(STORED_DTYPES)}", dtypes),
        )
        if names
    ]
    if complaints:
        raise ValueError("the weights do not fit config.json; " + "; ".join(complaints))


def _array(stored: _Stored) -> np.ndarray:
    with safe_open(stored.file, framework="numpy") as source:
        return source.get_tensor(stored.name)


def _placed(
    source: Any,
    stored: _Stored,
    shape: tuple[int, ...],
    goal: Place,
    param_dtype: Any,
    sharding: Sharding,
) -> jax.Array:
    """A tensor read part by part, each part only for the devices that hold it."""
    part, dtype = source.get_slice(stored.name), jnp.dtype(param_dtype)

    def read(index: Any) -> np.ndarray:
        array = part[index[::-1]].T if goal.transposed else part[index]
        return np.asarray(array).astype(dtype)

    return jax.make_array_from_callback(shape, sharding, read, dtype=dtype)


def _settle_tied_head(tensors: dict[str, _Stored]) -> None:
    """A tied model needs one of embedding and head; both are fine where they are equal."""
    if HEAD not in tensors:
        return
    head = tensors.pop(HEAD)
    if EMBEDDING not in tensors:
        tensors[EMBEDDING] = head
        return
    embedding = tensors[EMBEDDING]
    if head.shape != embedding.shape or not np.array_equal(_array(head), _array(embedding)):
        raise ValueError(
            f"config.json ties the head to the embedding, but {HEAD} and {EMBEDDING} differ; set "
            "tie_word_embeddings to false if the head is meant to be free"
        )


def read_weights(
    model: nnx.Module,
    folder: str | Path,
    *,
    param_dtype,
    tied_head: bool,
    place: Placer | None = None,
) -> None:
    """Fill a model with the weights of a folder.

    Args:
        model: built for the folder's config, abstract (`nnx.eval_shape`) or not; changed in place.
        folder: holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
        param_dtype: dtype of the parameters after loading.
        tied_head: the model's head is its embedding.
        place: `(path, shape) -> sharding` of a parameter; None: whole on the default device.

    Raises:
        FileNotFoundError: if there are no safetensors.
        ValueError: if tensors are missing, unexpected, misshapen or of an unknown dtype; one error
            names them all.
    """
    state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    goals = places(model)
    wanted = {
        name: state[place.path].shape[::-1] if place.transposed else state[place.path].shape
        for name, place in goals.items()
    }
    tensors = _inventory(_weight_files(Path(folder)))
    if tied_head:
        _settle_tied_head(tensors)
    _compare(wanted, tensors)
    for file in sorted({stored.file for stored in tensors.values()}):
        with safe_open(file, framework="numpy") as source:
            for name, goal in goals.items():
                if tensors[name].file != file:
                    continue
                parameter, stored = state[goal.path], tensors[name]
                if place is not None:
                    sharding = place(goal.path, parameter.shape)
                    value = _placed(source, stored, parameter.shape, goal, param_dtype, sharding)
                else:
                    array = source.get_tensor(stored.name)
                    value = jnp.asarray(array.T if goal.transposed else array, param_dtype)
                parameter.set_value(value)
    nnx.update(model, nnx.from_flat_state(state))
