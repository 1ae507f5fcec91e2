"""How the assembled functions call blocks, and what they are given beside arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..blocks.checks import required
from ..blocks.masking import count, masked_sum
from ..registry import BlockSpec, ZootomyError, bind, describe, unknown_name
from ..registry import slot as find_slot
from .algorithm import Algorithm
from .arrays import Metrics
from .results import check_result

# The name of the value loss's factor among the coefficients.
VALUE = "value_loss"
GIVE = "give it with the rollouts or the outputs"


def call(slot: str, spec: BlockSpec, inputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A block as `filled` gives it, which refuses to return what its slot does not state."""
    function = filled(slot, spec, inputs)

    def run(*arguments: Any) -> Any:
        return check_result(slot, spec.name, function(*arguments), jnp.shape(arguments[0]))

    return run


def filled(slot: str, spec: BlockSpec, inputs: Mapping[str, Any]) -> Callable[..., Any]:
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


def logged(
    slot: str,
    spec: BlockSpec,
    inputs: Mapping[str, Any],
    metrics: Metrics,
    mask: jax.Array,
) -> Callable[..., Any]:
    """A block as `call` gives it, without the metrics it returns: they go into `metrics`.

    Args:
        slot: the slot's name.
        spec: the block.
        inputs: what it may ask for.
        metrics: where its metrics are put, averaged where the mask is 1.
        mask: of the shape of its metrics.

    Raises:
        ZootomyError: for a metric of another shape, or under a name that is taken.
    """
    if not describe(slot, spec.name).logs:
        return call(slot, spec, inputs)
    function = filled(slot, spec, inputs)

    def run(*arguments: Any) -> Any:
        returned = function(*arguments)
        if not (
            isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)
        ):
            raise ZootomyError(
                f"{slot} {spec.name!r} is registered with metrics=True, so it must return "
                f"(value, {{name: array}}); it returned a {type(returned).__name__}."
            )
        value, found = returned
        for name, x in found.items():
            if jnp.shape(x) != mask.shape:
                raise ZootomyError(
                    f"{slot} {spec.name!r}: the metric {name!r} must have shape "
                    f"{list(mask.shape)}, one value for each place of the mask, got "
                    f"{list(jnp.shape(x))}."
                )
            if name in metrics:
                raise ZootomyError(
                    f"{slot} {spec.name!r}: the metric {name!r} is logged already; choose another "
                    f"name."
                )
            metrics[name] = (masked_sum(jax.lax.stop_gradient(x), mask), count(mask))
        return check_result(slot, spec.name, value, jnp.shape(arguments[0]))

    return run


def plugged(
    algorithm: Algorithm,
    after: str,
    value: Any,
    inputs: Mapping[str, Any],
    metrics: Metrics,
    mask: jax.Array,
) -> Any:
    """What the slots of plug-ins that stand after a slot make of its result, one after the other.

    Args:
        algorithm: the algorithm.
        after: the slot.
        value: its result.
        inputs: what the blocks take beside it.
        metrics: where their metrics are put.
        mask: of the shape of their metrics.
    """
    for name, spec in algorithm.plugged:
        place = find_slot(name)
        if place.after != after or not isinstance(spec, BlockSpec):
            continue
        rest = [required(f"{name} {spec.name!r}", x, inputs.get(x), GIVE) for x in place.inputs[1:]]
        value = logged(name, spec, inputs, metrics, mask)(value, *rest)
    return value


def check_coefficients(algorithm: Algorithm, coefficients: Mapping[str, Any]) -> None:
    """Refuse a coefficient that nothing reads, and the lack of one that a controller steers.

    Raises:
        ZootomyError: naming it.
    """
    steered = algorithm.controllers
    known = ["kl", *(f"regularizer.{spec.name}" for spec in algorithm.value("regularizer"))]
    known += [VALUE] if algorithm.value_loss is not None else []
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
