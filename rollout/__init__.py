"""Rollout engines: prompts as token ids in, sampled tokens with their log-probabilities out."""

from .config import ENGINES, RolloutConfig, fit_prompts
from .engines import make_engine
from .types import Completion, Request, RolloutEngine, SamplingParams, StopReason, Weights
from .vanilla import VanillaEngine

__all__ = [
    "ENGINES",
    "Completion",
    "Request",
    "RolloutConfig",
    "RolloutEngine",
    "SamplingParams",
    "StopReason",
    "VanillaEngine",
    "Weights",
    "fit_prompts",
    "make_engine",
]
