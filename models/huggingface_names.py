"""Names of parameters in Hugging Face files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

# Modules are named as in transformers, so a parameter's name follows from its path and its leaf:
# (leaf) -> (leaf in the file, whether the matrix is stored transposed).
_LEAVES = {
    "kernel": ("weight", True),
    "scale": ("weight", False),
    "embedding": ("weight", False),
    "bias": ("bias", False),
}
_OUTSIDE_THE_BODY = ("lm_head", "score")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Storage dtypes, by their name in a safetensors header.
STORED_DTYPES = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16}


class Place(NamedTuple):
    """Where a tensor of the file goes: the parameter's path and whether it is transposed."""

    path: tuple[Any, ...]
    transposed: bool


def places(model: nnx.Module) -> dict[str, Place]:
    """The Hugging Face name of every parameter of a model.

    Args:
        model: a `Decoder` or a model with a scalar head around one; may be abstract.

    Returns:
        Name to `Place`, in the order of the model.

    Raises:
        ValueError: for a parameter that has no name there (an adapter that was not merged).
    """
    found = {}
    for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        name, transposed = huggingface_name(path)
        found[name] = Place(path, transposed)
    return found


def huggingface_name(path: Sequence[Any]) -> tuple[str, bool]:
    """The Hugging Face name of one parameter, and whether its matrix is stored transposed there.

    Args:
        path: its path in the model, e.g. `("layers", 0, "mlp", "up_proj", "kernel")`.

    Raises:
        ValueError: for a parameter that has no name there.
    """
    leaf = str(path[-1])
    if leaf not in _LEAVES:
        raise ValueError(
            f"parameter {'.'.join(map(str, path))} has no place in a Hugging Face folder; "
            "merge adapters into the weights first"
        )
    modules = [str(part) for part in path[:-1] if part != "backbone"]
    prefix = [] if modules[0] in _OUTSIDE_THE_BODY else ["model"]
    name, transposed = _LEAVES[leaf]
    return ".".join([*prefix, *modules, name]), transposed


def named_arrays(model: nnx.Module) -> Iterator[tuple[str, jax.Array]]:
    """Each parameter under its Hugging Face name, matrices as `[out, in]`.

    Args:
        model: a `Decoder` or a model with a scalar head.

    Yields:
        `(name, array)`; one transposed array is alive at a time.
    """
    state: dict[Any, nnx.Variable] = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    for name, place in places(model).items():
        array = state[place.path][...]
        yield name, array.T if place.transposed else array
