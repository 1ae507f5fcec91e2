"""How the sampler's drift is repaid: weights from the engine's and the trainer's probabilities."""

from .sequence import seq_mask_tis
from .token import icepop, tis

__all__ = ["icepop", "seq_mask_tis", "tis"]
