"""Sharding by rule: which axis of which array is spread over which axis of the mesh."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..models import from_host, in_place, parameter_axes, several
from ..models.axes import ADAPTERS
from ..models.axes import AXES as PARAMETER_AXES
from ..registry import ZootomyError, unknown_name
from .meshes import AXES
from .naming import named_leaves, path_name
from .roles import find_seat, role_of

HOST = "pinned_host"
NONE = "none"

# Logical axis -> mesh axis; an axis that is not here is on every device as a whole.
DEFAULT_RULES: Mapping[str, str] = {
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
}
LOGICAL_AXES = tuple(
    sorted({"layers", "rank", *(axis for names in PARAMETER_AXES.values() for axis in names)})
)


def axis_rules(seat: str, changes: Mapping[str, str]) -> dict[str, str]:
    """The rules of a role.

    Args:
        seat: whose; `reward.NAME` for one of several reward models.
        changes: `AXIS: MESH_AXIS` for all roles, `ROLE.AXIS: MESH_AXIS` for one, which goes before
            it; the mesh axis `none` keeps the axis whole.

    Returns:
        Logical axis -> mesh axis.

    Raises:
        ZootomyError: for a role or an axis that does not exist.
    """
    rules, own, narrow = dict(DEFAULT_RULES), {}, {}
    for key, mesh_axis in changes.items():
        whose, dot, axis = key.rpartition(".")
        if axis not in LOGICAL_AXES:
            raise unknown_name("logical axis", axis, LOGICAL_AXES)
        if mesh_axis not in (*AXES, NONE):
            raise unknown_name("mesh axis", str(mesh_axis), (*AXES, NONE))
        if not dot:
            rules[axis] = mesh_axis
        elif find_seat(whose) == seat:
            narrow[axis] = mesh_axis
        elif whose == role_of(seat):
            own[axis] = mesh_axis
    chosen = rules | own | narrow
    return {axis: mesh_axis for axis, mesh_axis in chosen.items() if mesh_axis != NONE}


class Placement:
    """Where a role's arrays lie.

    Args:
        role: for messages; `reward.NAME` for one of several reward models.
        mesh: with the axes of `meshes.AXES`; an abstract one will do to ask for shardings.
        rules: logical axis -> mesh axis.
        dtype: of the parameters; None: as they come.
    """

    def __init__(self, role: str, mesh: Any, rules: Mapping[str, str], dtype: str | None = None):
        self.role = role
        self.mesh = mesh
        self.rules = dict(rules)
        self.dtype = None if dtype is None else jnp.dtype(dtype)
        self.replicated = NamedSharding(mesh, PartitionSpec())

    def context(self) -> AbstractContextManager[Any]:
        """In it, models keep their activations where the rules of this mesh want them."""
        return jax.set_mesh(self.mesh)

    @functools.cached_property
    def over_rows(self) -> NamedSharding:
        """Of arrays whose first axis counts rows, or slots of rows."""
        return NamedSharding(self.mesh, PartitionSpec(("data", "fsdp")))

    def rows(self, tree: Any) -> Any:
        """Arrays whose first axis counts rows, or slots of rows, for a program on this mesh."""
        return self._given(tree, self.over_rows)

    def whole(self, tree: Any) -> Any:
        """Arrays and numbers that a program on this mesh has on every device."""
        return self._given(tree, self.replicated)

    def settled(self, tree: Any, shardings: Any) -> Any:
        """What a program on this mesh has made, in its places: one device leaves no choice."""
        return tree if self.mesh.size == 1 else in_place(tree, shardings)

    def _given(self, tree: Any, sharding: NamedSharding) -> Any:
        """In its places, or on the host, whence a program fetches it for one device: faster."""
        leaves = jax.tree.leaves(tree)
        on_host = all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves)
        alone = self.mesh.size == 1 and not several()
        return tree if alone and on_host else from_host(tree, sharding)

    def spec(self, path: str, axes: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        """How a parameter is spread.

        Args:
            path: its dotted name.
            axes: the logical names of its axes.
            shape: its shape.

        Raises:
            ZootomyError: where a size does not divide.
        """
        places: list[str | None] = []
        for axis, size in zip(axes, shape, strict=True):
            mesh_axis = self.rules.get(axis)
            # Not twice over the same devices.
            if mesh_axis is None or mesh_axis in places or self.mesh.shape[mesh_axis] == 1:
                places.append(None)
                continue
            devices = self.mesh.shape[mesh_axis]
            if size % devices:
                raise ZootomyError(
                    f"The {self.role}'s {path!r} has {size} along {axis!r}, which do not divide "
                    f"over the {devices} devices of the mesh axis {mesh_axis!r}. Make that axis of "
                    f"the mesh a divisor of {size}, or keep {axis!r} whole: "
                    f"cluster.axis_rules.{axis}=none."
                )
            places.append(mesh_axis)
        while places and places[-1] is None:
            places.pop()
        return PartitionSpec(*places)

    def parameter(self, path: tuple[Any, ...], shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of a parameter by its path in the model."""
        axes = parameter_axes(path, len(shape))
        return NamedSharding(self.mesh, self.spec(".".join(map(str, path)), axes, shape))

    def shardings(self, tree: Any) -> Any:
        """A tree of shardings like a tree of parameters; what is none lies whole everywhere."""

        def find(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            names = _parameter_path(path, len(leaf.shape))
            return self.replicated if names is None else self.parameter(names, leaf.shape)

        return jax.tree_util.tree_map_with_path(find, tree)

    def put(self, tree: Any) -> Any:
        """Arrays in their places, parameters in their dtype; what is so already is not copied.

        Adapters stay in float32, and weights in few bits, with their scales, as they are.
        """

        def place(path: tuple[Any, ...], x: jax.Array, sharding: NamedSharding) -> jax.Array:
            names = _parameter_path(path, x.ndim)
            if self.dtype is not None and names is not None and names[-1] not in ADAPTERS:
                # Before the way from mesh to mesh, which it may halve.
                x = x if x.dtype == self.dtype else x.astype(self.dtype)
            return from_host(x, sharding)

        return jax.tree_util.tree_map_with_path(place, tree, self.shardings(tree))


def _parameter_path(path: tuple[Any, ...], rank: int) -> tuple[str, ...] | None:
    """The path of a leaf in the model; None for what has no logical axes."""
    names = tuple(path_name(path).split("."))
    try:
        parameter_axes(names, rank)
    except ValueError:
        return None
    return names


def like_params(state: Any, params: Any, shardings: Any, otherwise: NamedSharding) -> Any:
    """Shardings of an optimizer's state: what mirrors a parameter lies where the parameter does.

    Args:
        state: the optimizer's.
        params: the parameters.
        shardings: theirs, in the same tree.
        otherwise: for what is no parameter's mirror, a count or a factored moment.

    Returns:
        A tree like `state`.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    places = named_leaves(shardings)

    def place(name: str, shape: tuple[int, ...]) -> NamedSharding:
        parts = name.split(".")
        for start in range(len(parts)):
            tail = ".".join(parts[start:])
            if tail in shapes:
                return places[tail] if shapes[tail] == shape else otherwise
        return otherwise

    named = {name: place(name, leaf.shape) for name, leaf in named_leaves(state).items()}
    return jax.tree.unflatten(jax.tree.structure(state), list(named.values()))


def on_host(shardings: Any) -> Any:
    """The same shardings in the hosts' memory."""
    return jax.tree.map(lambda s: s.with_memory_kind(HOST), shardings)
