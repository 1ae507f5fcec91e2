"""Which role sits where, and what it takes there: counted from shapes, without making a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh

from ..clusters import MeshShape, OptimizerConfig, Placement, Role, make_optimizer
from ..clusters.config import OPTIMIZER
from ..clusters.meshes import AXES, leaves_devices_out
from ..clusters.sharding import axis_rules, like_params
from ..models import (
    PRESETS,
    Decoder,
    ModelConfig,
    RewardModel,
    ValueModel,
    add_adapters,
    trained_part,
)
from ..registry import ZootomyError, unknown_name
from ..rollout.checks import check_positions
from ..tasks import make_task
from .algorithm import Algorithm
from .judge import check_names
from .run_config import RunConfig
from .saved import source_config
from .sources import reading, reward_seats, roles_of, scorer_setting
from .start import check_start

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Seat:
    """What a role takes.

    Attributes:
        role: whose; `reward.NAME` for one of several reward models.
        mesh: its devices.
        dtype: of its parameters.
        params: bytes of parameters on each of its devices, those of another role's not counted.
        backbone: how many of them lie under adapters: these never wait on the host.
        optimizer: bytes of the optimizer's state on each of its devices.
        offload: what of it waits on the host while others work: `params`, `optimizer`.
        shares: the role whose arrays it uses, if it does.
    """

    role: str
    mesh: MeshShape
    dtype: str
    params: int
    backbone: int = 0
    optimizer: int = 0
    offload: tuple[str, ...] = ()
    shares: str | None = None


def seat_roles(algorithm: Algorithm, config: RunConfig, devices: int | None = None) -> list[Seat]:
    """The seats of a run's roles.

    Args:
        algorithm: says which roles there are.
        config: the run.
        devices: how many there are to be; None: those of this machine.

    Raises:
        ZootomyError: for a mesh that does not fit the devices, sizes that do not divide, or
            what else a run of these settings would refuse before it loads anything.
    """
    check_start(algorithm, config, devices)
    roles = roles_of(algorithm, config)
    policy = _policy(config)
    check_positions(config.rollout, policy.max_positions)
    steps = config.steps * config.batch.updates
    seats = [_seat(config, Role.ACTOR, Decoder, policy, devices, (config.optimizer, steps))]
    if Role.REFERENCE in roles:
        own = _own(config.reference.path, "reference.path", policy)
        seats.append(_seat(config, Role.REFERENCE, Decoder, own, devices))
    if Role.CRITIC in roles and config.critic.shared:
        seats.append(_head_seat(config, seats[0], policy, steps))
    elif Role.CRITIC in roles:
        own = _own(config.critic.path, "critic.path", policy, scalar=True)
        optimizer = (config.critic_optimizer, steps)
        seats.append(_seat(config, Role.CRITIC, ValueModel, own, devices, optimizer))
    for (name, model), seat in zip(config.scorers.items(), reward_seats(config), strict=True):
        own = _own(model.path, scorer_setting(config, name), policy, scalar=True)
        seats.append(_seat(config, seat, RewardModel, own, devices))
    seats.append(_seat(config, Role.ROLLOUT, Decoder, policy, devices))
    if devices is not None:
        for seat in seats:
            if seat.mesh.devices.stop > devices:
                raise ZootomyError(
                    f"The {seat.role}'s mesh '{seat.mesh}' takes the devices "
                    f"{seat.mesh.first}..{seat.mesh.devices.stop - 1}, but there are {devices}."
                )
    return seats


def draw_seats(seats: list[Seat], processes: int | None = None) -> str:
    """The seats as a picture in text, and what each device holds at most.

    Args:
        seats: one a role.
        processes: over how many the devices are dealt; None: it is not known.

    Raises:
        ZootomyError: if they do not deal evenly, or a role leaves devices out.
    """
    count = max(seat.mesh.devices.stop for seat in seats)
    numbers = " ".join(f"{number:>2}" for number in range(count))
    width = max(10, *(len(seat.role) for seat in seats))
    lines = [f"{'device':{width}} {numbers}"]
    if processes is not None:
        size = _check_processes(seats, count, processes)
        owners = " ".join(f"{number // size:>2}" for number in range(count))
        lines.append(f"{'process':{width}} {owners}")
    for seat in seats:
        marks = " ".join("██" if n in seat.mesh.devices else " ·" for n in range(count))
        lines.append(f"{seat.role:{width}} {marks}  {_says(seat)}")
    for part, fixed in (("all roles on the devices", False), ("idle roles on the host", True)):
        if fixed and not any(seat.offload for seat in seats):
            continue
        held = [sum(_held(seat, n, fixed) for seat in seats) for n in range(count)]
        low, high = min(held), max(held)
        span = size_text(high) if low == high else f"{size_text(low)} to {size_text(high)}"
        lines.append(f"parameters and optimizers on each device, {part}: {span}")
    return "\n".join(lines)


def _check_processes(seats: list[Seat], devices: int, processes: int) -> int:
    """How many devices each of some processes has."""
    if processes < 1 or devices % processes:
        raise ZootomyError(
            f"{devices} devices do not deal evenly over {processes} processes; each process has "
            "the same number."
        )
    for seat in seats:
        if processes > 1 and seat.mesh.size != devices:
            raise leaves_devices_out(seat.role, str(seat.mesh), devices, processes)
    return devices // processes


def size_text(count: int) -> str:
    """Bytes for people.

    >>> size_text(1536)
    '1.5 KiB'
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _says(seat: Seat) -> str:
    if seat.shares is not None:
        own = f", and {size_text(seat.params)} of its own" if seat.params else ""
        return f"{seat.mesh}  {seat.dtype}  uses the {seat.shares}'s arrays{own}"
    parts = [str(seat.mesh), seat.dtype, f"parameters {size_text(seat.params)} a device"]
    if seat.optimizer:
        parts.append(f"optimizer {size_text(seat.optimizer)}")
    if seat.offload:
        parts.append(f"waits on the host: {', '.join(seat.offload)}")
    return "  ".join(parts)


