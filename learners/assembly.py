"""`assemble`: from a config of blocks to two pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from .algorithm import Algorithm
from .arrays import Experience, Metrics, Rollouts
from .experience import make_experience
from .objective import Objective, Outputs, make_distance, make_objective, make_weights


@dataclass(frozen=True)
class Assembly:
    """The functions an algorithm comes down to; unpacks into `experience, objective`.

    Attributes:
        algorithm: what was assembled.
        experience: `(rollouts, coefficients) -> (experience, metrics)`.
        objective: `(outputs, experience, coefficients, weights=None) -> Loss`.
        weights: `(counted [N, T], group_ids [N]) -> [N, T]`, for a whole mini-batch that is
            handed to `objective` in parts.
        distance: `(outputs, inputs) -> [N, T]`, for `Rollouts.kl`, where the distance in the
            reward or the advantage needs whole distributions.
    """

    algorithm: Algorithm
    experience: Callable[[Rollouts, Mapping[str, Any]], tuple[Experience, Metrics]]
    objective: Objective
    weights: Callable[[jax.Array, jax.Array], jax.Array]
    distance: Callable[[Outputs, Mapping[str, Any]], jax.Array]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter((self.experience, self.objective))


def assemble(algorithm: Algorithm) -> Assembly:
    """Two pure, jittable functions: rewards to advantages, and log-probabilities to the loss.

    The learner uses exactly these, and so can anyone's own loop:

        experience, objective = assemble(algorithm("grpo"))
        batch, _ = experience(rollouts, {"kl": 0.04})
        loss = objective(Outputs(logp=logp), batch, {"kl": 0.04})

    Args:
        algorithm: the algorithm.

    Returns:
        The assembly.
    """
    return Assembly(
        algorithm,
        make_experience(algorithm),
        make_objective(algorithm),
        make_weights(algorithm),
        make_distance(algorithm),
    )
