"""The functions of an assembly in the form in which the cluster compiles them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from ..clusters import LossFunction, ModelOutputs
from ..models import Head
from .algorithm import Algorithm
from .arrays import Rollouts
from .assembly import assemble
from .gather import REF_HEAD
from .objective import Loss, Outputs

# What a part of the loss is called among the metrics.
PART = "part of the loss: "


class Programs(NamedTuple):
    """The functions of an assembly: two compiled, and three for the cluster's own programs.

    Attributes:
        experience: `(rollouts, coefficients, weighted)` to what the assembly makes of them, and the
            tokens' weights if the whole batch is one mini-batch, else None.
        weights: of a mini-batch's tokens.
        actor_loss: its batch is (experience, weights, the reference's hidden states or None).
        critic_loss: likewise, without hidden states.
        shared_loss: of an actor whose outputs hold values too; its batch is the actor's.
        before: what is read of the actor's pass before the update, where the distance is measured
            in it; its batch is (the reference's hidden states, inputs by name).
    """

    experience: Callable[..., Any]
    weights: Callable[..., Any]
    actor_loss: LossFunction
    critic_loss: LossFunction
    shared_loss: LossFunction
    before: Callable[..., dict[str, jax.Array]]


@functools.lru_cache(maxsize=32)
def programs_of(algorithm: Algorithm, blocks: tuple[Callable[..., Any], ...]) -> Programs:
    """One set an algorithm, so that runs of other seeds in one process compile nothing anew.

    Args:
        algorithm: the algorithm.
        blocks: the functions that its names stand for at present.
    """
    assembly = assemble(algorithm)

    def experience(rollouts: Rollouts, coefficients: Mapping[str, Any], weighted: bool):
        found, metrics = assembly.experience(rollouts, coefficients)
        weights = assembly.weights(found.counted, found.group_ids) if weighted else None
        return found, metrics, weights

    def actor_loss(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        experience, weights, ref_hidden = batch
        given, coefficients = _outputs(outputs, ref_hidden, coefficients)
        loss = assembly.objective(given, experience, coefficients, weights)
        return loss.total, _flatten(loss)

    def shared_loss(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        experience, weights, ref_hidden = batch
        given, coefficients = _outputs(outputs, ref_hidden, coefficients)
        given = given._replace(values=outputs.values)
        loss = assembly.objective(given, experience, coefficients, weights)
        return loss.total, _flatten(loss)

    def before(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        ref_hidden, inputs = batch
        given, _ = _outputs(outputs, ref_hidden, coefficients)
        said = {"old_logp": outputs.logp, "entropy": outputs.entropy,
                "sum_pi_squared": outputs.sum_pi_squared}  # fmt: skip
        known = {name: x for name, x in said.items() if x is not None}
        return {"kl": assembly.distance(given, {**inputs, **known}), **known}

    def critic_loss(outputs: ModelOutputs, batch: Any, coefficients: Mapping[str, Any]):
        experience, weights, _ = batch
        given = Outputs(values=outputs.values)
        loss = assembly.objective(given, experience, coefficients, weights)
        return loss.total, _flatten(loss)

    return Programs(
        jax.jit(experience, static_argnums=2),
        jax.jit(assembly.weights),
        actor_loss,
        critic_loss,
        shared_loss,
        before,
    )


def _outputs(
    outputs: ModelOutputs, ref_hidden: Any, coefficients: Mapping[str, Any]
) -> tuple[Outputs, dict[str, Any]]:
    """What the assembly is given of a pass, and the coefficients that are numbers."""
    numbers = dict(coefficients)
    kernel, policy = numbers.pop(REF_HEAD, None), outputs.head
    reference = None
    if ref_hidden is not None and policy is not None:
        reference = Head(ref_hidden, kernel, policy.temperature)
    given = Outputs(outputs.logp, outputs.entropy, None, policy, reference)
    return given, numbers


def _flatten(loss: Loss) -> dict[str, tuple[Any, Any]]:
    """Parts and metrics in the one form that adds up over micro-batches.

    A part of the loss is a sum and no mean: its name says so, and its weight is not read.
    """
    return {**{f"{PART}{name}": (part, 1.0) for name, part in loss.parts.items()}, **loss.metrics}
