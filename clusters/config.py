"""Where the roles live and in which row shapes the models see tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
import tyro
from jax.sharding import Mesh

from ..registry import ZootomyError
from .roles import Role, find_role

DATA_AXIS = "data"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the roles live and in which row shapes the models see tokens.

    A forward pass sees `micro_rows * row_length` tokens, whatever the batch: that is the token
    budget of a micro-batch, and the one shape that is compiled.

    Attributes:
        role_to_mesh: the mesh of each role; roles left out live on the mesh of the others. None:
            a data-parallel mesh over all accelerators, or the first device on CPU.
        micro_rows: R, packed rows of a training pass; a multiple of the devices on the data axis.
        forward_rows: R of a pass without gradient, which can be larger; None: `micro_rows`.
        row_length: L, tokens a row; None: the longest sequence that the run allows.
        sequences_per_row: most sequences packed into a row; 1 turns packing off.

    Raises:
        ZootomyError: a value outside its range, meshes that differ, an axis that is not supported,
            or rows that do not divide over the devices.
    """

    # A mesh is an object, which no command line can give.
    role_to_mesh: Annotated[Mapping[Role, Mesh] | None, tyro.conf.Suppress] = None
    micro_rows: int = 16
    forward_rows: int | None = None
    row_length: int | None = None
    sequences_per_row: int = 4

    def __post_init__(self) -> None:
        for name in ("micro_rows", "forward_rows", "row_length", "sequences_per_row"):
            value = vars(self)[name]
            if value is None and name in ("forward_rows", "row_length"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ZootomyError(f"{name} must be an integer >= 1, got {value!r}.")
        devices = self.mesh().shape[DATA_AXIS]
        for name in ("micro_rows", "forward_rows"):
            rows = vars(self)[name]
            if rows is not None and rows % devices:
                raise ZootomyError(
                    f"{name}={rows} does not divide over {devices} devices on the "
                    f"{DATA_AXIS!r} axis; choose a multiple of {devices}."
                )

    def mesh(self) -> Mesh:
        """The mesh that all roles share, with its axes left to the compiler."""
        if self.role_to_mesh is None:
            return data_mesh()
        if not self.role_to_mesh:
            raise ZootomyError("role_to_mesh is empty; name a mesh for a role, or leave it None.")
        first, *others = ((find_role(role), mesh) for role, mesh in self.role_to_mesh.items())
        for role, mesh in others:
            if not _same(mesh, first[1]):
                raise ZootomyError(
                    f"role_to_mesh puts {first[0]} and {role} on different meshes; for now all "
                    "roles share one mesh: give each the same."
                )
        return _checked(first[1])


def data_mesh(devices: int | None = None) -> Mesh:
    """A mesh of one axis, `data`: rows are spread over it, parameters are on every device.

    Args:
        devices: how many; None: all accelerators, or one on CPU, whose devices share one
            processor.

    Raises:
        ZootomyError: if there are not as many.
    """
    present = jax.local_devices()
    if devices is None:
        devices = 1 if present[0].platform == "cpu" else len(present)
    if not 1 <= devices <= len(present):
        raise ZootomyError(f"A mesh of {devices} devices is not possible: {len(present)} present.")
    return Mesh(np.array(present[:devices]), (DATA_AXIS,))


def _same(one: Mesh, other: Mesh) -> bool:
    return (
        one.axis_names == other.axis_names
        and one.devices.shape == other.devices.shape
        and bool((one.devices == other.devices).all())
    )


def _checked(mesh: Mesh) -> Mesh:
    if DATA_AXIS not in mesh.axis_names:
        raise ZootomyError(
            f"The mesh has axes {mesh.axis_names}, but rows are spread over an axis "
            f"{DATA_AXIS!r}; name one so (size 1 will do)."
        )
    for axis, size in mesh.shape.items():
        if axis != DATA_AXIS and size > 1:
            raise ZootomyError(
                f"The mesh axis {axis!r} has size {size}; for now only {DATA_AXIS!r} can be "
                "larger than 1."
            )
    # jax.make_mesh gives explicit axes, under which gathers ask for shardings by hand.
    return Mesh(mesh.devices, mesh.axis_names)
