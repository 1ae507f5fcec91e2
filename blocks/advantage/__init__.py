"""Which token earned it: from rewards per token to advantages and returns per token.

Every block returns float32 `[N, T]` arrays that are 0 where the mask is 0.
"""

from .gae import bootstrap_truncated, gae, gae_bootstrap, vapo_gae
from .otb import otb, otb_corrected
from .returns import cumulative_return, reinforce_pp
from .turns import gigpo, turn_level

__all__ = [
    "bootstrap_truncated",
    "cumulative_return",
    "gae",
    "gae_bootstrap",
    "gigpo",
    "otb",
    "otb_corrected",
    "reinforce_pp",
    "turn_level",
    "vapo_gae",
]
