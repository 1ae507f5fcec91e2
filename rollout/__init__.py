"""Rollout engines: prompts as token ids in, sampled tokens with their log-probabilities out."""

from .config import ENGINES, RolloutConfig, fit_prompts
from .engines import (
    check_available,
    check_transfer,
    keeps_arrays,
    make_engine,
    takes_adapters,
    weights_of,
)
from .streaming import stream
from .types import (
    Abortable,
    Completion,
    Finished,
    Request,
    RolloutEngine,
    SamplingParams,
    StopReason,
    StreamingEngine,
    Weights,
)
from .vanilla import VanillaEngine

__all__ = [
    "ENGINES",
    "Abortable",
    "Completion",
    "Finished",
    "Request",
    "RolloutConfig",
    "RolloutEngine",
    "SamplingParams",
    "StopReason",
    "StreamingEngine",
    "VanillaEngine",
    "Weights",
    "check_available",
    "check_transfer",
    "fit_prompts",
    "keeps_arrays",
    "make_engine",
    "stream",
    "takes_adapters",
    "weights_of",
]
