"""What blocks return, held to the shape that their slot states: JAX would broadcast the rest."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..blocks.types import TokenLoss
from ..registry import ZootomyError
from ..registry import slot as find_slot

# These return two arrays.
_PAIRS = ("advantage", "correction")


def check_result(slot: str, name: str, returned: Any, shape: tuple[int, ...]) -> Any:
    """What a block returned, as it is.

    Args:
        slot: the slot's name.
        name: the block's.
        returned: its result.
        shape: of the block's first input, which is that of every array it returns.

    Raises:
        ZootomyError: for another kind of result, or an array of another shape.
    """
    for array in _arrays(slot, name, returned):
        found = jnp.shape(array)
        if found != shape:
            raise ZootomyError(
                f"{slot} {name!r} must return {find_slot(slot).returns or 'one array'}, here of "
                f"shape {list(shape)}, and returned an array of shape {list(found)}."
            )
    return returned


def _arrays(slot: str, name: str, returned: Any) -> tuple[Any, ...]:
    """The arrays of a result; an error where it is of another kind."""
    if slot == "policy_loss":
        if isinstance(returned, TokenLoss):
            return returned.loss, *returned.stats.values()
    elif slot in _PAIRS:
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
    elif hasattr(returned, "shape") or isinstance(returned, int | float):
        return (returned,)
    raise ZootomyError(
        f"{slot} {name!r} must return {find_slot(slot).returns or 'one array'}, and returned a "
        f"{type(returned).__name__}."
    )
