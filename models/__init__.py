"""Decoder models in Flax NNX, their weights in and out, and log-probabilities of their tokens."""

from .cache import KVCache, init_cache, take_rows
from .config import ModelConfig, RopeConfig
from .decoder import Decoder
from .logps import TokenStats, token_logps, token_stats
from .presets import PRESETS, make_model

__all__ = [
    "PRESETS",
    "Decoder",
    "KVCache",
    "ModelConfig",
    "RopeConfig",
    "TokenStats",
    "init_cache",
    "make_model",
    "take_rows",
    "token_logps",
    "token_stats",
]
