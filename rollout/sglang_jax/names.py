"""SGLang-JAX's names and layouts of Llama, Qwen2 and Qwen3, as data, and arrays made to fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ...models import EMBEDDING, HEAD, ModelConfig, huggingface_name
from ...registry import ZootomyError
from ..names import Rule, Shape, check_names, translate

RULES = (
    Rule(r"model\.embed_tokens\.weight", r"model.embed_tokens.embedding"),
    Rule(r"lm_head\.weight", r"lm_head.embedding"),
    Rule(r"(.*norm)\.weight", r"\1.scale"),
    Rule(r"(.*_proj)\.weight", r"\1.weight", "in_out"),
    Rule(r"(.*)\.bias", r"\1.bias"),
)
PADDED = (translate(EMBEDDING, RULES)[0], translate(HEAD, RULES)[0])
_TO_HEADS, _FROM_HEADS = ("q_proj", "k_proj", "v_proj"), ("o_proj",)


def engine_arrays(
    named: Mapping[str, Any], config: ModelConfig, theirs: Mapping[str, Shape]
) -> dict[str, Any]:
    """Parameters under the engine's names, in its layout and padded to its shapes.

    Args:
        named: ours, by dotted path.
        config: sizes of the policy.
        theirs: shape by name, as the engine holds them.

    Raises:
        ZootomyError: listing names that are missing, extra or misshapen.
    """
    found = {}
    for path, array in named.items():
        try:
            name, transposed = huggingface_name(path.split("."))
        except ValueError as error:
            raise ZootomyError(str(error)) from error
        target, layout = translate(name, RULES)
        # Our kernels lie [in, out] already.
        if transposed and layout != "in_out":
            array = array.T
        shape = theirs.get(target)
        found[target] = array if shape is None else pad_to(array, shape, target, config)
    ours = {name: tuple(array.shape) for name, array in found.items()}
    if config.tie_embeddings and PADDED[1] in theirs:
        found[PADDED[1]] = found[PADDED[0]]
        ours[PADDED[1]] = ours[PADDED[0]]
    check_names("sglang_jax", ours, theirs, padded=lambda name: False, optional=())
    return found


def pad_to(array: Any, shape: Shape, name: str, config: ModelConfig) -> Any:
    """Zeros where the engine has a larger vocabulary or larger heads; else as it is.

    A head of 96 in a slot of 128 keeps its 96 numbers first, in every head.
    """
    if tuple(array.shape) == shape:
        return array
    if name in PADDED and array.shape[1:] == shape[1:] and array.shape[0] < shape[0]:
        return jnp.pad(jnp.asarray(array), ((0, shape[0] - array.shape[0]), (0, 0)))
    module = name.split(".")[-2]
    size = config.head_dim
    axis = array.ndim - 1 if module in _TO_HEADS else 0 if module in _FROM_HEADS else None
    if axis is None or array.ndim != len(shape) or array.shape[axis] % size:
        return array
    heads = array.shape[axis] // size
    if shape[axis] % heads or shape[axis] < array.shape[axis]:
        return array
    split = jnp.asarray(array).reshape(*array.shape[:axis], heads, size, *array.shape[axis + 1 :])
    widths = [(0, 0)] * split.ndim
    widths[axis + 1] = (0, shape[axis] // heads - size)
    return jnp.pad(split, widths).reshape(
        *array.shape[:axis], shape[axis], *array.shape[axis + 1 :]
    )
