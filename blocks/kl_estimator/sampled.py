"""Estimators from the log-probabilities of the sampled tokens alone."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import register
from ..checks import above, same_shape
from ..numerics import saturating_exp, with_gradient_of

Gradient = Literal["value", "k2"]
Estimator = Literal["k1", "k2", "k3", "abs"]


@register("kl_estimator", "k1", paper="http://joschu.net/blog/kl-approx.html")
def k1(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    clamp_out: float | None = None,
    gradient: Gradient = "value",
) -> jax.Array:
    """The plain log-ratio: unbiased, noisy, and negative at times.

        d = logπ − logπ_ref,   kl = d

    As a loss its own gradient is ∇logπ whatever the reference, zero in expectation: use it in
    the reward, or with `gradient="k2"`.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` log-probabilities under the reference, in nats.
        clamp_out: bound on the result, `[-clamp_out, clamp_out]`; no gradient beyond it.
            OpenRLHF and AReaL 10, others none.
        gradient: "value" differentiates the value; "k2" keeps the value and takes the gradient
            of d²/2, that of the true KL for tokens sampled from π (verl's "+").

    Returns:
        `[N, T]` float32, in nats. Takes no mask: entries that are no actions are the caller's.

    Raises:
        ZootomyError: if the shapes differ or `clamp_out` is not positive.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html.

    >>> k1(jnp.array([[-1.0]]), jnp.array([[-0.5]])).tolist()
    [[-0.5]]
    """
    d = difference("k1", logp, ref_logp)
    return _finish("k1", d, d, clamp_out, gradient)


@register("kl_estimator", "abs", paper="http://joschu.net/blog/kl-approx.html")
def absolute(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    clamp_out: float | None = None,
    gradient: Gradient = "value",
) -> jax.Array:
    """The size of the log-ratio: a distance, not an unbiased estimate of the KL.

        d = logπ − logπ_ref,   kl = |d|

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` log-probabilities under the reference, in nats.
        clamp_out: upper bound on the result; no gradient beyond it.
        gradient: "value" (the sign of d, 0 at 0) or "k2" (d).

    Returns:
        `[N, T]` float32, in nats.

    Raises:
        ZootomyError: if the shapes differ or `clamp_out` is not positive.

    Source: the "abs" penalty of TRL and verl.

    >>> absolute(jnp.array([[-1.0]]), jnp.array([[-0.5]])).tolist()
    [[0.5]]
    """
    d = difference("abs", logp, ref_logp)
    return _finish("abs", jnp.abs(d), d, clamp_out, gradient)


@register("kl_estimator", "k2", aliases=("mse",), paper="http://joschu.net/blog/kl-approx.html")
def k2(logp: jax.Array, ref_logp: jax.Array, *, clamp_out: float | None = None) -> jax.Array:
    """Half the squared log-ratio: biased, positive, and its gradient is that of the true KL.

        d = logπ − logπ_ref,   kl = d² / 2

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` log-probabilities under the reference, in nats.
        clamp_out: upper bound on the result; no gradient beyond it.

    Returns:
        `[N, T]` float32.

    Raises:
        ZootomyError: if the shapes differ or `clamp_out` is not positive.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html.

    >>> k2(jnp.array([[-1.0]]), jnp.array([[-0.5]])).tolist()
    [[0.125]]
    """
    d = difference("k2", logp, ref_logp)
    return _finish("k2", 0.5 * jnp.square(d), d, clamp_out, "value")


@register(
    "kl_estimator", "k3", aliases=("low_var_kl",), paper="http://joschu.net/blog/kl-approx.html"
)
def k3(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    clamp: float = 20.0,
    clamp_out: float | None = None,
    gradient: Gradient = "value",
) -> jax.Array:
    """Unbiased and never negative: the estimator of GRPO.

        d = logπ − logπ_ref,   kl = exp(−d) + d − 1

    The exponent is bounded by `clamp`, and the derivative beyond it is that at the bound,
    1 − exp(clamp): at d = −100 the value is about exp(20) and the token is still pulled back.
    (A clip whose derivative is 0 would let it go; one on the exponent alone would push it away,
    as the derivative of d remains.) verl, SkyRL and OpenRLHF clip d and the output
    (`clamp_out=10`); TRL and Tunix bound nothing (`clamp=inf`) and overflow beyond d = −88.

    Args:
        logp: `[N, T]` log-probabilities under the policy, in nats.
        ref_logp: `[N, T]` log-probabilities under the reference, in nats.
        clamp: bound on the exponent −d before exp.
        clamp_out: upper bound on the result; no gradient beyond it. verl, SkyRL, OpenRLHF and
            AReaL 10.
        gradient: "value" (1 − exp(−d)) or "k2" (d).

    Returns:
        `[N, T]` float32, ≥ 0.

    Raises:
        ZootomyError: if the shapes differ, or `clamp` or `clamp_out` is not positive.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; GRPO, arXiv:2402.03300.

    >>> round(float(k3(jnp.array([[-1.0]]), jnp.array([[-0.5]]))[0, 0]), 4)
    0.1487
    """
    above("k3", "clamp", clamp)
    d = difference("k3", logp, ref_logp)
    return _finish("k3", saturating_exp(-d, clamp) + d - 1.0, d, clamp_out, gradient)


def estimate(
    estimator: Estimator,
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    clamp: float,
    clamp_out: float | None,
    gradient: Gradient = "value",
) -> jax.Array:
    """An estimator by its name; arguments as in the blocks, those it does not have left out."""
    if estimator == "k3":
        return k3(logp, ref_logp, clamp=clamp, clamp_out=clamp_out, gradient=gradient)
    if estimator == "k2":
        return k2(logp, ref_logp, clamp_out=clamp_out)
    formula = k1 if estimator == "k1" else absolute
    return formula(logp, ref_logp, clamp_out=clamp_out, gradient=gradient)


def difference(block: str, logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """logπ − logπ_ref in float32, shapes checked."""
    same_shape(block, logp=logp, ref_logp=ref_logp)
    return logp.astype(jnp.float32) - ref_logp.astype(jnp.float32)


def _finish(
    block: str, value: jax.Array, d: jax.Array, clamp_out: float | None, gradient: Gradient
) -> jax.Array:
    above(block, "clamp_out", clamp_out)
    if clamp_out is not None:
        value = jnp.clip(value, -clamp_out, clamp_out)
    if gradient == "value":
        return value
    return with_gradient_of(value, 0.5 * jnp.square(d))
