"""What the programs of the vanilla engine pass on: prompts that were read, slots, weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..models import KVCache, PromptCache, constrain
from .sampling import SamplingArrays


class PromptBatch(NamedTuple):
    """Prompts that were read once, for all the completions that start from them.

    Attributes:
        cache: keys and values, P rows of W slots.
        logits: `[P, V]` float32, after the last token of each prompt.
    """

    cache: KVCache
    logits: jax.Array


class DecodeWeights(NamedTuple):
    """Weights as the decode program reads them.

    Attributes:
        arrays: all that the model holds, its projections joined where that is faster; a plain
            tuple, since every call of a program goes through its arguments.
        head: `[D, V]`, or `[V, D]` where that is faster.
    """

    arrays: tuple[jax.Array, ...]
    head: jax.Array


class Fill(NamedTuple):
    """Which prompts are new, and with each the completions in all slots that start from it.

    Where each slot holds its own prompt, P is S.

    Attributes:
        source: `[P]` int32, row of the prompt batch; -1 leaves a prompt and its slots as they are.
        length: `[P]` int32, tokens of the prompt.
        owner: `[S, 2]` int32, index of the request and of the completion.
        seed: `[K]` uint32 of which the key of the call is made, here and not in a program before:
            that would be waited for.
    """

    source: jax.Array | np.ndarray
    length: jax.Array | np.ndarray
    owner: jax.Array | np.ndarray
    seed: jax.Array | np.ndarray


class DecodeState(NamedTuple):
    """The slots, their keys and values, and what was sampled so far.

    Attributes:
        prompts: P of them; slot s starts from prompt s // (S / P). None: each slot holds its own.
        cache: S rows, of what comes after the prompts, or of all.
        token: `[S]` int32, the last sampled token, not yet read by the model.
        position: `[S]` int32, where that token stands in its row.
        count: `[S]` int32, tokens sampled.
        active: `[S]` bool, whether the completion goes on.
        stopped: `[S]` bool, whether it ended on a stop id.
        keys: `[S, 2]` uint32, a noise key for each completion.
        tokens: `[S, T]` int32, the sampled tokens.
        logps: `[S, T]` float32.
    """

    prompts: PromptCache | None
    cache: KVCache
    token: jax.Array
    position: jax.Array
    count: jax.Array
    active: jax.Array
    stopped: jax.Array
    keys: jax.Array
    tokens: jax.Array
    logps: jax.Array

    def starts(self) -> jax.Array:
        """`[S]` int32: the position of each slot's first token."""
        rows = self.cache.batch
        return jnp.zeros(rows, jnp.int32) if self.prompts is None else self.prompts.starts(rows)


class Progress(NamedTuple):
    """What the host reads of a decode state, in arrays of its own: the state goes on without it.

    Attributes:
        active: as of `DecodeState`, like the others.
        stopped: likewise.
        count: likewise.
        tokens: likewise.
        logps: likewise.
    """

    active: jax.Array
    stopped: jax.Array
    count: jax.Array
    tokens: jax.Array
    logps: jax.Array

    @classmethod
    def of(cls, state: DecodeState) -> Progress:
        """Of a state."""
        return cls(*(state._asdict()[name] for name in cls._fields))


class CallArrays(NamedTuple):
    """What one call of `generate` chooses.

    Attributes:
        sampling: how tokens are drawn.
        limit: scalar int32, tokens a completion.
    """

    sampling: SamplingArrays
    limit: jax.Array | np.ndarray


def spread(tree: Any) -> Any:
    """Slots over a mesh's rows, and the heads of a cache over its `tensor`; see `constrain`."""

    def place(x: jax.Array) -> jax.Array:
        return constrain(x, "rows", "heads") if x.ndim == 4 else constrain(x, "rows")

    return jax.tree.map(place, tree)
