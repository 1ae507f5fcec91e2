"""Decoder models in Flax NNX, their weights in and out, and log-probabilities of their tokens."""

from .attention import attend
from .axes import logical_axes
from .cache import KVCache, init_cache, take_rows
from .config import ModelConfig, RopeConfig
from .decoder import Decoder
from .fused import fuse
from .heads import RewardModel, ScalarModel, ValueModel
from .huggingface import load_model, load_scalar_model, load_stop_ids, save_model
from .huggingface_config import config_fields, load_config
from .huggingface_names import EMBEDDING, HEAD, huggingface_name, named_arrays
from .kernels import AttentionKernel
from .logps import TokenStats, head_logits, token_logps, token_stats
from .presets import PRESETS, make_model
from .stack import LayerStyle

__all__ = [
    "EMBEDDING",
    "HEAD",
    "PRESETS",
    "AttentionKernel",
    "Decoder",
    "KVCache",
    "LayerStyle",
    "ModelConfig",
    "RewardModel",
    "RopeConfig",
    "ScalarModel",
    "TokenStats",
    "ValueModel",
    "attend",
    "config_fields",
    "fuse",
    "head_logits",
    "huggingface_name",
    "init_cache",
    "load_config",
    "load_model",
    "load_scalar_model",
    "load_stop_ids",
    "logical_axes",
    "make_model",
    "named_arrays",
    "save_model",
    "take_rows",
    "token_logps",
    "token_stats",
]
