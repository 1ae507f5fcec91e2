"""What a cluster must keep to go on as if it had not been interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..registry import ZootomyError


@dataclass(frozen=True)
class ClusterState:
    """All that a cluster needs to go on as if it had not been interrupted.

    Attributes:
        arrays: role -> weights and optimizer state.
        counters: plain numbers: the weights' version, the steps of each optimizer.
    """

    arrays: dict[str, Any]
    counters: dict[str, Any]

    def check_roles(self, roles: set[str]) -> None:
        """Refuse a run with other roles than these.

        Raises:
            ZootomyError: with both.
        """
        if roles != set(self.arrays):
            raise ZootomyError(
                f"The saved state has the roles {sorted(self.arrays)}, this run {sorted(roles)}; "
                "start it with the same algorithm, or begin a new run."
            )
