"""Decoder models in Flax NNX, their weights in and out, and log-probabilities of their tokens."""

from .axes import constrain, parameter_axes, parts_on
from .cache import KVCache, PromptCache, grow_cache, init_cache, take_rows
from .compilers import QuickJit, quick
from .config import ModelConfig, RopeConfig
from .decoder import Decoder
from .distributions import Distributions, Head, map_distributions
from .fused import column_head, column_logits, fuse
from .heads import PolicyWithValue, RewardModel, ScalarModel, ValueModel
from .huggingface import load_model, load_scalar_model, load_stop_ids, save_model
from .huggingface_config import config_fields, load_config
from .huggingface_names import EMBEDDING, HEAD, huggingface_name, named_arrays
from .kernels import AttentionKernel
from .logps import TokenStats, head_logits, token_logps, token_stats
from .lora import (
    LoraConfig,
    adapted_layers,
    add_adapters,
    has_adapters,
    merge_adapters,
    trained_part,
    without_deltas,
)
from .peft import load_adapters, read_adapter_config, save_adapters
from .presets import PRESETS, make_model
from .processes import (
    check_agree,
    everywhere,
    from_first,
    from_host,
    in_place,
    is_first,
    several,
    to_host,
)
from .stack import LayerStyle

__all__ = [
    "EMBEDDING",
    "HEAD",
    "PRESETS",
    "AttentionKernel",
    "Decoder",
    "Distributions",
    "Head",
    "KVCache",
    "LayerStyle",
    "LoraConfig",
    "ModelConfig",
    "PolicyWithValue",
    "PromptCache",
    "QuickJit",
    "RewardModel",
    "RopeConfig",
    "ScalarModel",
    "TokenStats",
    "ValueModel",
    "adapted_layers",
    "add_adapters",
    "check_agree",
    "column_head",
    "column_logits",
    "config_fields",
    "constrain",
    "everywhere",
    "from_first",
    "from_host",
    "fuse",
    "grow_cache",
    "has_adapters",
    "head_logits",
    "huggingface_name",
    "in_place",
    "init_cache",
    "is_first",
    "load_adapters",
    "load_config",
    "load_model",
    "load_scalar_model",
    "load_stop_ids",
    "make_model",
    "map_distributions",
    "merge_adapters",
    "named_arrays",
    "parameter_axes",
    "parts_on",
    "quick",
    "read_adapter_config",
    "save_adapters",
    "save_model",
    "several",
    "take_rows",
    "to_host",
    "token_logps",
    "token_stats",
    "trained_part",
    "without_deltas",
]
