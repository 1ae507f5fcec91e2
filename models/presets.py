"""Small models from scratch."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..registry import unknown_name
from .axes import Placer
from .config import ModelConfig, RopeConfig
from .decoder import Decoder
from .kernels import AttentionKernel
from .processes import from_host
from .stack import LayerStyle


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
    remat: bool = False,
    layers: LayerStyle = "auto",
    attention: AttentionKernel = "auto",
    place: Placer | None = None,
) -> Decoder:
    """A decoder with fresh weights.

    Args:
        preset: a name in `PRESETS`, or a config.
        seed: draws the weights.
        vocab_size: replaces the preset's vocabulary size.
        dtype: dtype of the arithmetic.
        param_dtype: dtype of the stored weights.
        remat: as of `Decoder`.
        layers: as of `Decoder`.
        attention: as of `Decoder`.
        place: `(path, shape) -> sharding` of a parameter; None: on the default device.

    Returns:
        A `Decoder`.

    Raises:
        UnknownNameError: for an unknown preset, or another word for `layers` or `attention`.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise unknown_name("model preset", preset, PRESETS)
        preset = PRESETS[preset]
    if vocab_size is not None:
        preset = dataclasses.replace(preset, vocab_size=vocab_size)
    config = preset
    model = nnx.eval_shape(
        lambda: Decoder(
            config,
            rngs=nnx.Rngs(0),
            dtype=dtype,
            param_dtype=param_dtype,
            remat=remat,
            layers=layers,
            attention=attention,
        )
    )
    _draw(model, seed, param_dtype, place)
    return model


def _draw(model: Decoder, seed: int, param_dtype, place: Placer | None) -> None:
    """Fill in weights as `Decoder` would, from numpy: no compilation, and the same anywhere."""
    generator = np.random.default_rng(seed)
    state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    for path, parameter in state.items():
        if path[-1] == "scale":
            value = np.ones(parameter.shape, np.float32)
        elif path[-1] == "bias":
            value = np.zeros(parameter.shape, np.float32)
        else:
            noise = generator.standard_normal(parameter.shape, np.float32)
            value = model.config.initializer_range * noise
        if place is None:
            array = jnp.asarray(value, param_dtype)
        else:
            # Cast on the host, whose parts then go to the devices that hold them.
            array = from_host(value.astype(jnp.dtype(param_dtype)), place(path, value.shape))
        parameter.set_value(array)
    nnx.update(model, nnx.from_flat_state(state))
