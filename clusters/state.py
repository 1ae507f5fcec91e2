"""What a cluster must keep to go on as if it had not been interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClusterState:
    """All that a cluster needs to go on as if it had not been interrupted.

    Attributes:
        arrays: role -> weights and optimizer state.
        counters: plain numbers: the weights' version, the steps of each optimizer.
    """

    arrays: dict[str, Any]
    counters: dict[str, Any]
