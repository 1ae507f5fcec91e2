"""What a shaping remembers from step to step, as plain data with pure updates.

A learner keeps the state in its checkpoint, hands the numbers a shaping needs in through
`RewardInfo` (`baseline`, `scale`), and replaces the state by what `observe` returns.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..checks import above, at_least
from ..masking import count, masked, masked_mean
from ..statistics import safe_sqrt


class RunningMoments(NamedTuple):
    """Mean and variance of all rewards seen; for `running_norm`.

    Attributes:
        count: `[]` how many rewards, discounted.
        mean: `[]` their mean.
        square: `[]` sum of their squared deviations.
    """

    count: jax.Array
    mean: jax.Array
    square: jax.Array

    @classmethod
    def start(cls) -> RunningMoments:
        """Nothing seen yet: mean 0, deviation 1."""
        return cls(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0))

    @property
    def std(self) -> jax.Array:
        """`[]` the unbiased deviation; 1 until two different rewards were seen."""
        std = safe_sqrt(self.square / jnp.maximum(self.count - 1.0, 1.0))
        return jnp.where(std > 0, std, 1.0)

    def observe(
        self, rewards: jax.Array, valid: jax.Array, *, retain: float = 1.0
    ) -> RunningMoments:
        """The moments with another batch of rewards in them.

            n = ρ n_old + n_new,   δ = mean_new − mean_old
            mean = mean_old + δ n_new / n
            square = ρ square_old + square_new + δ² ρ n_old n_new / n

        Args:
            rewards: `[P, G]` one reward a completion.
            valid: `[P, G]` bool.
            retain: ρ, the weight that what was seen before keeps; 1 forgets nothing.

        Returns:
            The new state.

        Source: Chan, Golub and LeVeque 1979, parallel updates of the variance.
        """
        new, old = count(valid), retain * self.count
        mean = masked_mean(rewards, valid)
        square = masked((masked(rewards, valid) - mean) ** 2, valid).sum()
        total = jnp.maximum(old + new, 1e-12)
        delta = mean - self.mean
        return RunningMoments(
            old + new,
            self.mean + delta * new / total,
            retain * self.square + square + delta**2 * old * new / total,
        )


class BetaTracker(NamedTuple):
    """How often each prompt is solved, forgotten as the policy moves; for `spo`.

    Attributes:
        alpha: `[prompts]` evidence for success.
        beta: `[prompts]` evidence for failure.
    """

    alpha: jax.Array
    beta: jax.Array

    @classmethod
    def start(cls, value: jax.Array, *, retain_min: float = 0.875) -> BetaTracker:
        """As sure of a first estimate as of a long run at the least retention.

            n = 1 / (1 − retain_min),   α = n v,   β = n (1 − v)

        Args:
            value: `[prompts]` a first estimate of each prompt's value, in 0..1.
            retain_min: the least retention that `observe` will use, below 1.
        """
        at_least("BetaTracker.start", "retain_min", retain_min, 0.0)
        above("BetaTracker.start", "1 - retain_min", 1.0 - retain_min)
        evidence = 1.0 / (1.0 - retain_min)
        value = value.astype(jnp.float32)
        return cls(evidence * value, evidence * (1.0 - value))

    @property
    def value(self) -> jax.Array:
        """`[prompts]` the expected reward, α / (α + β)."""
        return self.alpha / (self.alpha + self.beta)

    def observe(
        self,
        prompts: jax.Array,
        rewards: jax.Array,
        valid: jax.Array,
        drift: jax.Array,
        *,
        half_drift: float = 0.06,
        retain_min: float = 0.875,
        retain_max: float = 0.96,
    ) -> BetaTracker:
        """The tracker with a step's rewards in it.

            ρ = clip(2^(−drift / half_drift), retain_min, retain_max)
            α ← ρ α + Σ R,   β ← ρ β + Σ (1 − R),   over the prompt's valid completions

        Args:
            prompts: `[P]` int, which prompts were sampled; each at most once.
            rewards: `[P, G]` in 0..1.
            valid: `[P, G]` bool; a prompt without a valid completion keeps its state.
            drift: `[P]` KL between the policy now and when the prompt was last seen, in nats.
            half_drift: the drift after which half of the evidence is forgotten.
            retain_min: the least that is kept.
            retain_max: the most that is kept.

        Returns:
            The new state.

        Source: Xu and Ding 2025, arXiv:2509.13232, section 3.1.
        """
        above("BetaTracker.observe", "half_drift", half_drift)
        rewards = masked(rewards, valid)
        seen = valid.sum(1) > 0
        retained = jnp.clip(2.0 ** (-masked(drift, seen) / half_drift), retain_min, retain_max)
        retained = jnp.where(seen, retained, 1.0)
        won, lost = rewards.sum(1), masked(1.0 - rewards, valid).sum(1)
        return BetaTracker(
            self.alpha.at[prompts].set(retained * self.alpha[prompts] + won),
            self.beta.at[prompts].set(retained * self.beta[prompts] + lost),
        )
