"""Rotary position embeddings: frequencies for each kind of context scaling, and the rotation."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from .config import RopeConfig


def _wavelengths(theta: float, head_dim: int) -> np.ndarray:
    """theta^(2i / head_dim), positions a radian."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Raised in float64 and rounded once: at far positions one wrong bit here turns the angle.
    powers = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64))
    return powers.astype(np.float32)


def _plain_frequencies(theta: float, head_dim: int) -> np.ndarray:
    return np.float32(1.0) / _wavelengths(theta, head_dim)


def _linear(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    return _plain_frequencies(rope.theta, head_dim) / np.float32(rope.factor), 1.0


def _llama3(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Long wavelengths are divided by `factor`, short ones kept, those between interpolated."""
    factor, context = rope.factor, rope.original_max_positions
    low, high = rope.low_freq_factor, rope.high_freq_factor
    assert factor is not None
    assert context is not None
    assert low is not None
    assert high is not None
    frequencies = _plain_frequencies(rope.theta, head_dim)
    wavelengths = np.float32(2 * math.pi) * (np.float32(1.0) / frequencies)
    scaled = np.where(wavelengths > context / low, frequencies / np.float32(factor), frequencies)
    turns = np.float32(context) * (np.float32(1.0) / wavelengths)
    smooth = (turns - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * scaled / np.float32(factor) + smooth * scaled
    is_between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return np.where(is_between, between, scaled).astype(np.float32), 1.0


def _yarn_attention_factor(rope: RopeConfig) -> float:
    factor = rope.factor
    assert factor is not None

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def _yarn(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """A ramp over dimensions from unscaled (fast) to divided by `factor` (slow)."""
    assert rope.factor is not None
    assert rope.original_max_positions is not None
    context = rope.original_max_positions

    def dimension_of(rotations: float) -> float:
        return (head_dim * math.log(context / (rotations * 2 * math.pi))) / (
            2 * math.log(rope.theta)
        )

    # As published configs are read elsewhere, 0 means "not given" for the two betas.
    low, high = dimension_of(rope.beta_fast or 32), dimension_of(rope.beta_slow or 1)
    if rope.truncate is None or rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    dimensions = np.arange(head_dim // 2, dtype=np.float32)
    ramp = np.clip((dimensions - np.float32(low)) / np.float32(high - low), 0, 1)
    kept = 1 - ramp
    powers = _wavelengths(rope.theta, head_dim)
    slow = np.float32(1.0) / (np.float32(rope.factor) * powers)
    fast = np.float32(1.0) / powers
    frequencies = slow * (1 - kept) + fast * kept
    return frequencies.astype(np.float32), _yarn_attention_factor(rope)


@functools.lru_cache(maxsize=64)
def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Angular frequencies of the pairs of a head, and the factor on cos and sin.

        default: f_i = theta^(-2i / head_dim)

    Args:
        rope: kind and parameters.
        head_dim: width of a head.

    Returns:
        `[head_dim / 2]` float32, radians a position, and the attention factor (1 but for `yarn`).

    Source: RoPE arXiv:2104.09864; linear arXiv:2306.15595; `yarn` arXiv:2309.00071; `llama3`
    arXiv:2407.21783. The rounding follows transformers 5.24.
    """
    if rope.kind == "linear":
        return _linear(rope, head_dim)
    if rope.kind == "llama3":
        return _llama3(rope, head_dim)
    if rope.kind == "yarn":
        return _yarn(rope, head_dim)
    return _plain_frequencies(rope.theta, head_dim), 1.0


def rope_tables(positions: jax.Array, rope: RopeConfig, head_dim: int):
    """Cosines and sines of the positions, float32.

    Args:
        positions: `[...]` int32, place of a token in its sequence.
        rope: kind and parameters.
        head_dim: width of a head.

    Returns:
        Two arrays `[..., 1, head_dim / 2]`; the axis of 1 broadcasts over heads.
    """
    frequencies, factor = rope_frequencies(rope, head_dim)
    angles = positions.astype(jnp.float32)[..., None, None] * jnp.asarray(frequencies)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rope_tables_once(positions: jax.Array, rope: RopeConfig, head_dim: int):
    """`rope_tables`, computed once where many layers read them.

    A compiler for CPUs fuses cosines into each loop that reads them, and so computes them again in
    every layer, for every head and in both directions. It does not look into a condition.
    """

    def tables(positions):
        return rope_tables(positions, rope, head_dim)

    def guarded(positions):
        cos, sin = jax.eval_shape(tables, positions)
        factor = rope_frequencies(rope, head_dim)[1]
        still = jnp.full(cos.shape, factor, cos.dtype), jnp.zeros(sin.shape, sin.dtype)
        return jax.lax.cond(jnp.any(positions != 0), tables, lambda _: still, positions)

    return jax.lax.platform_dependent(positions, cpu=guarded, default=tables)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, axis: int = -1) -> jax.Array:
    """Turn each pair (i, i + head_dim/2) of every head by its angle.

        (a, b) -> (a cos - b sin, b cos + a sin)

    Args:
        x: `[R, L, heads, head_dim]`.
        cos: `[R, L, 1, head_dim / 2]` float32.
        sin: the same shape.
        axis: where a head's width is, in another layout of `x`, `cos` and `sin`.

    Returns:
        The shape and dtype of `x`; the arithmetic is float32.
    """
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=axis)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=axis).astype(x.dtype)
