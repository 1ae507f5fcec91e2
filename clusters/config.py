"""Where the roles live and in which row shapes the models see tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

import jax
import tyro
from jax.sharding import Mesh

from ..models import several
from ..registry import ZootomyError, unknown_name
from . import meshes
from .meshes import AUTO, MeshShape, mesh_text, parse_mesh, same_mesh, usual_mesh
from .roles import TRAINED_ROLES, Role, find_seat, role_of
from .sharding import Placement, axis_rules

DEFAULT_ROWS = 16
# The roles whose models see packed rows.
MODELS = tuple(role for role in Role if role is not Role.ROLLOUT)
DTYPES = ("float32", "bfloat16", "float16")
OPTIMIZER = "optimizer"
# What can wait in the hosts' memory. The engine's weights are not among it: on the actor's mesh
# they are the actor's, and on one of their own nobody waits for the place.
OFFLOADS = (
    *map(str, MODELS),
    *(f"{role}.{OPTIMIZER}" for role in TRAINED_ROLES),
)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where the roles live and in which row shapes the models see tokens.

    A pass sees `micro_rows * row_length` tokens at a time: that is the token budget of a
    micro-batch, and the largest shape that is compiled. Batches that are short, or few, may go
    through in one of a few smaller shapes. Rows and tokens that do not divide over the devices are
    filled up with padding, which has no effect.

    Attributes:
        mesh: of every role that `role_to_mesh` leaves out: `AXIS=SIZE` by commas, e.g.
            `fsdp=4,tensor=2`, or `auto`: `fsdp` over all accelerators, or the first device on CPU.
        role_to_mesh: the mesh of a role that has its own, as a text or a `jax.sharding.Mesh`;
            `data=4@4` are the devices 4..7. Roles on the same mesh share weights that are the
            same. Here and below `reward.NAME` is one of several reward models, `reward` all.
        axis_rules: changes to the rules by which parameters are spread: `vocab: none` keeps the
            vocabulary whole on every device, `rollout.embed: none` does so for one role.
        role_to_dtype: the dtype in which a role keeps its parameters, where it is not the model's.
        offload_to_cpu: roles whose parameters and optimizer wait in the hosts' memory while others
            work; `actor.optimizer` and `critic.optimizer` send the optimizer's state alone.
        micro_rows: R, packed rows of a training pass. None: as many as `micro_tokens` allows.
        micro_tokens: tokens of a training pass; it takes the place of `micro_rows`.
        forward_rows: R of a pass without gradient, which can be larger; None: `micro_rows`.
        row_length: L, tokens a row; None: the longest sequence that the run allows.
        sequences_per_row: most sequences packed into a row, of rows with branches into a branch;
            1 turns packing off.
        share_prompts: a prompt is computed once for its completions: rows begin with the prompt,
            and end in branches that read it. It takes groups, attention by XLA's own program, and
            rows that are whole on a device; each completion has its own prompt where one lacks.
        row_shapes: how many shapes (rows and row length) a pass may be compiled for; None: 4 where
            a micro-batch has 2,048 tokens or more, else 1.

    Raises:
        ZootomyError: a value outside its range, a text that is no mesh, an unknown name.
    """

    mesh: str = AUTO
    # Open mappings: on the command line `--cluster.role_to_mesh.rollout data=4@4`.
    role_to_mesh: Annotated[Mapping[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    axis_rules: Annotated[Mapping[str, str], tyro.conf.Suppress] = field(default_factory=dict)
    role_to_dtype: Annotated[Mapping[str, str], tyro.conf.Suppress] = field(default_factory=dict)
    offload_to_cpu: tuple[str, ...] = ()
    micro_rows: int | None = None
    micro_tokens: int | None = None
    forward_rows: int | None = None
    row_length: int | None = None
    sequences_per_row: int = 4
    share_prompts: bool = True
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
        for name in ("role_to_mesh", "axis_rules", "role_to_dtype"):
            if not isinstance(vars(self)[name], Mapping):
                raise ZootomyError(
                    f"{name} is a mapping, entry by entry, got {vars(self)[name]!r}."
                )
        for name in ("axis_rules", "role_to_dtype"):
            object.__setattr__(self, name, MappingProxyType(dict(vars(self)[name])))
        meshes = {find_seat(role): mesh for role, mesh in self.role_to_mesh.items()}
        object.__setattr__(self, "role_to_mesh", MappingProxyType(meshes))
        for mesh in (self.mesh, *self.role_to_mesh.values()):
            if isinstance(mesh, Mesh):
                usual_mesh(mesh)
            elif mesh != AUTO:
                parse_mesh(mesh)
        for role, dtype in self.role_to_dtype.items():
            find_seat(role)
            if dtype not in DTYPES:
                raise unknown_name("dtype", str(dtype), DTYPES)
        axis_rules(Role.ACTOR, self.axis_rules)
        self._check_offload()

    def __getstate__(self) -> dict[str, Any]:
        """A mapping proxy can be neither copied deeply nor pickled."""
        return {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in vars(self).items()
        }

    def mesh_shape(self, role: str, devices: int | None = None) -> MeshShape:
        """The sizes of a role's mesh, without its devices.

        Args:
            role: whose.
            devices: how many `auto` takes; None: those of this machine.

        Raises:
            ZootomyError: for a mesh that was given as an object and whose devices do not follow
                one another.
        """
        mesh = self._given(role)
        return parse_mesh(mesh_text(mesh) if isinstance(mesh, Mesh) else mesh, devices)

    def mesh_of(self, role: str) -> Mesh:
        """The mesh of a role.

        Raises:
            ZootomyError: if it takes more devices than there are, or fewer in several processes.
        """
        mesh = self._given(role)
        built = usual_mesh(mesh) if isinstance(mesh, Mesh) else parse_mesh(mesh).build()
        if several() and built.size != jax.device_count():
            raise meshes.leaves_devices_out(role, mesh_text(built), jax.device_count())
        return built

    def placement(self, role: str) -> Placement:
        """Where a role's arrays lie."""
        return Placement(
            role, self.mesh_of(role), axis_rules(role, self.axis_rules), self.dtype_of(role)
        )

    def dtype_of(self, role: str) -> str | None:
        """The dtype of a role's parameters; None: as they come."""
        return self.role_to_dtype.get(role, self.role_to_dtype.get(role_of(role)))

    def rows(self, row_length: int, devices: int | None = None) -> int:
        """R, rows of a training pass, a multiple of the devices that rows are spread over.

        Args:
            row_length: L, tokens a row.
            devices: as of `mesh_shape`.

        Raises:
            ZootomyError: if the tokens of a micro-batch do not fill a row on every device.
        """
        parts = self.row_parts(devices)
        if self.micro_tokens is None:
            return _up(DEFAULT_ROWS if self.micro_rows is None else self.micro_rows, parts)
        rows = self.micro_tokens // row_length // parts * parts
        if not rows:
            raise ZootomyError(
                f"micro_tokens={self.micro_tokens} holds no row of {row_length} tokens on each of "
                f"{parts} devices; give at least {parts * row_length}."
            )
        return rows

    def rows_forward(self, row_length: int, devices: int | None = None) -> int:
        """R of a pass without gradient; arguments as of `rows`."""
        if self.forward_rows is None:
            return self.rows(row_length, devices)
        return _up(self.forward_rows, self.row_parts(devices))

    def row_parts(self, devices: int | None = None) -> int:
        """Into how many parts rows are dealt, so that they divide over every role's mesh."""
        shapes = [self._sizes(role, devices) for role in self._seats()]
        return math.lcm(*(sizes["data"] * sizes["fsdp"] for sizes in shapes))

    def length_parts(self, devices: int | None = None) -> int:
        """Into how many parts the tokens of a row are dealt."""
        return math.lcm(*(self._sizes(role, devices)["sequence"] for role in self._seats()))

    def length(self, asked: int, devices: int | None = None) -> int:
        """L, tokens a row, rounded up to what divides over the devices."""
        return _up(asked, self.length_parts(devices))

    def _seats(self) -> tuple[str, ...]:
        """The models that have a mesh: those of the roles, and reward models with their own."""
        return *MODELS, *(seat for seat in self.role_to_mesh if seat not in list(Role))

    def _sizes(self, role: str, devices: int | None) -> Mapping[str, int]:
        mesh = self._given(role)
        return usual_mesh(mesh).shape if isinstance(mesh, Mesh) else parse_mesh(mesh, devices).sizes

    def offloads(self, role: str, part: str = "") -> bool:
        """Whether a role's parameters, or its optimizer's state, wait on the host."""
        return role_of(role) in self.offload_to_cpu or (
            part == OPTIMIZER and f"{role}.{OPTIMIZER}" in self.offload_to_cpu
        )

    def check_roles(self, roles: Collection[str]) -> None:
        """Refuse what speaks of a role that a run does not have: it would have no effect.

        Args:
            roles: those that there are; `reward.NAME` for each of several reward models.

        Raises:
            ZootomyError: it names the setting.
        """
        known = {*roles, *(role_of(role) for role in roles)}
        for setting, role in self.settings_of_roles().items():
            if role not in known:
                raise ZootomyError(
                    f"cluster.{setting} has no effect: this run has no {role}, only "
                    f"{', '.join(roles)}. Leave it out, or choose an algorithm that has one."
                )

    def settings_of_roles(self) -> dict[str, str]:
        """Setting -> role, of all that speak of one role."""
        return {
            **{f"role_to_mesh.{role}": role for role in self.role_to_mesh},
            **{f"role_to_dtype.{role}": role for role in self.role_to_dtype},
            **{
                f"axis_rules.{name}": name.rpartition(".")[0]
                for name in self.axis_rules
                if "." in name
            },
            **{
                f"offload_to_cpu: {name}": name.removesuffix(f".{OPTIMIZER}")
                for name in self.offload_to_cpu
            },
        }

    def check_shared_critic(self) -> None:
        """Refuse a place of its own for a critic that is a head on the actor's backbone.

        Raises:
            ZootomyError: it names the setting.
        """
        for setting, role in self.settings_of_roles().items():
            if role == Role.CRITIC:
                raise ZootomyError(
                    f"cluster.{setting} has no effect: the critic is a head on the actor's "
                    "backbone, and lives where the actor does. Leave it out, or give the critic a "
                    "model of its own."
                )

    def apart(self, some: tuple[str, ...], others: tuple[str, ...]) -> bool:
        """Whether two sets of roles have no device in common."""
        ours = {device for role in some for device in self.mesh_of(role).devices.flat}
        return all(ours.isdisjoint(self.mesh_of(role).devices.flat) for role in others)

    def together(self, one: str, other: str, devices: int | None = None) -> bool:
        """Whether two roles keep their parameters alike: then equal weights are one copy.

        Args:
            one: a role.
            other: another one.
            devices: as of `mesh_shape`.
        """
        meshes = self._given(one), self._given(other)
        if any(isinstance(mesh, Mesh) for mesh in meshes):
            same = same_mesh(self.mesh_of(one), self.mesh_of(other))
        else:
            same = parse_mesh(meshes[0], devices) == parse_mesh(meshes[1], devices)
        rules = [axis_rules(role, self.axis_rules) for role in (one, other)]
        dtypes = [self.dtype_of(role) for role in (one, other)]
        return same and rules[0] == rules[1] and dtypes[0] == dtypes[1]

    def _given(self, role: str) -> Any:
        return self.role_to_mesh.get(role, self.role_to_mesh.get(role_of(role), self.mesh))

    def _check_offload(self) -> None:
        if isinstance(self.offload_to_cpu, str):
            raise ZootomyError(
                f"offload_to_cpu is a list of names, got the text {self.offload_to_cpu!r}."
            )
        object.__setattr__(self, "offload_to_cpu", tuple(map(str, self.offload_to_cpu)))
        for name in self.offload_to_cpu:
            if name not in OFFLOADS:
                raise unknown_name("role to offload", name, OFFLOADS)


def _up(asked: int, multiple: int) -> int:
    return -(-asked // multiple) * multiple
