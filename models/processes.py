"""Several processes with one mesh: arrays on all their devices, and what all must agree on.

Every process runs the same program with the same numbers on its host. An array that lies on the
devices of all of them is *global*: a process holds some of its parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ..registry import ZootomyError

_SMALLEST = 64  # bytes; a power of two is a program, and so a few lengths are compiled


def several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks for all."""
    return jax.process_index() == 0


def from_host(tree: Any, shardings: Any) -> Any:
    """Arrays in their places, from the host or from other places on the devices.

    Args:
        tree: arrays; one that is no global array is the same in every process.
        shardings: one for all, or a tree like `tree`.

    Returns:
        The arrays; those that are in their places already are not copied.
    """
    if not several():
        return jax.device_put(tree, shardings)
    leaves, structure = jax.tree.flatten(tree)
    alone = isinstance(shardings, Sharding)
    places = [shardings] * len(leaves) if alone else structure.flatten_up_to(shardings)
    placed = [_place(x, place) for x, place in zip(leaves, places, strict=True)]
    return jax.tree.unflatten(structure, placed)


def in_place(tree: Any, shardings: Any) -> Any:
    """Arrays of the devices in their places; where all are there already, the tree itself.

    `jax.device_put` gives the same, and takes 25 µs an array to find that nothing is to be done.

    Args:
        tree: arrays that were placed before.
        shardings: a tree like `tree`.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = structure.flatten_up_to(shardings)
    there = all(x.sharding == place for x, place in zip(leaves, places, strict=True))
    return tree if there else jax.device_put(tree, shardings)


def _place(x: Any, sharding: Sharding) -> jax.Array:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    # Not `device_put`, which would send the whole array around to compare it.
    host = np.asarray(x)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def to_host(tree: Any) -> Any:
    """The whole arrays in numpy, in every process; all of them must ask at the same place."""
    if several():
        tree = jax.tree.map(_whole, tree)
    if jax.default_backend() == "cpu":
        return jax.tree.map(_fetched, tree)
    return jax.device_get(tree)  # Which asks for all of them before it waits for the first.


def _fetched(x: Any) -> Any:
    # A tenth of the time of `device_get`, which leaves random keys and plain numbers as they are.
    plain = isinstance(x, jax.Array) and isinstance(x.dtype, np.dtype)
    return np.asarray(x) if plain else jax.device_get(x)


def everywhere() -> NamedSharding:
    """Of arrays that lie whole on every device of every process."""
    return NamedSharding(Mesh(np.array(jax.devices()), ("all",)), PartitionSpec())


def _whole(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return x
    assert isinstance(x.sharding, NamedSharding)
    # A program a shape; as `jax.device_put` it would be one too.
    return jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec()))


def from_first(make: Callable[[], bytes]) -> bytes:
    """What the first process makes, in every process; the others do not call `make`.

    Raises:
        ZootomyError: in every process, where `make` raised it in the first.
    """
    if not several():
        return make()
    said, failed = b"", False
    if is_first():
        try:
            said = make()
        except ZootomyError as error:
            said, failed = str(error).encode(), True
    said, failed = _broadcast(said, failed)
    if failed:
        raise ZootomyError(said.decode())
    return said


def _broadcast(data: bytes, failed: bool) -> tuple[bytes, bool]:
    from jax.experimental import multihost_utils

    head = multihost_utils.broadcast_one_to_all(np.array([len(data), failed], np.int32))
    length = int(head[0])
    room = max(_SMALLEST, 1 << max(0, length - 1).bit_length())
    padded = np.zeros(room, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    got = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
    return got[:length].tobytes(), bool(head[1])


def check_agree(what: str, text: str) -> None:
    """Refuse to go on where a text is not the same in every process.

    Args:
        what: what the text says, in the plural.
        text: what must be the same.

    Raises:
        ZootomyError: in every process, naming the first that differs from process 0.
    """
    if not several():
        return
    from jax.experimental import multihost_utils

    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int32)
    digests = np.asarray(multihost_utils.process_allgather(digest))
    others = [index for index, other in enumerate(digests) if (other != digests[0]).any()]
    if others:
        raise ZootomyError(
            f"The {what} of process {others[0]} are not those of process 0. Start every process "
            "with the same settings, files and versions; only distributed.process may differ."
        )