def _held(seat: Seat, device: int, fixed: bool) -> int:
    """Bytes of a seat on a device; `fixed` leaves out what may wait on the host."""
    if device not in seat.mesh.devices:
        return 0
    idle = seat.offload if fixed else ()
    params = seat.backbone if "params" in idle else seat.params
    return params + (0 if OPTIMIZER in idle else seat.optimizer)


def _head_seat(config: RunConfig, actor: Seat, policy: ModelConfig, steps: int) -> Seat:
    """A value head on the actor's backbone."""
    cluster = config.cluster
    mesh = AbstractMesh(tuple(actor.mesh.sizes.values()), AXES)
    dtype = cluster.dtype_of(Role.ACTOR)
    place = Placement(Role.ACTOR, mesh, axis_rules(Role.ACTOR, cluster.axis_rules), dtype)

    def head(kind: Any) -> Any:
        return {"score": {"kernel": jax.ShapeDtypeStruct((policy.hidden_size, 1), kind)}}

    params, wide = head(jnp.dtype(dtype or "float32")), head(jnp.float32)
    memory = jax.eval_shape(make_optimizer(config.critic_optimizer, steps).init, wide)
    spread = like_params(memory, params, place.shardings(params), place.replicated)
    own, state = _bytes(params, place.shardings(params)), _bytes(memory, spread)
    return Seat(Role.CRITIC, actor.mesh, actor.dtype, own, 0, state, actor.offload, Role.ACTOR)


def _seat(
    config: RunConfig,
    role: str,
    kind: Any,
    model: ModelConfig,
    devices: int | None,
    optimizer: tuple[OptimizerConfig, int] | None = None,
) -> Seat:
    cluster, given = config.cluster, config.model
    shape = cluster.mesh_shape(role, devices)
    mesh = AbstractMesh(tuple(shape.sizes.values()), AXES)
    dtype = cluster.dtype_of(role) or given.param_dtype
    place = Placement(role, mesh, axis_rules(role, cluster.axis_rules), dtype)
    abstract = nnx.eval_shape(lambda: _make(config, role, kind, model, jnp.dtype(dtype)))
    _, params, rest = nnx.split(abstract, trained_part(abstract), ...)
    own, backbone = (_bytes(tree, place.shardings(tree)) for tree in (params, rest))
    if _of_policy(config, role) and role is not Role.ACTOR:
        together = cluster.together(Role.ACTOR, role, devices)
        if together and role is Role.ROLLOUT:
            return Seat(role, shape, dtype, 0, shares=Role.ACTOR)
        if together and backbone:
            # Only the backbone stays the same when the actor learns.
            return Seat(role, shape, dtype, own, shares=Role.ACTOR)
    state = 0
    if optimizer is not None:
        wide = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), params)
        memory = jax.eval_shape(make_optimizer(*optimizer).init, wide)
        spread = like_params(memory, params, place.shardings(params), place.replicated)
        state = _bytes(memory, spread)
    offload = [
        name
        for name in ("params", OPTIMIZER)
        if cluster.offloads(role, name) and (name == "params" or state)
    ]
    return Seat(role, shape, dtype, own + backbone, backbone, state, tuple(offload))


def _make(config: RunConfig, role: str, kind: Any, model: ModelConfig, dtype: Any) -> Any:
    made = kind(model, rngs=nnx.Rngs(0), param_dtype=dtype)
    if config.lora.rank and _of_policy(config, role):
        return add_adapters(made, config.lora, rngs=nnx.Rngs(0))
    return made


def _of_policy(config: RunConfig, role: str) -> bool:
    """Whether a role plays the policy itself, as it is or as it was."""
    return role in (Role.ACTOR, Role.ROLLOUT) or (
        role is Role.REFERENCE and not config.reference.path
    )


def _bytes(tree: Any, shardings: Any) -> int:
    """On one device."""
    sizes = jax.tree.map(
        lambda x, s: jnp.dtype(x.dtype).itemsize * math.prod(s.shard_shape(x.shape)),
        tree,
        shardings,
    )
    return sum(jax.tree.leaves(sizes))


def _policy(config: RunConfig) -> ModelConfig:
    if config.model.path:
        return _own(config.model.path, "model.path", None)
    if config.model.preset not in PRESETS:
        raise unknown_name("model preset", config.model.preset, PRESETS)
    task = make_task(config.task)
    check_names(task, config.scorers)
    return replace(PRESETS[config.model.preset], vocab_size=task.tokenizer.vocab_size)


def _own(
    path: str, setting: str, otherwise: ModelConfig | None, *, scalar: bool = False
) -> ModelConfig:
    if not path and otherwise is not None:
        return otherwise
    with reading(setting):
        return source_config(path, scalar=scalar)
