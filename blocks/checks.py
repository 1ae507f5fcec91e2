"""Checks at a block's boundary: wrong shapes and numbers end in a sentence, not in a result."""

from __future__ import annotations

import jax

from ..registry import ZootomyError


def same_shape(block: str, **arrays: jax.Array | None) -> None:
    """Refuse arrays of different shapes, which would otherwise be broadcast silently.

    Args:
        block: the block's name, for the message.
        **arrays: argument name -> array; None is left out.

    Raises:
        ZootomyError: naming the two arguments that differ and their shapes.
    """
    given = [(name, array.shape) for name, array in arrays.items() if array is not None]
    first, shape = given[0]
    for name, other in given[1:]:
        if other != shape:
            raise ZootomyError(
                f"{block}: {name} has shape {list(other)}, but {first} has {list(shape)}; "
                f"give arrays of one shape."
            )


def at_least(block: str, name: str, value: float | None, bound: float) -> None:
    """Refuse a hyperparameter below its bound; None passes.

    Raises:
        ZootomyError: naming the hyperparameter, the value and the bound.
    """
    if isinstance(value, int | float) and value < bound:
        raise ZootomyError(f"{block}: {name} must be at least {bound:g}, got {value!r}.")


def above(block: str, name: str, value: float | None, bound: float = 0.0) -> None:
    """Refuse a hyperparameter that is not above its bound; None passes.

    Raises:
        ZootomyError: naming the hyperparameter, the value and the bound.
    """
    if isinstance(value, int | float) and not value > bound:
        raise ZootomyError(f"{block}: {name} must be above {bound:g}, got {value!r}.")


def in_order(block: str, names: tuple[str, str], low: float | None, high: float | None) -> None:
    """Refuse a lower bound that is not below its upper bound; None is no bound.

    Raises:
        ZootomyError: naming both hyperparameters and their values.
    """
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        raise ZootomyError(
            f"{block}: {names[0]} must be below {names[1]}, got {low!r} and {high!r}."
        )


def required(block: str, name: str, array: jax.Array | None, remedy: str) -> jax.Array:
    """The array, or an error where a run did not provide it.

    Raises:
        ZootomyError: naming the argument and what would provide it.
    """
    if array is None:
        raise ZootomyError(f"{block} needs {name}, which is missing; {remedy}.")
    return array


def rank(block: str, name: str, array: jax.Array, axes: str) -> None:
    """Refuse an array without exactly the axes named, e.g. `"P, G"`.

    Raises:
        ZootomyError: naming the argument, its shape and the axes it must have.
    """
    if array.ndim != len(axes.split(",")):
        raise ZootomyError(f"{block}: {name} must be [{axes}], got shape {list(array.shape)}.")


def one_of(block: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is none of the choices; for calls that no spec has checked.

    Raises:
        ZootomyError: naming the hyperparameter, the value and the choices.
    """
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ZootomyError(f"{block}: {name} must be one of {known}; got {value!r}.")
