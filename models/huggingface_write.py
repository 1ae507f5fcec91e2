"""Writing weights that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from .huggingface_names import STORED_DTYPES, named_arrays, places
from .processes import is_first, to_host


def _shards(model: nnx.Module, dtype, max_bytes: int | None) -> list[list[str]]:
    """Names in the order of the model, cut before a shard would exceed `max_bytes`."""
    state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    shards: list[list[str]] = [[]]
    filled = 0
    for name, place in places(model).items():
        size = state[place.path].size * jnp.dtype(dtype).itemsize
        if shards[-1] and max_bytes is not None and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _clear(folder: Path, overwrite: bool) -> None:
    old = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.safetensors.index.json"))
    if old and not overwrite:
        raise FileExistsError(
            f"{folder} already holds weights ({old[0].name}); choose another folder or pass "
            "overwrite=True"
        )
    for path in old:
        path.unlink()


def write_weights(
    model: nnx.Module,
    folder: str | Path,
    *,
    dtype,
    max_shard_bytes: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model's weights as safetensors.

    Args:
        model: a `Decoder` or a model with a scalar head.
        folder: exists.
        dtype: storage dtype: float32, bfloat16 or float16.
        max_shard_bytes: None writes one file; otherwise shards of at most so many bytes of data
            (a larger single tensor has a shard of its own) and an index.
        overwrite: replace weights that the folder already holds.

    Raises:
        FileExistsError: if the folder holds weights and `overwrite` is False.
        ValueError: for another dtype or a shard size below 1.
    """
    folder = Path(folder)
    dtype = jnp.dtype(dtype)
    if dtype not in [jnp.dtype(known) for known in STORED_DTYPES.values()]:
        raise ValueError(f"dtype must be float32, bfloat16 or float16, got {dtype.name}")
    if max_shard_bytes is not None and max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}")
    shards = _shards(model, dtype, max_shard_bytes)
    if is_first():
        _clear(folder, overwrite)
    if len(shards) == 1:
        files = ["model.safetensors"]
    else:
        files = [
            f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
        ]
    arrays = named_arrays(model)
    total = 0
    for names, file in zip(shards, files, strict=True):
        part = {}
        for name in names:
            found, array = next(arrays)
            assert found == name
            part[name] = np.ascontiguousarray(to_host(array.astype(dtype)))
            total += part[name].nbytes
        if is_first():
            save_file(part, folder / file, metadata={"format": "pt"})
    if len(shards) > 1 and is_first():
        index = {
            "metadata": {"total_size": total},
            "weight_map": {n: f for names, f in zip(shards, files, strict=True) for n in names},
        }
        text = json.dumps(index, indent=2) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
