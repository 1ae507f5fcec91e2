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
from .checks import above, in_order
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


@register("controller", "kl_window", needs=("reference",))
def kl_window(
    *,
    coef: float = 0.001,
    low: float = 0.01,
    high: float = 0.1,
    factor: float = 1.5,
    minimum: float = 1e-6,
    maximum: float = 10.0,
) -> Controller:
    """The coefficient is multiplied while the KL is above a window, divided while it is below.

        c ← min(c · factor, maximum)   where kl > high
        c ← max(c / factor, minimum)   where kl < low,   else c

    Reads the metric `kl`. Schulman's rule is a window of target/1.5 to target·1.5 with factor 2.

    Args:
        coef: the coefficient to start with.
        low: lower end of the window, in nats a token.
        high: upper end of the window, in nats a token.
        factor: what to multiply or divide by, above 1.
        minimum: the least coefficient.
        maximum: the greatest coefficient.

    Returns:
        `Controller`.

    Raises:
        ZootomyError: for a window or bounds upside down, or a factor that is not above 1.

    Source: Schulman et al. 2017, PPO with an adaptive KL penalty, arXiv:1707.06347, section 4.
    """
    in_order("kl_window", ("low", "high"), low, high)
    in_order("kl_window", ("minimum", "maximum"), minimum, maximum)
    above("kl_window", "factor", factor, 1.0)

    def init() -> dict[str, float]:
        return {"coefficient": coef}

    def update(
        state: dict[str, float], metrics: Mapping[str, Any]
    ) -> tuple[dict[str, float], float]:
        kl = metric("kl_window", metrics, "kl")
        coefficient = state["coefficient"]
        if kl > high:
            coefficient = min(coefficient * factor, maximum)
        elif kl < low:
            coefficient = max(coefficient / factor, minimum)
        return {**state, "coefficient": coefficient}, coefficient

    return Controller(init, update)


@register("controller", "entropy_target", aliases=("adaptive_entropy",), paper="arXiv:2505.22312")
def entropy_target(
    *,
    coef: float = 0.0,
    target: float = 0.2,
    delta: float = 0.005,
    minimum: float = 0.0,
    maximum: float = 1.0,
    gated: bool = True,
) -> Controller:
    """The coefficient of an entropy bonus grows by steps while the entropy is below its target.

    As in TRL the bonus is switched off while the entropy is above the target, and before the
    first step; `gated=False` goes on with what the level has come to.

        level ← min(level + delta, maximum)   where H ≤ target
        level ← max(level − delta, minimum)   where H > target
        c = level where H ≤ target or not gated, else 0

    Reads the metric `entropy`.

    Args:
        coef: the level to start with.
        target: the entropy to hold, in nats a token.
        delta: by how much the level moves a step.
        minimum: the least level.
        maximum: the greatest level.
        gated: whether the bonus is off while the entropy is above the target.

    Returns:
        `Controller`; its state has the entry `level` beside `coefficient`.

    Raises:
        ZootomyError: for bounds upside down, or a `delta` that is not positive.

    Source: He et al. 2025, Skywork Open Reasoner 1, arXiv:2505.22312, section 4.
    """
    in_order("entropy_target", ("minimum", "maximum"), minimum, maximum)
    above("entropy_target", "delta", delta)

    def init() -> dict[str, float]:
        return {"coefficient": 0.0 if gated else coef, "level": coef}

    def update(
        state: dict[str, float], metrics: Mapping[str, Any]
    ) -> tuple[dict[str, float], float]:
        is_low = metric("entropy_target", metrics, "entropy") <= target
        if is_low:
            level = min(state["level"] + delta, maximum)
        else:
            level = max(state["level"] - delta, minimum)
        coefficient = level if is_low or not gated else 0.0
        return {"coefficient": coefficient, "level": level}, coefficient

    return Controller(init, update)
