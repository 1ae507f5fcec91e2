"""Rollout engines: prompts as token ids in, sampled tokens with their log-probabilities out."""

from .config import ENGINES, RolloutConfig, fit_prompts
from .engines import check_available, make_engine, takes_adapters, weights_of
from .types import (
    Abortable,
    Completion,
    Request,
    RolloutEngine,
    SamplingParams,
    StopReason,
    Weights,
)
from .vanilla import VanillaEngine

__all__ = [
    "ENGINES",
    "Abortable",
    "Completion",
    "Request",
    "RolloutConfig",
    "RolloutEngine",
    "SamplingParams",
    "StopReason",
    "VanillaEngine",
    "Weights",
    "check_available",
    "fit_prompts",
    "make_engine",
    "takes_adapters",
    "weights_of",
]
