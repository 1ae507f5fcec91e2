"""What a completion is worth beside its siblings: functions of `[P, G]` rewards, in a chain.

Every block returns float32, 0 on invalid completions, and lets nothing that an invalid entry
holds (NaN too) reach a valid one.
"""

from .group import group_mean, group_norm, leave_one_out
from .length import overlong_penalty, stop_properly
from .plain import clip, identity

__all__ = [
    "clip",
    "group_mean",
    "group_norm",
    "identity",
    "leave_one_out",
    "overlong_penalty",
    "stop_properly",
]
