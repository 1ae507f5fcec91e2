"""How an action is pushed: one loss a token, before any weighting."""

from .covariance import clip_cov, kl_cov
from .fipo import fipo
from .gmpo import gmpo
from .ppo import dual_clip, ppo_clip
from .ppo_variants import delta_clip, luspo
from .real import real
from .reinforce import reinforce
from .soft import sapo, vespo
from .trust_region import dppo, ipo_mask, m2po
from .weighted import cispo, kimi, topr

__all__ = [
    "cispo",
    "clip_cov",
    "delta_clip",
    "dppo",
    "dual_clip",
    "fipo",
    "gmpo",
    "ipo_mask",
    "kimi",
    "kl_cov",
    "luspo",
    "m2po",
    "ppo_clip",
    "real",
    "reinforce",
    "sapo",
    "topr",
    "vespo",
]
