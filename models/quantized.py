"""Weights in 4 bits, for a backbone that is not trained."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from ..registry import ZootomyError

TILE = 64


class Frozen(nnx.Variable):
    """Weights in few bits: an array of indices and its scales, which no optimizer sees."""


def quantize(kernel: jax.Array) -> Frozen:
    """A kernel in NF4: the nearest of 16 levels, times the largest entry of each tile.

    Args:
        kernel: `[inputs, outputs]`; a tile is 64 inputs of one output, or the most that divide
            the inputs evenly.

    Raises:
        ZootomyError: if qwix is not installed.
    """
    tile = max(size for size in range(1, TILE + 1) if kernel.shape[0] % size == 0)
    return Frozen(_qwix().quantize(kernel, "nf4", channelwise_axes=(1,), tiled_axes={0: tile}))


def dequantize(frozen: Frozen) -> jax.Array:
    """The kernel that the bits stand for, in the dtype that it had."""
    return _qwix().dequantize(frozen.get_value())


def _qwix() -> Any:
    try:
        import qwix
    except ImportError as error:
        raise ZootomyError(
            "lora.base 'nf4' needs qwix: pip install 'zootomy[lora]', or set lora.base to 'as_is'."
        ) from error
    return qwix
