"""How a coefficient adapts from step to step, on the host, in Python floats.

A controller reads a step's metrics by their names: `kl`, the mean over actions of the estimated
KL from the reference; `entropy`, the mean over actions; `sequences`, how many completions the step
had. A metric that is missing or not finite is an error: a coefficient that stands still without
a word would look like one that has converged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..registry import ZootomyError, register
from .checks import above
from .types import Controller


def metric(controller: str, metrics: Mapping[str, Any], name: str) -> float:
    """A step's metric as a float.

    Raises:
        ZootomyError: if it is missing or not finite.
    """
    if name not in metrics:
        known = ", ".join(sorted(metrics)) or "none"
        raise ZootomyError(f"{controller} needs the metric {name!r}; this step has: {known}.")
    value = float(metrics[name])
    if not math.isfinite(value):
        raise ZootomyError(
            f"{controller} got {name} = {value}; the coefficient cannot follow it. "
            f"Look for the step's first metric that is not finite."
        )
    return value


@register("controller", "constant", aliases=("fixed",))
def constant(*, coef: float = 0.0) -> Controller:
    """The coefficient stays as it is.

        c ← c

    Args:
        coef: the coefficient.

    Returns:
        `Controller`.

    Source: none needed.
    """

    def init() -> dict[str, float]:
        return {"coefficient": coef}

    def update(
        state: dict[str, float], metrics: Mapping[str, Any]
    ) -> tuple[dict[str, float], float]:
        return state, state["coefficient"]

    return Controller(init, update)


@register(
    "controller",
    "adaptive_kl",
    aliases=("adaptive",),
    paper="arXiv:1909.08593",
    needs=("reference",),
)
def adaptive_kl(
    *,
    coef: float = 0.001,
    target: float = 0.1,
    horizon: int = 10000,
    n_steps: int | None = None,
    limit: float = 0.2,
) -> Controller:
    """The coefficient grows while the KL is above its target, and shrinks while it is below.

        c ← c · (1 + clip(kl / target − 1, −limit, limit) · n / horizon)

    Reads the metric `kl`, and `sequences` if `n_steps` is None.

    Args:
        coef: the coefficient to start with.
        target: the KL to hold, in nats a token.
        horizon: over how many completions a deviation of 1 multiplies the coefficient by e.
        n_steps: completions a step (n); None reads them from the metric `sequences`.
        limit: the deviation from the target, relative to it, that counts at most.

    Returns:
        `Controller`.

    Raises:
        ZootomyError: for a target, horizon or limit that is not positive.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    above("adaptive_kl", "target", target)
    above("adaptive_kl", "horizon", horizon)
    above("adaptive_kl", "limit", limit)

    def init() -> dict[str, float]:
        return {"coefficient": coef}

    def update(
        state: dict[str, float], metrics: Mapping[str, Any]
    ) -> tuple[dict[str, float], float]:
        error = metric("adaptive_kl", metrics, "kl") / target - 1.0
        error = min(max(error, -limit), limit)
        n = metric("adaptive_kl", metrics, "sequences") if n_steps is None else n_steps
        coefficient = state["coefficient"] * (1.0 + error * n / horizon)
        return {**state, "coefficient": coefficient}, coefficient

    return Controller(init, update)
