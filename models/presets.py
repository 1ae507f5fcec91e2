"""Small models from scratch."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import nnx

from .config import ModelConfig, RopeConfig
from .decoder import Decoder


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, inner: int) -> ModelConfig:
    return ModelConfig(
        family="qwen3",
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        qk_norm=True,
        tie_embeddings=True,
        rope=RopeConfig(theta=10000.0),
        max_positions=1024,
    )


# Parameters without the embedding: tiny 25 thousand, small 0.4 million, medium 3.1 million.
PRESETS = {
    "tiny": _qwen3(hidden=32, layers=2, heads=4, kv_heads=2, inner=96),
    "small": _qwen3(hidden=128, layers=2, heads=4, kv_heads=2, inner=384),
    "medium": _qwen3(hidden=256, layers=4, heads=4, kv_heads=2, inner=768),
}


def make_model(
    preset: str | ModelConfig,
    *,
    seed: int = 0,
    vocab_size: int | None = None,
    dtype=jnp.float32,
    param_dtype=jnp.float32,
) -> Decoder:
    """A decoder with fresh weights.

    Args:
        preset: a name in `PRESETS`, or a config.
        seed: draws the weights.
        vocab_size: replaces the preset's vocabulary size.
        dtype: dtype of the arithmetic.
        param_dtype: dtype of the stored weights.

    Returns:
        A `Decoder`.

    Raises:
        ValueError: for an unknown preset.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"no model preset {preset!r}; choose one of {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    if vocab_size is not None:
        preset = dataclasses.replace(preset, vocab_size=vocab_size)
    return Decoder(preset, rngs=nnx.Rngs(seed), dtype=dtype, param_dtype=param_dtype)
