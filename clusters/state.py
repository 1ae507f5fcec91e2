"""What a cluster must keep to go on as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..registry import ZootomyError
from .passes import AnyModel, Learning
from .role_model import RoleModel
from .roles import Role, role_of


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


def take_state(models: Mapping[str, AnyModel], version: int) -> ClusterState:
    """The state of a cluster's models; later updates leave the arrays as they are."""
    arrays = {str(seat): model.state() for seat, model in _saved(models).items()}
    steps = {str(seat): one.steps for seat, one in models.items() if isinstance(one, Learning)}
    return ClusterState(arrays, {"version": version, "steps": steps})


def give_state(state: ClusterState, models: Mapping[str, AnyModel]) -> None:
    """Let models go on from a state.

    Raises:
        ZootomyError: if it is of other models, optimizers or roles.
    """
    saved = _saved(models)
    state.check_roles({str(seat) for seat in saved})
    for seat, model in saved.items():
        model.restore(state.arrays[str(seat)])
    for seat, steps in state.counters["steps"].items():
        model = models[seat]
        assert isinstance(model, Learning)
        model.steps = steps


def _saved(models: Mapping[str, AnyModel]) -> dict[str, RoleModel]:
    """What a checkpoint holds: all but reward models, which no run changes.

    A critic on the actor's backbone is part of the actor.
    """
    own = {seat: model for seat, model in models.items() if isinstance(model, RoleModel)}
    return {seat: model for seat, model in own.items() if role_of(seat) is not Role.REWARD}
