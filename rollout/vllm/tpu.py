"""vLLM on TPUs (tpu-inference): weights go from JAX arrays to JAX arrays, no host in between.

Written against tpu-inference 0.32 and tried on stand-ins of its state only: docs/rollout.md has a
checklist for the first run on a TPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ...models import HEAD, ModelConfig, huggingface_name
from ...registry import ZootomyError
from ..names import Layout, Rule, Shape, check_names, translate

LANES = 128  # head sizes are padded to multiples of this ...
UNPADDED = 64  # ... but for this one


def padded_head(head_dim: int) -> int:
    """The head size that tpu-inference stores.

    >>> [padded_head(size) for size in (32, 64, 80, 128, 192)]
    [128, 64, 128, 128, 256]
    """
    return head_dim if head_dim == UNPADDED else -(-head_dim // LANES) * LANES


def arrange(kernel: Any, layout: Layout, config: ModelConfig) -> jax.Array:
    """A kernel of ours, `[in, out]`, in one of its layouts.

    Args:
        kernel: `[in, out]`.
        layout: `heads_out` gives `[in, heads, head]`, `heads_in` `[heads, head, out]`, with the
            head size padded by zeros; `in_out` is ours.
        config: sizes of the policy.

    Returns:
        The array; a projection's zeros change no result.
    """
    array = jnp.asarray(kernel)
    size, extra = config.head_dim, padded_head(config.head_dim) - config.head_dim
    if layout == "out_in":
        return array.T
    if layout == "heads_out":
        split = array.reshape(array.shape[0], -1, size)
        return jnp.pad(split, ((0, 0), (0, 0), (0, extra)))
    if layout == "heads_in":
        split = array.reshape(-1, size, array.shape[1])
        return jnp.pad(split, ((0, 0), (0, extra), (0, 0)))
    return array


def tpu_arrays(
    named: Mapping[str, Any], config: ModelConfig, rules: tuple[Rule, ...]
) -> dict[str, jax.Array]:
    """Our parameters under tpu-inference's names and in its layouts.

    Biases and norms over a head are padded as its projections are: by zeros.

    Raises:
        ZootomyError: for an adapter that was not merged, or a name without a rule.
    """
    extra = padded_head(config.head_dim) - config.head_dim
    found: dict[str, jax.Array] = {}
    for path, array in named.items():
        try:
            name, transposed = huggingface_name(path.split("."))
        except ValueError as error:
            raise ZootomyError(str(error)) from error
        target, layout = translate(name, rules)
        if transposed:
            found[target] = arrange(array, layout, config)
        elif re.fullmatch(r".*\.[qkv]_proj\.bias", name):
            split = jnp.asarray(array).reshape(-1, config.head_dim)
            found[target] = jnp.pad(split, ((0, 0), (0, extra)))
        elif re.fullmatch(r".*\.[qk]_norm\.weight", name):
            found[target] = jnp.pad(jnp.asarray(array), (0, extra))
        else:
            found[target] = jnp.asarray(array)
    return found


def exchange(state: nnx.State, arrays: Mapping[str, jax.Array], config: ModelConfig) -> None:
    """Put arrays into the runner's state: its dtypes, its shardings, its vocabulary's padding.

    All are checked and placed before the first is exchanged.

    Args:
        state: `model_runner.state`.
        arrays: by name, from `tpu_arrays`.
        config: sizes of the policy.

    Raises:
        ZootomyError: listing names that are missing, extra or misshapen.
    """
    held = {
        ".".join(str(part) for part in path): leaf
        for path, leaf in nnx.to_flat_state(state)
        if isinstance(leaf, nnx.Variable) and isinstance(leaf, nnx.Param)
    }
    theirs: dict[str, Shape | None] = {name: tuple(leaf[...].shape) for name, leaf in held.items()}
    ours = {name: tuple(array.shape) for name, array in arrays.items()}
    vocabulary = {name for name, shape in ours.items() if config.vocab_size in shape}
    padded = {name: _pad_vocabulary(x, theirs.get(name), name in vocabulary)
              for name, x in arrays.items()}  # fmt: skip
    check_names(
        "vllm (tpu-inference)",
        {name: tuple(x.shape) for name, x in padded.items()},
        theirs,
        padded=lambda name: False,
        optional=(HEAD, "model.lm_head"),
    )
    placed = {
        name: jax.device_put(padded[name].astype(leaf[...].dtype), leaf[...].sharding)
        for name, leaf in held.items()
    }
    for name, leaf in held.items():
        leaf.set_value(placed[name])


def update(
    llm: Any, named: Mapping[str, Any], config: ModelConfig, rules: tuple[Rule, ...]
) -> None:
    """New weights for a running vLLM on TPUs.

    The cache is given up first, so that its memory holds the arrays on their way.
    """
    arrays = tpu_arrays(named, config, rules)
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    llm.reset_prefix_cache()
    llm.collective_rpc("delete_kv_cache")
    try:
        exchange(runner.state, arrays, config)
        # Its programs take a flat list of the state's leaves.
        if hasattr(runner, "refresh_model_state_leaves"):
            runner.refresh_model_state_leaves()
        elif hasattr(runner, "state_leaves"):
            runner.state_leaves = tuple(jax.tree.leaves(runner.state))
    finally:
        llm.collective_rpc("reinitialize_kv_cache")


def _pad_vocabulary(array: jax.Array, wanted: Shape | None, applies: bool) -> jax.Array:
    if not applies or wanted is None or len(wanted) != array.ndim:
        return array
    widths = [(0, max(0, theirs - ours)) for theirs, ours in zip(wanted, array.shape, strict=True)]
    return jnp.pad(array, widths)
