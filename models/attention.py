"""Attention with grouped key heads, over packed rows or over a cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from .axes import constrain, heads_held
from .cache import write_slots
from .config import ModelConfig
from .kernels import Kernel, packed_attention
from .layers import RMSNorm, flat, linear
from .rope import rotate
from .row_attention import BranchMask
from .slot_attention import attend_slots


def packed_mask(segments: jax.Array, reads: jax.Array | None = None) -> jax.Array | BranchMask:
    """Who sees whom in packed rows: the earlier tokens of one's own segment, and oneself.

    Args:
        segments: `[R, L]` int32; 0 is padding.
        reads: `[R, K, C]` int32 or None, as of `Decoder`.

    Returns:
        `[R, L, L]` bool; with `reads` its blocks that are not all False.
    """
    if reads is None:
        return _causal(segments)
    room = segments.shape[1] - reads[0].size
    prompts, branches = segments[:, :room], segments[:, room:].reshape(reads.shape)
    read = reads[..., None] == prompts[:, None, None, :]
    return BranchMask(_causal(prompts), _causal(branches), read)


def _causal(segments: jax.Array) -> jax.Array:
    """`[..., L]` segments to `[..., L, L]` bool."""
    length = segments.shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    # Padding sees earlier padding: its output means nothing, but it stays finite.
    return causal & (segments[..., :, None] == segments[..., None, :])


def slot_mask(slots: jax.Array, capacity: int) -> jax.Array:
    """Who sees which slot of a cache: slots up to one's own.

    Args:
        slots: `[B, S]` int32, where each token is.
        capacity: number of slots a row.

    Returns:
        `[B, S, capacity]` bool.
    """
    return jnp.arange(capacity) <= slots[:, :, None]


class Attention(nnx.Module):
    """Projections, optional head norms, rotation, attention and the output projection.

    Args:
        config: sizes and switches.
        rngs: source of fresh weights.
        dtype: dtype of the arithmetic.
        param_dtype: dtype of the stored weights.
        kernel: whose program packed rows attend with.
    """

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, dtype, param_dtype, kernel: Kernel = "xla"
    ):
        self.kernel: Kernel = kernel
        self.head_dim = config.head_dim
        hidden = config.hidden_size
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        options = {"rngs": rngs, "dtype": dtype, "param_dtype": param_dtype}
        self.q_proj = linear(hidden, q_size, config, bias=config.qkv_bias, **options)
        self.k_proj = linear(hidden, kv_size, config, bias=config.qkv_bias, **options)
        self.v_proj = linear(hidden, kv_size, config, bias=config.qkv_bias, **options)
        self.o_proj = linear(q_size, hidden, config, bias=config.o_bias, **options)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            norm = {"eps": config.rms_norm_eps, "param_dtype": param_dtype}
            self.q_norm = RMSNorm(config.head_dim, **norm)
            self.k_norm = RMSNorm(config.head_dim, **norm)

    def _linear(self, tokens):
        return self.q_proj(tokens), self.k_proj(tokens), self.v_proj(tokens)

    def _project(self, x, cos, sin):
        def heads(y):
            y = y.reshape(*x.shape[:-1], -1, self.head_dim)
            return constrain(y, "rows", "length", "heads")

        q, k, v = (heads(y) for y in self._linear(flat(x)))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        times = heads_held(k.shape[2], q.shape[2]) // k.shape[2]
        return q, *(x if times == 1 else heads(jnp.repeat(x, times, axis=2)) for x in (k, v))

    def __call__(self, x, cos, sin, segments, mask):
        """Attend within the segments of rows, and to the past.

        Args:
            x: `[R, L, D]`.
            cos: rotation of the tokens, `[R, L, 1, head_dim / 2]`.
            sin: the same shape.
            segments: `[R, L]` int32.
            mask: `packed_mask` of the segments.

        Returns:
            `[R, L, D]`.
        """
        q, k, v = self._project(x, cos, sin)
        out = packed_attention(q, k, v, segments, mask, self.kernel)
        return self._output(out)

    def _output(self, out):
        """`[B, S, heads, head_dim]` to `[B, S, D]`."""
        batch, length = out.shape[:2]
        return self.o_proj(flat(out.reshape(batch, length, -1))).reshape(batch, length, -1)

    def cached(self, x, cos, sin, mask, k_store, v_store, slots, prompts=None):
        """Write the new tokens into the cache of this layer, then attend over its slots.

        Args:
            x: `[B, S, D]`.
            cos: rotation of the new tokens, `[B, S, 1, head_dim / 2]`.
            sin: the same shape.
            mask: `[B, S, capacity]`, `slot_mask` of the slots.
            k_store: `[B, kv_heads, head_dim, capacity]`.
            v_store: `[B, kv_heads, capacity, head_dim]`.
            slots: `[B, S]` int32, where the new tokens are written.
            prompts: what each row reads besides.

        Returns:
            `[B, S, D]` and the two stores.
        """
        q, k, v = self._project(x, cos, sin)
        k_store, v_store = write_slots(k_store, v_store, k, v, slots)
        out = attend_slots(q, k_store, v_store, mask, prompts)
        return self._output(out), k_store, v_store
