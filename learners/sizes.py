"""Every batch size of a run in words: what is sampled, scored and learned from at a time."""

from __future__ import annotations

from ..clusters import MeshShape, Role, Shape
from ..clusters.config import DEFAULT_ROWS
from ..clusters.row_sizes import row_length, shared_prompts
from ..clusters.shapes import branched
from .algorithm import Algorithm
from .batch import many
from .run_config import RunConfig


def explain_sizes(algorithm: Algorithm, config: RunConfig, devices: int | None = None) -> str:
    """The sizes of a run, a line each: full, mini, micro, rollout and log-probabilities.

    Args:
        algorithm: says which passes there are.
        config: the run.
        devices: how many the mesh `auto` takes; None: those of this machine.

    Raises:
        ZootomyError: for sizes that cannot be, with what to change.
    """
    batch, cluster, rollout = config.batch, config.cluster, config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens
    length = row_length(cluster, longest, devices)
    shapes = {role: cluster.mesh_shape(role, devices) for role in Role}
    rows, forward = cluster.rows(length, devices), cluster.rows_forward(length, devices)
    asked = rows if cluster.micro_tokens else cluster.micro_rows or DEFAULT_ROWS
    per_row = min(cluster.sequences_per_row, length // longest)
    mini = batch.mini_prompts * batch.group_size
    actor = shapes[Role.ACTOR]
    lines = [
        f"step: {batch.explain(config.steps)}",
        _rollout(config, shapes[Role.ROLLOUT]),
        f"rows: of {length:,} tokens ({_filled(cluster.row_length or longest, length)}), up to "
        f"{many(cluster.sequences_per_row, 'sequence')} each; the longest, "
        f"{rollout.max_prompt_tokens:,} tokens of prompt + {rollout.max_new_tokens:,} of "
        f"completion = {longest:,}, fit {per_row} to a row."
        + _branches(config, rows, length, devices),
        f"log-probabilities: {_passes(algorithm)}: passes of {many(forward, 'row')} "
        f"({_filled(cluster.forward_rows or asked, forward)}) = "
        f"{forward * length:,} tokens, {_share(forward, length, actor)}; "
        f"{_range(batch.completions, cluster.sequences_per_row, per_row, forward, 'pass')} for "
        f"{batch.completions:,} completions.",
        f"training: micro-batches of {many(rows, 'row')} ({_filled(asked, rows)}) = "
        f"{rows * length:,} tokens, {_share(rows, length, actor)}; "
        f"{_range(mini, cluster.sequences_per_row, per_row, rows, 'micro-batch')} for an "
        f"optimizer step of {mini:,} completions.",
    ]
    return "\n".join(lines)


def _branches(config: RunConfig, rows: int, length: int, devices: int | None) -> str:
    """What a training pass makes of completions that share a prompt."""
    limits = config.rollout.max_prompt_tokens, config.batch.group_size
    shared = shared_prompts(config.cluster, "xla", *limits, devices)
    parts = config.cluster.row_parts(devices)
    shape = branched(Shape(rows, length), *shared, parts) if shared else None
    if shape is None:
        return ""
    return (
        f" Where attention is XLA's, {shape.branches} completions share a prompt: {shape.prompt:,} "
        f"+ {shape.branches} × {shape.branch:,} = {shape.length:,} tokens instead of "
        f"{shape.branches} rows."
    )


def _rollout(config: RunConfig, mesh: MeshShape) -> str:
    rollout, sampled = config.rollout, config.batch.completions
    slots = min(rollout.max_slots, sampled)
    copies = mesh.data * mesh.fsdp
    where = f", {slots // copies} on each of {copies} parts of the mesh" if copies > 1 else ""
    if copies > 1 and slots % copies:
        where = f", on every device the same, since {slots} do not divide over {copies}"
    waits = f"the other {sampled - slots:,} wait for a place" if sampled > slots else "none waits"
    staleness = (
        "while the step before it learns" if config.max_staleness else "with the newest weights"
    )
    return (
        f"rollout: {sampled:,} completions are sampled {staleness}, {slots} at a time{where}; "
        f"{waits}. Prompts are read {rollout.prefill_tokens:,} tokens at a time."
    )


def _passes(algorithm: Algorithm) -> str:
    roles = ["the actor's where the update needs them"]
    roles += ["the reference's"] if "reference" in algorithm.needs else []
    roles += ["the critic's values"] if algorithm.value_loss is not None else []
    return ", ".join(roles)


def _filled(asked: int, got: int) -> str:
    return "as asked" if asked == got else f"{asked} asked, filled up to divide over the devices"


def _share(rows: int, length: int, mesh: MeshShape) -> str:
    parts = mesh.data * mesh.fsdp
    tokens = rows * length // (parts * mesh.sequence)
    return f"{tokens:,} a device" if parts * mesh.sequence > 1 else "all on one device"


def _range(sequences: int, most: int, least: int, rows: int, noun: str) -> str:
    """How many passes it takes, from the fullest rows to those with the longest sequences only."""
    low, high = (-(-sequences // (per_row * rows)) for per_row in (most, least))
    return many(high, noun) if low == high else f"{low} to {many(high, noun)}"
