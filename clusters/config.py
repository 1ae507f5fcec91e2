"""Where the roles live and in which row shapes the models see tokens."""

from __future__ import annotations

import operator
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
DEFAULT_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the roles live and in which row shapes the models see tokens.

    A pass sees `micro_rows * row_length` tokens at a time: that is the token budget of a
    micro-batch, and the largest shape that is compiled. Batches that are short, or few, may go
    through in one of a few smaller shapes.

    Attributes:
        role_to_mesh: the mesh of each role; roles left out live on the mesh of the others. None:
            a data-parallel mesh over all accelerators, or the first device on CPU.
        micro_rows: R, packed rows of a training pass; a multiple of the devices on the data axis.
            None: as many as `micro_tokens` allows.
        micro_tokens: tokens of a training pass; it takes the place of `micro_rows`.
        forward_rows: R of a pass without gradient, which can be larger; None: `micro_rows`.
        row_length: L, tokens a row; None: the longest sequence that the run allows.
        sequences_per_row: most sequences packed into a row; 1 turns packing off.
        row_shapes: how many shapes (rows and row length) a pass may be compiled for; None: 4 where
            a micro-batch has 2,048 tokens or more, else 1.

    Raises:
        ZootomyError: a value outside its range, meshes that differ, an axis that is not supported,
            or rows that do not divide over the devices.
    """

    # A mesh is an object, which no command line can give.
    role_to_mesh: Annotated[Mapping[Role, Mesh] | None, tyro.conf.Suppress] = None
    micro_rows: int | None = None
    micro_tokens: int | None = None
    forward_rows: int | None = None
    row_length: int | None = None
    sequences_per_row: int = 4
    row_shapes: int | None = None

    def __post_init__(self) -> None:
        if self.micro_rows is not None and self.micro_tokens is not None:
            raise ZootomyError(
                f"micro_rows={self.micro_rows} and micro_tokens={self.micro_tokens} both say how "
                "large a micro-batch is; give one of them."
            )
        optional = ("micro_rows", "micro_tokens", "forward_rows", "row_length", "row_shapes")
        for name in (*optional, "sequences_per_row"):
            value = vars(self)[name]
            if value is None and name in optional:
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

    def rows(self, row_length: int) -> int:
        """R, rows of a training pass.

        Args:
            row_length: L, tokens a row.

        Raises:
            ZootomyError: if the tokens of a micro-batch do not fill a row on every device.
        """
        if self.micro_tokens is None:
            return DEFAULT_ROWS if self.micro_rows is None else self.micro_rows
        devices = self.mesh().shape[DATA_AXIS]
        rows = self.micro_tokens // row_length // devices * devices
        if not rows:
            raise ZootomyError(
                f"micro_tokens={self.micro_tokens} holds no row of {row_length} tokens on each of "
                f"{devices} devices; give at least {devices * row_length}."
            )
        return rows

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


def row_length(config: ClusterConfig, max_tokens: int | None) -> int:
    """L, tokens a row: what is configured, or the longest sequence of the run.

    Raises:
        ZootomyError: if there is neither, or a sequence would not fit into a row.
    """
    if config.row_length is None and max_tokens is None:
        raise ZootomyError("Give row_length in the ClusterConfig, or max_tokens to the Cluster.")
    if config.row_length is None:
        return operator.index(max_tokens)  # type: ignore[arg-type]
    if max_tokens is not None and config.row_length < max_tokens:
        raise ZootomyError(
            f"row_length={config.row_length} is shorter than the longest sequence of the run, "
            f"{max_tokens} tokens; raise row_length, or lower the prompt or completion limit."
        )
    return config.row_length
