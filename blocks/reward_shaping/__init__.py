"""What a completion is worth beside its siblings: functions of `[P, G]` rewards, in a list.

Every block returns float32, 0 on invalid completions, and lets nothing that an invalid entry
holds (NaN too) reach a valid one.
"""

from .baseline import opo, remax, running_norm, spo
from .batch import batch_mean, batch_norm, normalize
from .components import gdpo, per_function
from .difficulty import gpg, maxrl, pass_at_k
from .group import group_mean, group_norm, leave_one_out
from .length import overlong_penalty, stop_properly
from .plain import clip, identity, scale
from .trackers import BetaTracker, RunningMoments

__all__ = [
    "BetaTracker",
    "RunningMoments",
    "batch_mean",
    "batch_norm",
    "clip",
    "gdpo",
    "gpg",
    "group_mean",
    "group_norm",
    "identity",
    "leave_one_out",
    "maxrl",
    "normalize",
    "opo",
    "overlong_penalty",
    "pass_at_k",
    "per_function",
    "remax",
    "running_norm",
    "scale",
    "spo",
    "stop_properly",
]
