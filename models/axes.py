"""Logical names of axes, as data; sharding rules map the parameters' to a mesh elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec, Sharding

# (module, leaf) -> axis names. `heads` and `kv_heads` axes hold heads times head width.
AXES: dict[tuple[str, str], tuple[str, ...]] = {
    ("embed_tokens", "embedding"): ("vocab", "embed"),
    ("lm_head", "kernel"): ("embed", "vocab"),
    ("score", "kernel"): ("embed", "score"),
    ("norm", "scale"): ("embed",),
    ("input_layernorm", "scale"): ("embed",),
    ("post_attention_layernorm", "scale"): ("embed",),
    ("q_norm", "scale"): ("head_dim",),
    ("k_norm", "scale"): ("head_dim",),
    ("q_proj", "kernel"): ("embed", "heads"),
    ("k_proj", "kernel"): ("embed", "kv_heads"),
    ("v_proj", "kernel"): ("embed", "kv_heads"),
    ("o_proj", "kernel"): ("heads", "embed"),
    ("q_proj", "bias"): ("heads",),
    ("k_proj", "bias"): ("kv_heads",),
    ("v_proj", "bias"): ("kv_heads",),
    ("o_proj", "bias"): ("embed",),
    ("gate_proj", "kernel"): ("embed", "mlp"),
    ("up_proj", "kernel"): ("embed", "mlp"),
    ("down_proj", "kernel"): ("mlp", "embed"),
    ("gate_proj", "bias"): ("mlp",),
    ("up_proj", "bias"): ("mlp",),
    ("down_proj", "bias"): ("embed",),
}

ADAPTERS = ("lora_a", "lora_b")

Placer = Callable[[tuple[Any, ...], tuple[int, ...]], Sharding]
"""`(path, shape) -> sharding` of a parameter: where it is to be made."""

# What an activation's axis is spread over, in a mesh that has such axes.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "rows": ("data", "fsdp"),
    "length": ("sequence",),
    "heads": ("tensor",),
    "vocab": ("tensor",),
    "tokens": ("data", "fsdp", "sequence"),
}


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Keep an activation spread as its axes say; outside of a mesh nothing happens.

    Without it the compiler may follow the parameters instead and spread the hidden width, for
    which every device would need every row.

    Args:
        x: an activation.
        names: of its axes, from the first on: a key of `ACTIVATIONS`, or None for an axis that
            every device holds whole. An axis whose size does not divide is spread over as many
            axes of the mesh, from the first on, as it does divide over.

    Returns:
        `x`, the same numbers.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or not all(kind == AxisType.Auto for kind in mesh.axis_types):
        return x
    if not any(_axes_on(mesh, name) for name in names if name is not None):
        return x
    return jax.lax.with_sharding_constraint(x, activation_spec(mesh, x.shape, *names))


def activation_spec(
    mesh: Mesh | AbstractMesh, shape: Sequence[int], *names: str | None
) -> PartitionSpec:
    """How a mesh spreads an activation of this shape; names as of `constrain`."""
    places: list[tuple[str, ...] | None] = []
    for name, size in zip(names, shape, strict=False):
        axes = () if name is None else _axes_on(mesh, name)
        while axes and size % math.prod(mesh.shape[axis] for axis in axes):
            axes = axes[:-1]
        places.append(axes or None)
    return PartitionSpec(*places)


def whole_length(x: jax.Array) -> jax.Array:
    """`[R, L, heads, head_dim]`, of which every device holds the whole length; else as it is."""
    mesh = jax.sharding.get_abstract_mesh()
    return constrain(x, "rows", None, "heads") if parts_on(mesh, "length") > 1 else x


def heads_held(kv_heads: int, heads: int) -> int:
    """How many key heads the devices of a mesh hold between them.

    Of more devices than key heads each takes a whole one, so that some are held more than once:
    half a head is of no use to anyone.

    Args:
        kv_heads: of the model.
        heads: query heads of the model.
    """
    held = math.lcm(kv_heads, parts_on(jax.sharding.get_abstract_mesh(), "heads"))
    return kv_heads if heads % held else held


def parts_on(mesh: Mesh | AbstractMesh, name: str) -> int:
    """Into how many parts a mesh spreads an activation's axis, a key of `ACTIVATIONS`."""
    return math.prod(mesh.shape[axis] for axis in _axes_on(mesh, name))


def _axes_on(mesh: Mesh | AbstractMesh, name: str) -> tuple[str, ...]:
    return tuple(axis for axis in ACTIVATIONS[name] if axis in mesh.axis_names)


def parameter_axes(path: Sequence[Any], rank: int) -> tuple[str, ...]:
    """The axis names of a parameter.

    Args:
        path: its path in the model; the last two steps decide.
        rank: how many axes it has; one more than the table knows is a stack of layers.

    Raises:
        ValueError: for a parameter that the table does not know.
    """
    module, leaf = (str(path[-2]), str(path[-1])) if len(path) > 1 else ("", "")
    axes = AXES.get((module, leaf), ())
    if leaf in ADAPTERS and (module, "kernel") in AXES:
        inputs, outputs = AXES[module, "kernel"]
        axes = (inputs, "rank") if leaf == "lora_a" else ("rank", outputs)
    if not axes or rank - len(axes) not in (0, 1):
        raise ValueError(f"parameter {'.'.join(map(str, path))} has no logical axes")
    return axes if rank == len(axes) else ("layers", *axes)
