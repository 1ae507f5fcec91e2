"""Estimators of KL(π ‖ π_ref) per token."""

from .off_policy import importance_weighted, unbiased
from .sampled import Estimator, Gradient, absolute, estimate, k1, k2, k3
from .vocabulary import full, top_k

__all__ = [
    "Estimator",
    "Gradient",
    "absolute",
    "estimate",
    "full",
    "importance_weighted",
    "k1",
    "k2",
    "k3",
    "top_k",
    "unbiased",
]
