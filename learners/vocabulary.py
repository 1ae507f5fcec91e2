"""Blocks that need whole distributions, applied a few tokens at a time.

Such a block names `logits` among its needs. Its `logp` and `ref_logp` are then log-probabilities of
every token of the vocabulary, with an axis more than usual, and it takes each token alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..models import Distributions, map_distributions
from ..registry import BlockSpec, ZootomyError, describe, slot
from .algorithm import Algorithm
from .calling import filled

NEED = "logits"
# The slots whose blocks can be given whole distributions: of the policy now, and of the reference.
SLOTS = ("kl_estimator", "regularizer")


def is_over_vocabulary(slot_name: str, spec: BlockSpec) -> bool:
    """Whether a block, with these hyperparameters, needs whole distributions."""
    return NEED in describe(slot_name, spec.name).needs_with(spec.hyperparameters)


def before_the_update(algorithm: Algorithm) -> bool:
    """Whether the distance in the reward or the advantage is one over the vocabulary."""
    estimator = algorithm.value("kl_estimator")
    placed = algorithm.kl_placement in ("reward", "advantage")
    return placed and is_over_vocabulary("kl_estimator", estimator)


def in_the_update(algorithm: Algorithm) -> list[str]:
    """The terms of the loss that need whole distributions."""
    specs = [("regularizer", spec) for spec in algorithm.value("regularizer")]
    if algorithm.kl_placement == "loss":
        specs.append(("kl_estimator", algorithm.value("kl_estimator")))
    return [f"{place} {spec.name!r}" for place, spec in specs if is_over_vocabulary(place, spec)]


def over_vocabulary(
    slot_name: str,
    spec: BlockSpec,
    inputs: Mapping[str, Any],
    policy: Distributions,
    reference: Distributions | None,
    mask: jax.Array,
) -> jax.Array:
    """A block at every action, a chunk of actions at a time.

    Args:
        slot_name: `kl_estimator` or `regularizer`.
        spec: the block.
        inputs: what blocks may ask for, `[N, T]` or `[N]` by name.
        policy: the policy's distributions.
        reference: the reference's, or None.
        mask: `[N, T]` 1 on actions.

    Returns:
        `[N, T]` float32, 0 where the mask is 0.

    Raises:
        ZootomyError: if the block asks for an input that is not at hand, or returns another shape.
    """
    filled(slot_name, spec, inputs)  # what is missing is named with all that is there
    others = slot(slot_name).inputs[2:]
    asked = {*others, *describe(slot_name, spec.name).extras}
    given = {name: jnp.asarray(x) for name, x in inputs.items() if name in asked and x is not None}

    def evaluate(
        logp: jax.Array, ref_logp: jax.Array | None, part: dict[str, jax.Array]
    ) -> jax.Array:
        block = filled(slot_name, spec, part)
        return block(logp, ref_logp, *(part.get(name) for name in others))

    return map_distributions(evaluate, policy, reference, given, mask)


def check_vocabulary(algorithm: Algorithm) -> None:
    """Refuse blocks that need whole distributions where nobody could give them.

    Raises:
        ZootomyError: with a sentence that says what to change.
    """
    for slot_name, spec in algorithm.specs():
        if not is_over_vocabulary(slot_name, spec):
            continue
        if slot_name not in SLOTS:
            raise ZootomyError(
                f"{slot_name} {spec.name!r} needs {NEED}, and only blocks of {' and '.join(SLOTS)} "
                f"are given whole distributions. Write it as a regularizer."
            )
        if describe(slot_name, spec.name).logs:
            raise ZootomyError(
                f"{slot_name} {spec.name!r} needs {NEED} and is registered with metrics=True, but "
                f"whole distributions exist for a few tokens at a time alone, and metrics are of a "
                f"whole batch. Register it without metrics."
            )
        if "whole_batch" in describe(slot_name, spec.name).needs:
            raise ZootomyError(
                f"{slot_name} {spec.name!r} needs both {NEED} and whole_batch, but whole "
                f"distributions exist for a few tokens at a time alone. Let it take each token "
                f"alone, or do with the sampled tokens' log-probabilities."
            )
        best = "top_k" in (spec.name, spec.hyperparameters.get("estimator"))
        if best and spec.hyperparameters.get("k", 0) is None:
            raise ZootomyError(
                f"{slot_name} {spec.name!r} over the teacher's best tokens needs to know how many: "
                f"set its k (64 is usual), or take 'full' for all of them."
            )
