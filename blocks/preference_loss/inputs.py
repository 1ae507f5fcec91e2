"""What every preference loss starts from: log-ratios to the reference, of both completions."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...registry import ZootomyError
from ..checks import above, rank, same_shape

# Bound on exponents: far pairs stay finite, in value and gradient.
CLAMP = 80.0


class Pair(NamedTuple):
    """A batch of pairs in float32; references carry no gradient.

    Attributes:
        chosen: `[B]` log π of the chosen completion.
        rejected: `[B]` log π of the rejected one.
        up: `[B]` log π/π_ref of the chosen one.
        down: `[B]` log π/π_ref of the rejected one.
        chosen_length: `[B]` tokens, at least 1.
        rejected_length: `[B]` tokens, at least 1.
    """

    chosen: jax.Array
    rejected: jax.Array
    up: jax.Array
    down: jax.Array
    chosen_length: jax.Array
    rejected_length: jax.Array

    @property
    def margin(self) -> jax.Array:
        """u = log π/π_ref of the chosen minus that of the rejected, `[B]`."""
        return self.up - self.down

    @property
    def per_token(self) -> Pair:
        """The same with every log-probability divided by its completion's length."""
        chosen, rejected = self.chosen_length, self.rejected_length
        return self._replace(
            chosen=self.chosen / chosen,
            rejected=self.rejected / rejected,
            up=self.up / chosen,
            down=self.down / rejected,
        )


def enter(
    block: str,
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    ref_chosen_logp: jax.Array | None,
    ref_rejected_logp: jax.Array | None,
    lengths: jax.Array,
) -> Pair:
    """The pair in float32, shapes checked; without a reference the log-ratios are log π.

    Raises:
        ZootomyError: if the shapes differ.
    """
    rank(block, "chosen_logp", chosen_logp, "B")
    same_shape(
        block,
        chosen_logp=chosen_logp,
        rejected_logp=rejected_logp,
        ref_chosen_logp=ref_chosen_logp,
        ref_rejected_logp=ref_rejected_logp,
    )
    if lengths.shape != (chosen_logp.shape[0], 2):
        raise ZootomyError(
            f"{block}: lengths must be [B, 2] = [{chosen_logp.shape[0]}, 2], "
            f"got shape {list(lengths.shape)}."
        )
    chosen, rejected = chosen_logp.astype(jnp.float32), rejected_logp.astype(jnp.float32)
    up, down = chosen, rejected
    if ref_chosen_logp is not None and ref_rejected_logp is not None:
        up = up - jax.lax.stop_gradient(ref_chosen_logp.astype(jnp.float32))
        down = down - jax.lax.stop_gradient(ref_rejected_logp.astype(jnp.float32))
    counted = jnp.maximum(lengths.astype(jnp.float32), 1.0)
    return Pair(chosen, rejected, up, down, counted[:, 0], counted[:, 1])


def log_sigmoid(x: jax.Array) -> jax.Array:
    """log σ(x), finite for any x."""
    return jax.nn.log_sigmoid(x)


def smoothed(z: jax.Array, label_smoothing: float) -> jax.Array:
    """−(1 − ε) log σ(z) − ε log σ(−z): the logistic loss when ε of the labels are wrong."""
    return -(1.0 - label_smoothing) * log_sigmoid(z) - label_smoothing * log_sigmoid(-z)


def hinged(z: jax.Array) -> jax.Array:
    """max(0, 1 − z): no loss once the margin is large enough."""
    return jnp.maximum(1.0 - z, 0.0)


def to_target(margin: jax.Array, beta: float) -> jax.Array:
    """(u − 1/(2β))²: the margin should be that number."""
    return jnp.square(margin - 1.0 / (2.0 * beta))


def check(block: str, beta: float, label_smoothing: float = 0.0) -> None:
    """Refuse a β that is not positive, or an ε outside [0, ½).

    Raises:
        ZootomyError: naming the hyperparameter and what was given.
    """
    above(block, "beta", beta)
    if isinstance(label_smoothing, int | float) and not 0.0 <= label_smoothing < 0.5:
        raise ZootomyError(
            f"{block}: label_smoothing must be in [0, 0.5), got {label_smoothing!r}."
        )
