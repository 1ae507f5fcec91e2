"""The divergence over the vocabulary, or over the tokens that a teacher names."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from ...registry import ZootomyError, register
from ..checks import same_shape

# The least probability of the rest of the vocabulary, which keeps its logarithm finite.
REST = 1e-8


@register("kl_estimator", "full", needs=("logits",))
def full(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    direction: Literal["reverse", "forward"] = "reverse",
) -> jax.Array:
    """The KL itself, summed over the vocabulary: no sampling noise, and the true gradient.

        reverse:  kl = Σ_v π(v) (logπ(v) − logπ_ref(v))
        forward:  kl = Σ_v π_ref(v) (logπ_ref(v) − logπ(v))

    Args:
        logp: `[N, T, V]` log-probabilities of every token under the policy, in nats.
        ref_logp: `[N, T, V]` those under the reference.
        direction: "reverse" KL(π ‖ π_ref), or "forward" KL(π_ref ‖ π).

    Returns:
        `[N, T]` float32, in nats; a token of probability 0 has no part.

    Raises:
        ZootomyError: if the shapes differ.

    Source: Kullback and Leibler 1951, doi:10.1214/aoms/1177729694.
    """
    same_shape("full", logp=logp, ref_logp=ref_logp)
    p, q = logp.astype(jnp.float32), ref_logp.astype(jnp.float32)
    if direction == "forward":
        p, q = q, p
    return _divergence(p, q)


@register("kl_estimator", "top_k", needs=("logits",))
def top_k(
    logp: jax.Array, ref_logp: jax.Array, *, k: int | None = None, tail: bool = True
) -> jax.Array:
    """The KL over the K most probable tokens of the teacher, the rest as one token.

        kl = Σ_k π(k) (logπ(k) − logπ_ref(k)) + π̄ (log π̄ − log π̄_ref),   π̄ = 1 − Σ_k π(k)

    A lower bound of the KL over the vocabulary, for distillation from teachers that give their
    top log-probabilities alone. Without the tail it is not a divergence: it falls when the
    policy leaves the K tokens.

    Args:
        logp: `[N, T, K]` log-probabilities of the K tokens under the policy, in nats; or
            `[N, T, V]` of all tokens, of which `k` are taken.
        ref_logp: `[N, T, K]` those under the teacher, or `[N, T, V]`.
        k: how many of the given tokens count, those most probable under the teacher; None: all.
        tail: whether the rest counts.

    Returns:
        `[N, T]` float32, in nats.

    Raises:
        ZootomyError: if the shapes differ, or `k` is below 1 or above the tokens that are given.

    Source: the top-k form of on-policy distillation, arXiv:2306.13649 (over the vocabulary).
    """
    same_shape("top_k", logp=logp, ref_logp=ref_logp)
    p, q = logp.astype(jnp.float32), ref_logp.astype(jnp.float32)
    if k is not None:
        p, q = _best("top_k", p, q, k)
    kl = _divergence(p, q)
    if not tail:
        return kl
    rest_p = jnp.maximum(1.0 - jnp.exp(p).sum(-1), REST)
    rest_q = jnp.maximum(1.0 - jnp.exp(q).sum(-1), REST)
    return kl + rest_p * (jnp.log(rest_p) - jnp.log(rest_q))


def _best(block: str, p: jax.Array, q: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`[..., k]` of both: the tokens with the largest q."""
    if not 1 <= k <= q.shape[-1]:
        raise ZootomyError(
            f"{block}: k must be in 1..{q.shape[-1]}, the tokens that are given, got {k!r}."
        )
    _, chosen = jax.lax.top_k(jax.lax.stop_gradient(q), k)
    return jnp.take_along_axis(p, chosen, axis=-1), jnp.take_along_axis(q, chosen, axis=-1)


def _divergence(p: jax.Array, q: jax.Array) -> jax.Array:
    """Σ exp(p) (p − q) over the last axis; 0 where p is −inf, in value and gradient."""
    shape = p.shape[:-1]
    # Axes of one, as tokens have that come alone, make a CPU's sums of products many times as long.
    p, q = (x.reshape(*(n for n in shape if n != 1), x.shape[-1]) for x in (p, q))
    possible = p > -jnp.inf
    p, q = jnp.where(possible, p, 0.0), jnp.where(possible, q, 0.0)
    return jnp.where(possible, jnp.exp(p) * (p - q), 0.0).sum(-1).reshape(shape)
