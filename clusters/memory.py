"""How many bytes each role holds on the devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ..rollout import weights_of
from ..rollout.types import RolloutEngine
from .roles import Role
from .sharding import HOST


def bytes_by_role(models: Mapping[str, Any], engine: RolloutEngine | None) -> dict[str, int]:
    """Bytes on this process's devices of models by role, and of an engine's weights."""
    trees = {str(role): model.held() for role, model in models.items()}
    if engine is not None:
        trees[str(Role.ROLLOUT)] = weights_of(engine)
    return held_bytes(trees)


def held_bytes(trees: Mapping[str, Any]) -> dict[str, int]:
    """Bytes on this process's devices by owner, each buffer counted once.

    A buffer that several hold, e.g. a backbone under adapters or the weights that an engine shares
    with the actor, counts for the first that holds it, so that the sum is what is really taken.

    Args:
        trees: owner to any trees of arrays, in the order in which they are to count.

    Returns:
        Owner to bytes; what waits in the hosts' memory does not count.
    """
    seen: set[tuple[int, int]] = set()
    held = {}
    for owner, tree in trees.items():
        held[owner] = 0
        for leaf in jax.tree.leaves(tree):
            if not isinstance(leaf, jax.Array) or leaf.is_deleted():
                continue
            if leaf.sharding.memory_kind == HOST:
                continue
            for shard in leaf.addressable_shards:
                key = (shard.device.id, shard.data.unsafe_buffer_pointer())
                if key not in seen:
                    seen.add(key)
                    held[owner] += shard.data.nbytes
    return held
