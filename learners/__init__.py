"""Algorithms as configs of blocks, their assembly, and the one learner that runs them all."""

from .algorithm import Algorithm
from .arrays import Experience, Metrics, Rollouts
from .assembly import Assembly, assemble
from .batch import BatchConfig
from .evaluation import Evaluation, EvaluationConfig, evaluate
from .learner import Learner, StepReport
from .objective import Loss, Outputs
from .score_scale import ScoreScale
from .validation import DoubtfulChoiceWarning
from .warmup import WarmupConfig, warm_up
from .zoo import algorithm, algorithms

__all__ = [
    "Algorithm",
    "Assembly",
    "BatchConfig",
    "DoubtfulChoiceWarning",
    "Evaluation",
    "EvaluationConfig",
    "Experience",
    "Learner",
    "Loss",
    "Metrics",
    "Outputs",
    "Rollouts",
    "ScoreScale",
    "StepReport",
    "WarmupConfig",
    "algorithm",
    "algorithms",
    "assemble",
    "evaluate",
    "warm_up",
]
