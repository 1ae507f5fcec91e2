"""Blocks that must see a whole mini-batch at once, and mini-batches too large for them."""

from __future__ import annotations

from ..clusters import Cluster, ClusterConfig, Role, Sequences, Shape, pack
from ..registry import ZootomyError, describe
from ..registry import slot as find_slot
from ..rollout import RolloutConfig
from .algorithm import Algorithm
from .batch import BatchConfig

# Slots whose blocks see micro-batches, by the role that is updated; others see the full batch.
IN_THE_UPDATE = {
    Role.ACTOR: ("kl_estimator", "ratio", "policy_loss", "regularizer"),
    Role.CRITIC: ("value_loss",),
}


def at_once(algorithm: Algorithm, role: Role) -> str:
    """The blocks for whose sake a role's mini-batch must be one micro-batch; empty for none."""
    found = []
    for slot, spec in algorithm.specs():
        placed = slot != "kl_estimator" or algorithm.kl_placement == "loss"
        couples = "whole_batch" in describe(slot, spec.name).needs
        plugged = role is Role.ACTOR and find_slot(slot).after == "policy_loss"
        if (slot in IN_THE_UPDATE[role] or plugged) and placed and couples:
            found.append(f"{slot} {spec.name!r}")
    return " and ".join(found)


def check_fits(
    algorithm: Algorithm,
    cluster: ClusterConfig,
    shape: tuple[int, int],
    rollout: RolloutConfig,
    batch: BatchConfig,
    devices: int | None = None,
) -> None:
    """Refuse sizes under which a mini-batch might have to be cut for memory.

    The worst case is counted, in which all completions are as long as they may be: a run that
    only fits while completions are short would end where they grow.

    Args:
        algorithm: its blocks may have to see a whole mini-batch.
        cluster: how rows are packed.
        shape: R and L, rows of a micro-batch and tokens a row.
        rollout: the longest prompt and completion.
        batch: prompts of a mini-batch and completions of each.
        devices: as of `ClusterConfig.mesh_shape`.

    Raises:
        ZootomyError: with the sizes that would do.
    """
    blocks = " and ".join(filter(None, (at_once(algorithm, role) for role in IN_THE_UPDATE)))
    if not blocks:
        return
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens
    have, length = shape
    per_row = min(cluster.sequences_per_row, length // longest)

    def rows(prompts: int) -> int:
        return -(-prompts * batch.group_size // per_row)

    needed = rows(batch.mini_prompts)
    if needed <= have:
        return
    parts = cluster.row_parts(devices)
    smaller = [n for n in range(1, batch.full) if batch.full % n == 0 and rows(n) <= have]
    remedy = f" or batch.mini to {smaller[-1]}" if smaller else ""
    raise ZootomyError(
        f"{blocks} must see a whole mini-batch at once, and a mini-batch of "
        f"{batch.mini_prompts} prompts × {batch.group_size} completions of up to {longest} tokens "
        f"can take {needed} rows, but a micro-batch has {have}. Set cluster.micro_rows to "
        f"{-(-needed // parts) * parts}{remedy}."
    )


def check_one_micro_batch(blocks: str, cluster: Cluster, sequences: Sequences) -> None:
    """Refuse a mini-batch that would be cut; nothing is learned of it.

    Args:
        blocks: what `at_once` says; nothing is checked where it is empty.
        cluster: where the mini-batch would be packed.
        sequences: the mini-batch.

    Raises:
        ZootomyError: with the number of rows it takes.
    """
    if not blocks:
        return
    rows = cluster.micro_rows
    shape = Shape(rows, cluster.row_length)
    parts = len(pack(sequences, shape, cluster.config.sequences_per_row))
    if parts > 1:
        raise ZootomyError(
            f"{blocks} must see a whole mini-batch at once, but its {len(sequences)} sequences "
            f"take {parts} micro-batches of {rows} rows. Set cluster.micro_rows to "
            f"{parts * rows}, or batch.mini to fewer prompts."
        )
