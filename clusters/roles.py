"""The parts that models and engines play in a run."""

from __future__ import annotations

import enum

from ..registry import unknown_name


class Role(enum.StrEnum):
    """Who does what.

    The actor is the policy that is trained, the critic estimates returns, the reference is what
    the actor must not leave too far behind, reward scores completions, rollout samples them.
    """

    ACTOR = "actor"
    CRITIC = "critic"
    REFERENCE = "reference"
    REWARD = "reward"
    ROLLOUT = "rollout"


POLICY_ROLES = (Role.ACTOR, Role.REFERENCE)
"""Roles that give log-probabilities."""

TRAINED_ROLES = (Role.ACTOR, Role.CRITIC)
"""Roles that have an optimizer."""

REWARD_MODEL = "reward_model"
"""What a reward model is called that was given without a name."""


def reward_seat(name: str) -> str:
    """Where one of several reward models is placed: `reward.NAME`."""
    return f"{Role.REWARD}.{name}"


def find_seat(name: str) -> str:
    """The name of a role, or `reward.NAME`, one of several reward models.

    Raises:
        UnknownNameError: if there is no such role.
    """
    role, _, rest = name.partition(".")
    return name if rest and role == Role.REWARD else str(find_role(name))


def role_of(seat: str) -> Role:
    """The role that is played at a seat, of which only `reward` has several."""
    return find_role(seat.partition(".")[0])


def find_role(name: str) -> Role:
    """The role of that name.

    Raises:
        UnknownNameError: if there is none.
    """
    try:
        return Role(name)
    except ValueError:
        raise unknown_name("role", name, [str(role) for role in Role]) from None
