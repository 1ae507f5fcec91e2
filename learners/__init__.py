"""Algorithms as configs of blocks, their assembly, and the one learner that runs them all."""

from .algorithm import Algorithm
from .assembly import Assembly, assemble
from .experience import Experience, Metrics, Rollouts
from .objective import Loss, Outputs
from .validation import DoubtfulChoiceWarning
from .zoo import algorithm, algorithms

__all__ = [
    "Algorithm",
    "Assembly",
    "DoubtfulChoiceWarning",
    "Experience",
    "Loss",
    "Metrics",
    "Outputs",
    "Rollouts",
    "algorithm",
    "algorithms",
    "assemble",
]
