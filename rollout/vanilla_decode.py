"""The compiled programs of the vanilla engine: read prompts, fill slots, decode.

A *slot* is a row of the decode state in which one completion grows. Shapes are the number of
slots S, the capacity of a slot in tokens, the prompts P that the slots start from, and their
width W; likewise of the prompts that are read in one pass. All come from buckets. Everything a
call may choose (temperature, lengths, stop ids, seed) is traced.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..models import (
    Decoder,
    PromptCache,
    QuickJit,
    column_head,
    column_logits,
    fuse,
    head_logits,
    quick,
)
from ..models.cache import grow_cache, init_cache, take_rows
from .noise import key_of, noise_ahead, row_keys, row_noise
from .prefill import read_prompts
from .sampling import sample
from .scheduler import FREE_SHARE
from .sharing import SharingJit
from .vanilla_state import (
    CallArrays,
    DecodeState,
    DecodeWeights,
    Fill,
    Progress,
    PromptBatch,
    spread,
)
from .weights import Params


class Programs:
    """The engine's programs over one model structure; weights come in with each call.

    Args:
        model: gives the structure; its weights are not kept.
        cache_dtype: precision of keys and values.
        max_new_tokens: T, room for sampled tokens.
        fused: decode with copies of the weights, laid out for short matrix products.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        cache_dtype: Any,
        max_new_tokens: int,
        fused: bool,
    ):
        self._graph, *states = nnx.split(model, nnx.Param, ...)
        params, self._rest = map(nnx.to_pure_dict, states)
        self._fused = fused
        like = nnx.eval_shape(lambda params: self._laid_out(params), params)
        self._decode_graph, *like = nnx.split(like, nnx.Param, ...)
        self._decode_structure = jax.tree.structure(like)
        self._config = model.config
        self._cache_dtype = cache_dtype
        self._max_new_tokens = max_new_tokens
        self.compiled: Counter[str] = Counter()
        """Programs compiled so far, by name."""
        self.launching = Lock()
        """Held by a thread that calls one, so that two do not compile the same."""
        sizes = "prompts", "width", "slots", "capacity"
        self.empty_state = QuickJit(self._empty_state, static_argnames=sizes)
        self.prepare = SharingJit(self._prepare, quick())
        self.read = QuickJit(self._read, wide_products=True, static_argnames="piece")
        self.fill = QuickJit(self._fill, static_argnames="truncated", donate_argnames="state")
        self.grow = QuickJit(self._grow, static_argnames="capacity")
        self.keep = QuickJit(self._keep)
        self.decode = QuickJit(
            self._decode, wide_products=True, static_argnames="truncated", donate_argnames="state"
        )

    def _empty_state(self, *, prompts: int, width: int, slots: int, capacity: int) -> DecodeState:
        """S slots without a completion, each with room for `capacity` tokens.

        Args:
            prompts: static, like the others; P, 0 where each slot holds its own.
            width: W, 0 likewise.
            slots: S.
            capacity: tokens of a slot.
        """

        def filled(value: Any, *shape: int) -> jax.Array:
            return jnp.full((slots, *shape), value)

        return spread(
            DecodeState(
                prompts=PromptCache(
                    slots=init_cache(self._config, prompts, width, self._cache_dtype),
                    length=jnp.zeros(prompts, jnp.int32),
                )
                if prompts
                else None,
                cache=init_cache(self._config, slots, capacity, self._cache_dtype),
                token=filled(jnp.int32(0)),
                position=filled(jnp.int32(0)),
                count=filled(jnp.int32(0)),
                active=filled(False),
                stopped=filled(False),
                keys=filled(jnp.uint32(0), 2),
                tokens=filled(jnp.int32(0), self._max_new_tokens),
                logps=filled(jnp.float32(0), self._max_new_tokens),
            )
        )

    def _model(self, params: Params) -> Decoder:
        return nnx.merge(self._graph, params, self._rest)

    def _laid_out(self, params: Params) -> Decoder:
        model = self._model(params)
        return fuse(model) if self._fused else model

    def _prepare(self, params: Params) -> DecodeWeights:
        """Lay the weights out for decoding; what stays as it is is shared, not copied."""
        self.compiled["prepare"] += 1
        model = self._laid_out(params)
        _, *states = nnx.split(model, nnx.Param, ...)
        head = column_head(model) if self._fused else model.head_kernel()
        return DecodeWeights(tuple(jax.tree.leaves(states)), head)

    def _logits(self, hidden: jax.Array, head: jax.Array) -> jax.Array:
        """`[S, D]` to `[V, S]`."""
        return column_logits(hidden, head) if self._fused else head_logits(hidden, head).T

    def _read(
        self, params: Params, tokens: jax.Array, lengths: jax.Array, *, piece: tuple[int, int]
    ) -> PromptBatch:
        """Prefill right-padded prompts; the head runs on the last token of each only.

        Args:
            params: weights.
            tokens: `[P, W]` int32.
            lengths: `[P]` int32, at least 1.
            piece: static; as of `read_prompts`.
        """
        self.compiled["read"] += 1  # runs when traced, which is once a program
        model = self._model(params)
        cache, last = read_prompts(model, tokens, lengths, piece, self._cache_dtype)
        return spread(PromptBatch(cache=cache, logits=model.logits(last)))

    def _fill(
        self,
        state: DecodeState,
        prompts: PromptBatch,
        fill: Fill,
        call: CallArrays,
        *,
        truncated: bool,
    ) -> DecodeState:
        """Start new completions in free slots and sample their first token."""
        self.compiled["fill"] += 1
        started = jnp.asarray(fill.source) >= 0
        rows = jnp.maximum(fill.source, 0)

        def place(old: jax.Array, read: jax.Array) -> jax.Array:
            start = (0,) * old.ndim
            before = jax.lax.dynamic_slice(old, start, read.shape)
            kept = jnp.where(started[:, None, None, None], read, before)
            return jax.lax.dynamic_update_slice(old, kept, start)

        read = take_rows(prompts.cache, rows)
        if state.prompts is None:
            state = state._replace(cache=jax.tree.map(place, state.cache, read))
        else:
            slots = jax.tree.map(place, state.prompts.slots, read)
            length = jnp.where(started, fill.length, state.prompts.length)
            state = state._replace(prompts=PromptCache(slots, length))
        shared = len(state.active) // len(rows)
        new, rows, length = (jnp.repeat(x, shared) for x in (started, rows, fill.length))
        keys = row_keys(key_of(fill.seed), jnp.asarray(fill.owner))
        state = state._replace(
            position=jnp.where(new, length - 1, state.position),
            count=jnp.where(new, 0, state.count),
            active=state.active | new,
            keys=jnp.where(new[:, None], keys, state.keys),
        )
        noise = row_noise(state.keys, state.position + 1)
        return spread(_append(state, prompts.logits[rows].T, noise, new, call, truncated=truncated))

    def _grow(self, state: DecodeState, *, capacity: int) -> DecodeState:
        """The state with room for more tokens a slot."""
        self.compiled["grow"] += 1
        return spread(state._replace(cache=grow_cache(state.cache, capacity)))

    def _keep(self, state: DecodeState, slots: jax.Array) -> DecodeState:
        """The state of fewer slots: `slots` `[S']` int32 of them."""
        self.compiled["keep"] += 1
        prompts, own = state.prompts, state._replace(prompts=None)
        if prompts is not None:
            shared = len(state.active) // len(prompts.length)
            prompts = jax.tree.map(lambda x: x[slots // shared], prompts)
        own = jax.tree.map(lambda x: x[slots], own)
        return spread(own._replace(prompts=prompts))

    def _decode(
        self,
        weights: DecodeWeights,
        state: DecodeState,
        call: CallArrays,
        free_enough: jax.Array | np.ndarray,
        *,
        truncated: bool,
    ) -> tuple[DecodeState, Progress]:
        """Decode until all slots are done, enough are free, or one is full.

        The whole cache is read, so it should have little more room than is needed: a part of it
        would be copied before it is read, in every layer and step.

        Args:
            weights: as `prepare` gives them.
            state: the slots.
            call: what the call chose.
            free_enough: scalar int32, number of free slots at which to return; below 0: when a
                share of those that grow has ended, of `FREE_SHARE`.
            truncated: static; see `sample`.
        """
        self.compiled["decode"] += 1
        states = jax.tree.unflatten(self._decode_structure, weights.arrays)
        model = nnx.merge(self._decode_graph, *states)
        # For every place at once: a hash in every step would be one more loop in each.
        starts = state.starts()
        noise = spread(noise_ahead(state.keys, starts, state.cache.capacity))

        growing = jnp.sum(state.active)
        share = len(state.active) - growing + jnp.maximum(1, growing // FREE_SHARE)
        enough = jnp.where(jnp.asarray(free_enough) < 0, share, free_enough)
        enough = jnp.minimum(enough, len(state.active))

        def goes_on(state: DecodeState) -> jax.Array:
            free = jnp.sum(~state.active)
            furthest = jnp.max(jnp.where(state.active, state.position - starts, 0))
            return (free < enough) & (furthest < state.cache.capacity)

        def step(state: DecodeState) -> DecodeState:
            inputs = state.token[:, None], state.position[:, None]
            hidden, cache = model(*inputs, cache=state.cache, prompts=state.prompts)
            state = state._replace(cache=cache)
            logits = self._logits(hidden[:, 0], weights.head)
            place = (state.position - starts)[:, None, None]
            here = jnp.take_along_axis(noise, place, 1, mode="clip")[:, 0]
            return spread(_append(state, logits, here, state.active, call, truncated=truncated))

        state = jax.lax.while_loop(goes_on, step, state)
        return state, Progress.of(state)


def _append(
    state: DecodeState,
    logits: jax.Array,
    noise: jax.Array,
    rows: jax.Array,
    call: CallArrays,
    *,
    truncated: bool,
) -> DecodeState:
    """Sample the next token of the given rows, keep it with its logp, end what has ended.

    Args:
        state: the slots.
        logits: `[V, S]` float32.
        noise: `[S, 2]` float32.
        rows: `[S]` bool, which slots take part.
        call: what the call chose.
        truncated: static; see `sample`.
    """
    token, logp = sample(logits, noise, call.sampling, truncated=truncated)
    stop = (token[:, None] == call.sampling.stop_ids).any(axis=1)
    count = state.count + rows
    # A row that does not take part writes outside, where the write is dropped.
    index = jnp.where(rows, state.count, state.tokens.shape[1])
    # Row by row, as `write_slots` does.
    keep = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))
    return state._replace(
        token=jnp.where(rows, token, state.token),
        position=state.position + rows,
        count=count,
        active=jnp.where(rows, ~stop & (count < call.limit), state.active),
        stopped=jnp.where(rows, stop, state.stopped),
        tokens=keep(state.tokens, index, token),
        logps=keep(state.logps, index, logp),
    )
