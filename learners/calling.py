"""How the assembled functions call blocks, and what they are given beside arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..registry import BlockSpec, ZootomyError, bind, describe, unknown_name
from .algorithm import Algorithm


def call(slot: str, spec: BlockSpec, inputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A block with its hyperparameters and the extra inputs it asks for filled in.

    Raises:
        ZootomyError: if it asks for an input that is not at hand.
    """
    info = describe(slot, spec.name)
    at_hand = {name: value for name, value in inputs.items() if value is not None}
    for name in info.extras:
        if name not in at_hand:
            raise ZootomyError(
                f"{slot} {spec.name!r} asks for the input {name!r}, which is not at hand there; "
                f"there are: {', '.join(sorted(at_hand)) or 'none'}."
            )
    extras = {name: at_hand[name] for name in info.extras}
    return partial(info.function, **extras, **bind(slot, spec))


def one(value: Any) -> BlockSpec:
    """The block in a slot that holds exactly one."""
    assert isinstance(value, BlockSpec)
    return value


def check_coefficients(algorithm: Algorithm, coefficients: Mapping[str, Any]) -> None:
    """Refuse a coefficient that nothing reads, and the lack of one that a controller steers.

    Raises:
        ZootomyError: naming it.
    """
    steered = algorithm.controllers
    known = ["kl", *(f"regularizer.{spec.name}" for spec in algorithm.value("regularizer"))]
    for name in coefficients:
        if name not in known:
            raise unknown_name("coefficient", name, known)
    if algorithm.kl_placement != "none" and "kl" not in coefficients:
        raise ZootomyError(
            f"kl_placement is {algorithm.kl_placement!r}, but coefficients has no 'kl'; "
            f"give {{'kl': {steered['kl'].hyperparameters.get('coef', 0.0)}}}."
        )
    for name in steered:
        if name != "kl" and name not in coefficients:
            raise ZootomyError(
                f"{name}.coef is steered by the controller {steered[name].name!r}, but "
                f"coefficients has no {name!r}; give its state's 'coefficient'."
            )
