"""Meshes: how many devices along which axis, as text, as numbers and as JAX has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from ..models import several
from ..registry import ZootomyError, unknown_name

AXES = ("data", "fsdp", "tensor", "sequence")
"""Rows are spread over `data` and `fsdp`, tokens of a row over `sequence`; parameters over `fsdp`
and `tensor`, by rule."""

AUTO = "auto"
_FORM = "as in 'fsdp=4,tensor=2', or 'data=2@4' for the devices from number 4 on"


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each axis, and the first of them.

    Attributes:
        data: copies of the parameters, each with its own rows.
        fsdp: devices over which parameters and rows are spread.
        tensor: devices over which heads, inner width and vocabulary are spread.
        sequence: devices over which the tokens of a row are spread.
        first: number of the first device; the others follow it.

    Raises:
        ZootomyError: for a size below 1.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        for name in (*AXES, "first"):
            least = 0 if name == "first" else 1
            if vars(self)[name] < least:
                what = "The first device" if name == "first" else f"The mesh axis {name!r}"
                raise ZootomyError(f"{what} must be at least {least}, got {vars(self)[name]}.")

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> devices along it."""
        return {axis: vars(self)[axis] for axis in AXES}

    @property
    def size(self) -> int:
        """Devices of the mesh."""
        return int(np.prod(list(self.sizes.values())))

    @property
    def devices(self) -> range:
        """The numbers of the devices."""
        return range(self.first, self.first + self.size)

    def __str__(self) -> str:
        axes = [f"{axis}={size}" for axis, size in self.sizes.items() if size > 1] or ["data=1"]
        return ",".join(axes) + (f"@{self.first}" if self.first else "")

    def build(self) -> Mesh:
        """The mesh of JAX; its axes are left to the compiler.

        Raises:
            ZootomyError: if there are not enough devices.
        """
        present = jax.devices()
        if self.devices.stop > len(present):
            raise ZootomyError(
                f"The mesh '{self}' takes the devices {_span(self.devices)}, but there are "
                f"{len(present)}. Make it smaller, or on a CPU set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.devices.stop}."
            )
        chosen = [present[number] for number in self.devices]
        return Mesh(np.array(chosen).reshape(list(self.sizes.values())), AXES)


def parse_mesh(text: str, devices: int | None = None) -> MeshShape:
    """The mesh that a text describes.

    >>> str(parse_mesh("tensor=2, fsdp=4"))
    'fsdp=4,tensor=2'
    >>> parse_mesh("data=2@4").devices
    range(4, 6)
    >>> str(parse_mesh("auto", devices=8))
    'fsdp=8'

    Args:
        text: `AXIS=SIZE` by commas, with `@FIRST` for other devices than the first; or `auto`, all
            devices along `fsdp`.
        devices: how many `auto` takes; None: all accelerators, or one on a CPU, whose devices
            share one processor; in several processes all devices.

    Raises:
        ZootomyError: for what is no such text.
    """
    if not isinstance(text, str):
        raise ZootomyError(f"A mesh is given as a text, {_FORM}; got {text!r}.")
    if text.strip() == AUTO:
        return MeshShape(fsdp=_usual() if devices is None else devices)
    sizes, at, first = text.partition("@")
    found: dict[str, int] = {}
    for part in sizes.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part)
        if match is None:
            raise ZootomyError(f"A mesh is given {_FORM}, or as 'auto'; got {text!r}.")
        axis, size = match.groups()
        if axis not in AXES:
            raise unknown_name("mesh axis", axis, AXES)
        if axis in found:
            raise ZootomyError(f"The mesh {text!r} gives the axis {axis!r} twice.")
        found[axis] = int(size)
    if at and not first.strip().isdigit():
        raise ZootomyError(
            f"In the mesh {text!r}, '@' must be followed by the number of its first device, got "
            f"{first!r}."
        )
    return MeshShape(**found, first=int(first) if at else 0)


def usual_mesh(mesh: Mesh) -> Mesh:
    """A mesh with our four axes, left to the compiler; those that it lacks get the size 1.

    Raises:
        ZootomyError: for an axis that no rule knows.
    """
    for axis in mesh.axis_names:
        if axis not in AXES:
            raise unknown_name("mesh axis", str(axis), AXES)
    order = [mesh.axis_names.index(axis) for axis in AXES if axis in mesh.axis_names]
    sizes = [mesh.shape[axis] if axis in mesh.axis_names else 1 for axis in AXES]
    # jax.make_mesh gives explicit axes, under which gathers ask for shardings by hand.
    return Mesh(mesh.devices.transpose(order).reshape(sizes), AXES)


def mesh_text(mesh: Mesh) -> str:
    """The text of a mesh whose devices follow one another.

    Raises:
        ZootomyError: if they do not, which no text can say.
    """
    numbers = {device.id: number for number, device in enumerate(jax.devices())}
    mine = [numbers[device.id] for device in usual_mesh(mesh).devices.flat]
    if mine != list(range(mine[0], mine[0] + len(mine))):
        raise ZootomyError(
            f"The mesh {mesh} has the devices {mine}, not in order: no config file can say so. "
            "Give the mesh as a text, or keep it to Python."
        )
    return str(MeshShape(**usual_mesh(mesh).shape, first=mine[0]))


def leaves_devices_out(
    role: str, text: str, devices: int, processes: int | None = None
) -> ZootomyError:
    """The error for a role that does not live on all devices, although processes share them.

    Args:
        role: whose mesh it is.
        text: of the mesh.
        devices: how many all processes have.
        processes: how many there are; None: those of this run.
    """
    count = jax.process_count() if processes is None else processes
    return ZootomyError(
        f"The {role}'s mesh '{text}' takes {parse_mesh(text).size} of the {devices} devices of "
        f"{count} processes; in several processes every role lives on all devices."
    )


def same_mesh(one: Mesh, other: Mesh) -> bool:
    """Whether two meshes have the same devices in the same places."""
    return one.devices.shape == other.devices.shape and bool((one.devices == other.devices).all())


def _usual() -> int:
    present = jax.devices()
    alone = present[0].platform == "cpu" and not several()
    return 1 if alone else len(present)


def _span(numbers: range) -> str:
    return f"{numbers.start}..{numbers.stop - 1}"
