"""The decoder: Llama, Qwen2 and Qwen3 by config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import jax
import jax.numpy as jnp
from flax import nnx

from .attention import Attention, packed_mask, slot_mask
from .axes import constrain
from .cache import KVCache, PromptCache
from .config import ModelConfig
from .kernels import AttentionKernel, Kernel, choose_kernel
from .layers import MLP, RMSNorm, linear
from .logps import head_logits
from .rope import rope_tables, rope_tables_once
from .slot_attention import PromptSlots, prompt_slots
from .stack import LayerStyle, check_style, run_layers


class DecoderLayer(nnx.Module):
    """One block: attention and MLP, each on a normalised input and added to the stream.

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
        options = {"rngs": rngs, "dtype": dtype, "param_dtype": param_dtype}
        norm = {"eps": config.rms_norm_eps, "param_dtype": param_dtype}
        self.input_layernorm = RMSNorm(config.hidden_size, **norm)
        self.self_attn = Attention(config, kernel=kernel, **options)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, **norm)
        self.mlp = MLP(config, **options)

    def __call__(self, x, cos, sin, segments, mask):
        """`[R, L, D]` to `[R, L, D]` over packed rows."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, segments, mask)
        return x + self.mlp(self.post_attention_layernorm(x))

    def cached(self, x, *inputs):
        """`[B, S, D]` to `[B, S, D]` over this layer's cache; returns the new cache arrays too.

        Args:
            x: `[B, S, D]`.
            inputs: the others of `Attention.cached`, in its order.
        """
        out, k_store, v_store = self.self_attn.cached(self.input_layernorm(x), *inputs)
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), k_store, v_store


def _spread_layer(layer, x, *inputs):
    """A block, its result spread over a mesh as rows are."""
    return constrain(layer(x, *inputs), "rows", "length")


class Decoder(nnx.Module):
    """A causal language model: embedding, blocks, a final norm and a head.

    Each layer keeps parameters of its own: adapters can be attached to single projections, and a
    decode step, which is always unrolled, does not copy a layer's weights out of a stack. Passes
    over packed rows can stack them within the program; see `layers`.

    Args:
        config: sizes and switches.
        rngs: source of fresh weights.
        dtype: dtype of the arithmetic; norms, softmax, rotation and logits are float32 anyway.
        param_dtype: dtype of the stored weights.
        with_head: False leaves a free head out (for a model with a scalar head).
        remat: recompute each block in the backward pass instead of keeping what is inside it.
        layers: how the blocks of a packed pass are compiled: `auto`, `scan` or `unroll`; see
            `run_layers`.
        attention: whose program packed rows attend with: `auto`, `xla`, `cudnn` or `splash`; see
            `choose_kernel`.

    Raises:
        UnknownNameError: for another word for `layers` or `attention`.
        ZootomyError: for a kernel that cannot be had.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
        with_head: bool = True,
        remat: bool = False,
        layers: LayerStyle = "auto",
        attention: AttentionKernel = "auto",
    ):
        check_style(layers)
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.param_dtype = jnp.dtype(param_dtype)
        self.remat = remat
        self.layer_style: LayerStyle = layers
        self.attention: AttentionKernel = attention
        self.kernel: Kernel = choose_kernel(attention, self.dtype, config.head_dim)
        options = {"rngs": rngs, "dtype": self.dtype, "param_dtype": self.param_dtype}
        self.embed_tokens = nnx.Embed(
            config.vocab_size,
            config.hidden_size,
            embedding_init=nnx.initializers.normal(config.initializer_range),
            **options,
        )
        self.layers = nnx.List(
            [DecoderLayer(config, kernel=self.kernel, **options) for _ in range(config.num_layers)]
        )
        self.norm = RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps, param_dtype=self.param_dtype
        )
        self.has_free_head = with_head and not config.tie_embeddings
        self.has_head = with_head
        if self.has_free_head:
            self.lm_head = linear(
                config.hidden_size, config.vocab_size, config, bias=False, **options
            )

    @overload
    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
        cache: None = None,
        prompts: None = None,
    ) -> jax.Array: ...

    @overload
    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: None = None,
        reads: None = None,
        *,
        cache: KVCache,
        prompts: PromptCache | None = None,
    ) -> tuple[jax.Array, KVCache]: ...

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
        cache: KVCache | None = None,
        prompts: PromptCache | None = None,
    ):
        """Hidden states after the final norm; row t speaks of the token at t + 1.

        Args:
            tokens: `[R, L]` int32 (with a cache `[B, S]`).
            positions: the same shape, int32: place of each token in its sequence. With a cache
                also the slot it is written to, counted from the end of the row's prompt if there
                are `prompts`; so distinct within a row.
            segments: the same shape, int32: packed sequences of a row have different numbers, 0 is
                padding. None: one sequence a row.
            reads: `[R, K, C]` int32, for rows that begin with prompts and end in K branches of C
                tokens: the segment of the prompt, in its row, that a token of a branch sees
                besides the earlier ones of its own. None: rows have no branches.
            cache: what was seen before; a token in slot s sees slots 0..s of its row. All of
                it is read, so it should have little more room than is needed.
            prompts: with a cache, what its rows see besides: each the prompt it starts from.

        Returns:
            Without a cache `[R, L, D]`; with one `([B, S, D], new cache)`.

        Raises:
            ValueError: for shapes that do not agree, or arguments that exclude each other.
        """
        if tokens.ndim != 2 or tokens.shape != positions.shape:
            raise ValueError(
                "tokens and positions must be [rows, length] and agree, got "
                f"{tokens.shape} and {positions.shape}"
            )
        if cache is not None:
            if segments is not None or reads is not None:
                raise ValueError("segments and cache exclude each other: a cache holds one a row")
            return self._cached(tokens, positions, cache, prompts)
        if prompts is not None:
            raise ValueError("prompts go with a cache: packed rows hold theirs, see reads")
        if segments is None:
            segments = jnp.ones_like(tokens)
        if segments.shape != tokens.shape:
            raise ValueError(
                f"segments must have the shape of tokens {tokens.shape}, got {segments.shape}"
            )
        if reads is not None and (
            reads.ndim != 3 or len(reads) != len(tokens) or reads[0].size >= tokens.shape[1]
        ):
            raise ValueError(
                "reads must be [rows, branches, length] and leave room for a prompt in rows of "
                f"{tokens.shape}, got {reads.shape}"
            )
        x = constrain(self._embed(tokens), "rows", "length")
        cos, sin = rope_tables_once(positions, self.config.rope, self.config.head_dim)
        x = run_layers(
            self.layers,
            _spread_layer,
            x,
            (cos, sin, segments, packed_mask(segments, reads)),
            style=self.layer_style,
            remat=self.remat,
        )
        return self.norm(x)

    def _embed(self, tokens):
        # Whole rows of the table on each device: a device that holds part of a row's width would
        # give that part of every token, and all would have to be sent around.
        table = constrain(self.embed_tokens.embedding[...].astype(self.dtype), "vocab")
        return jnp.take(table, tokens, axis=0)

    def _cached(self, tokens, positions, cache, prompts):
        if cache.batch != tokens.shape[0]:
            raise ValueError(f"the cache has {cache.batch} rows, tokens have {tokens.shape[0]}")
        if len(cache.k) != self.config.num_layers:
            raise ValueError(
                f"the cache has {len(cache.k)} layers, the model {self.config.num_layers}"
            )
        slots, reach = positions, cache.capacity
        read: Sequence[PromptSlots | None] = [None] * len(cache.k)
        if prompts is not None:
            slots = positions - prompts.starts(cache.batch)[:, None]
            reach += prompts.slots.capacity
            read = prompt_slots(prompts)
        x = constrain(self._embed(tokens), "rows")
        # Looked up in a table that no step computes again: a compiler repeats the cosines of a
        # position in every layer that reads them.
        table = rope_tables(jnp.arange(reach), self.config.rope, self.config.head_dim)
        cos, sin = (jnp.take(x, positions, axis=0, mode="clip") for x in table)
        mask = slot_mask(slots, cache.capacity)
        keys, values = [], []
        for layer, *stores, own in zip(self.layers, cache.k, cache.v, read, strict=True):
            x, k_store, v_store = layer.cached(x, cos, sin, mask, *stores, slots, own)
            x = constrain(x, "rows")
            keys.append(k_store)
            values.append(v_store)
        return self.norm(x), KVCache(k=tuple(keys), v=tuple(values))

    def head_kernel(self) -> jax.Array:
        """`[D, V]`: the free head, or the transposed embedding."""
        if not self.has_head:
            raise ValueError("this decoder was built without a head (with_head=False)")
        if self.has_free_head:
            return self.lm_head.kernel[...]
        return self.embed_tokens.embedding[...].T

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`[..., D]` to `[..., V]` float32."""
        return head_logits(hidden, self.head_kernel())
