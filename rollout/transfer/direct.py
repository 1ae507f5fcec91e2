"""Within a process: the arrays themselves, no copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .buckets import describe_arrays
from .types import Delivery, Received, TransferError


class Direct:
    """Hands over references, on whatever device the arrays are.

    It holds the weights accepted last until others are: an engine whose load fails half-way takes
    them once more. Whoever sends must leave those arrays alone meanwhile (not donate them).
    """

    def __init__(self) -> None:
        self._held: dict[int, Mapping[str, Any]] = {}
        self._sent = 0

    def send(self, arrays: Mapping[str, Any], version: int) -> Delivery:
        """See `WeightTransfer`; nothing is copied."""
        self._sent += 1
        self._held[self._sent] = dict(arrays)
        return Delivery(version, describe_arrays(arrays), self._sent)

    def receive(self, delivery: Delivery) -> Received:
        """See `WeightTransfer`; the very arrays that were sent."""
        held = self._held.get(delivery.where)
        if held is None:
            raise TransferError(
                f"Weights of version {delivery.version} are not held any more; the engine keeps "
                "the weights it has."
            )
        return Received(delivery.version, held)

    def accepted(self, delivery: Delivery) -> None:
        """See `WeightTransfer`; all others are let go."""
        self._held = {delivery.where: self._held[delivery.where]}

    def close(self) -> None:
        """Let go of the arrays."""
        self._held.clear()
