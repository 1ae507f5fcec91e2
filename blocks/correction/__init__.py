"""How the sampler's drift is repaid: weights from the engine's and the trainer's probabilities.

Every block returns (weights, kept): weights without a gradient, 0 where a token is not kept. The
aggregation counts all actions, or the kept ones, as the slot's `denominator` says. Two
corrections can be applied one after the other with `combine`.
"""

from .inputs import combine
from .metrics import drift_metrics
from .normalized import normalized
from .policy import bypass, off_policy_sequence_mask, top_entropy
from .rejection import rejection, veto
from .sequence import mis, seq_mask_tis, sequence_tis
from .token import divergence_mask, icepop, tis

__all__ = [
    "bypass",
    "combine",
    "divergence_mask",
    "drift_metrics",
    "icepop",
    "mis",
    "normalized",
    "off_policy_sequence_mask",
    "rejection",
    "seq_mask_tis",
    "sequence_tis",
    "tis",
    "top_entropy",
    "veto",
]
