"""From a collected batch to rollouts: what the models say of it before the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..clusters import Cluster, Role, Sequences
from ..monitor import Spans
from ..rollout import Completion
from .algorithm import Algorithm
from .arrays import Rollouts
from .collect import Collected

# What a pass with the actor gives beside log-probabilities, by its name in `Rollouts`.
ACTOR_EXTRAS = ("entropy", "sum_pi_squared")


@dataclass(frozen=True)
class Gatherer:
    """Runs the passes before an update, those alone that the algorithm needs.

    Args:
        algorithm: the algorithm.
        cluster: the models.
        temperature: at which log-probabilities are taken.
        width: T, the longest completion in tokens.
        reward_weights: of the reward functions, in their order; None: 1 each.
        with_old_logp: whether the actor's log-probabilities before the update are needed.
        with_token_rewards: whether some reward function gives rewards to tokens or turns.
    """

    algorithm: Algorithm
    cluster: Cluster
    temperature: float
    width: int
    reward_weights: tuple[float, ...] | None
    with_old_logp: bool
    with_token_rewards: bool = False

    def __call__(self, collected: Collected, sequences: Sequences, spans: Spans) -> Rollouts:
        """The rollouts of a batch as arrays, with what the models at the old weights say."""
        groups = collected.groups
        valid = np.stack([group.valid & group.teaches for group in groups])
        mask = sequences.mask
        found: dict[str, Any] = {
            "rewards": np.stack([group.rewards for group in groups]),
            "valid": valid,
            "mask": mask,
            "truncated": np.array(
                [[one.stop_reason == "length" for one in group.completions] for group in groups]
            ),
            "components": np.stack([group.components for group in groups], axis=1),
            "rollout_logp": self._rollout_logp(collected),
        }
        for name in ("baseline", "scale"):
            values = [group.__dict__[name] for group in groups]
            if values[0] is not None:
                found[name] = np.array(values, np.float32)
        if self.reward_weights is not None:
            found["component_weights"] = np.array(self.reward_weights, np.float32)
        if "turn_ids" in self.algorithm.extra_inputs:
            found["turn_ids"] = self._padded([one.turn_ids for one in _all(collected)], np.int32)
        if self.with_token_rewards:
            rewards = [one for group in groups for one in group.token_rewards or ()]
            found["token_rewards"] = self._padded(rewards)
        used = np.flatnonzero((mask > 0).any(axis=1) & valid.reshape(-1))
        for name, x in self._passes(sequences.take(used), spans).items():
            full = np.zeros((len(mask), *np.shape(x)[1:]), np.float32)
            full[used] = np.asarray(x)
            found[name] = full
        return Rollouts(**found)

    def outline(self, prompts: int, group: int, functions: int) -> Rollouts:
        """Shapes and types of what a call returns, for a batch of that size."""
        rows, needs = prompts * group, self.algorithm.needs

        def shaped(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)

        tokens = ["mask", "rollout_logp"]
        tokens += ["old_logp", *self._actor_extras()] if self.with_old_logp else []
        tokens += ["ref_logp"] if "reference" in needs else []
        critic = self.algorithm.value_loss is not None
        tokens += ["values"] if critic else []
        found: dict[str, Any] = {name: shaped(rows, self.width) for name in tokens}
        found |= {name: shaped(prompts, group) for name in ("rewards",)}
        found |= {n: shaped(prompts, group, dtype=bool) for n in ("valid", "truncated")}
        found["components"] = shaped(functions, prompts, group)
        if self.reward_weights is not None:
            found["component_weights"] = shaped(functions)
        if needs & {"greedy_baseline", "prompt_values", "running_reward"}:
            found["baseline"] = shaped(prompts)
        if "running_reward" in needs:
            found["scale"] = shaped(prompts)
        if critic and "next_values" in self.algorithm.extra_inputs:
            found["next_values"] = shaped(rows)
        if "turn_ids" in self.algorithm.extra_inputs:
            found["turn_ids"] = shaped(rows, self.width, dtype=jnp.int32)
        if self.with_token_rewards:
            found["token_rewards"] = shaped(rows, self.width)
        return Rollouts(**found)

    def logp(self, sequences: Sequences) -> np.ndarray:
        """`[N, T]` the actor's log-probabilities at its present weights."""
        return self.cluster.log_probs(Role.ACTOR, sequences, temperature=self.temperature)["logp"]

    def _actor_extras(self) -> list[str]:
        return [name for name in ACTOR_EXTRAS if name in self.algorithm.extra_inputs]

    def _passes(self, sequences: Sequences, spans: Spans) -> Mapping[str, Any]:
        """What the models say of some sequences, by its name in `Rollouts`."""
        found: dict[str, Any] = {}
        if self.with_old_logp:
            with spans("old_logp"):
                given = self.cluster.log_probs(
                    Role.ACTOR,
                    sequences,
                    temperature=self.temperature,
                    **{f"with_{name}": True for name in self._actor_extras()},
                )
                found |= {"old_logp" if name == "logp" else name: x for name, x in given.items()}
        if "reference" in self.algorithm.needs:
            with spans("reference"):
                given = self.cluster.log_probs(
                    Role.REFERENCE, sequences, temperature=self.temperature
                )
                found["ref_logp"] = given["logp"]
        if self.algorithm.value_loss is not None:
            with spans("values"):
                found["values"], behind = self.cluster.values_with_final(sequences)
            if "next_values" in self.algorithm.extra_inputs:
                found["next_values"] = behind
        return found

    def _rollout_logp(self, collected: Collected) -> np.ndarray | None:
        """`[N, T]` the engine's log-probabilities; None from an engine that marks them NaN."""
        logps = [one.logp for one in _all(collected)]
        return None if any(np.isnan(logp).any() for logp in logps) else self._padded(logps)

    def _padded(self, arrays: Sequence[np.ndarray], dtype: Any = np.float32) -> np.ndarray:
        """`[N, T]` of N arrays by token, 0 beyond a completion's end."""
        padded = np.zeros((len(arrays), self.width), dtype)
        for row, one in zip(padded, arrays, strict=True):
            row[: len(one)] = one
        return padded


def _all(collected: Collected) -> list[Completion]:
    """The completions of a batch, prompt-major."""
    return [one for group in collected.groups for one in group.completions]
