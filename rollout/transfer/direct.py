"""Within a process: the arrays themselves, no copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .buckets import describe_arrays
from .types import Delivery, Received, TransferError


class Direct:
    """Hands over references."""

    def __init__(self) -> None:
        self._held: dict[int, Mapping[str, Any]] = {}

    def send(self, arrays: Mapping[str, Any], version: int) -> Delivery:
        """See `WeightTransfer`; nothing is copied."""
        self._held[version] = dict(arrays)
        return Delivery(version, describe_arrays(arrays), None)

    def receive(self, delivery: Delivery) -> Received:
        """See `WeightTransfer`."""
        held = self._held.get(delivery.version)
        if held is None:
            raise TransferError(
                f"Weights of version {delivery.version} are not held; only "
                f"{sorted(self._held)} are."
            )
        return Received(delivery.version, {name: np.asarray(x) for name, x in held.items()})

    def accepted(self, delivery: Delivery) -> None:
        """See `WeightTransfer`."""
        self._held = {delivery.version: self._held[delivery.version]}

    def close(self) -> None:
        """Let go of the arrays."""
        self._held.clear()
