"""How an action is pushed: one loss a token, before any weighting."""

from .ppo import dual_clip, ppo_clip
from .reinforce import reinforce

__all__ = ["dual_clip", "ppo_clip", "reinforce"]
