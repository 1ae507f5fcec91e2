"""From a collected batch to rollouts: what the models say of it before the update."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..clusters import Cluster, ModelOutputs, Role, Sequences, Wanted
from ..models import Head
from ..monitor import Spans
from ..rollout import Completion
from .algorithm import Algorithm
from .arrays import Rollouts
from .collect import Collected
from .vocabulary import before_the_update, in_the_update

# What a pass with the actor gives beside log-probabilities, by its name in `Rollouts`.
ACTOR_EXTRAS = ("entropy", "sum_pi_squared")
NEXT = "next_values"
# What a pass calls things, and what they are called in `Rollouts`.
_NAMES = {"logp": "old_logp", "final_values": NEXT}
# The name of the reference's head among the coefficients, which all micro-batches share.
REF_HEAD = "reference_head"


class Gathered(NamedTuple):
    """What is known of a batch before its update.

    Attributes:
        rollouts: for the assembled function.
        ref_hidden: `[N, T, D]` the reference's hidden states at each action, where a term of the
            loss needs its whole distributions; else None.
    """

    rollouts: Rollouts
    ref_hidden: np.ndarray | None


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
        before: `(outputs, (ref_hidden, inputs), coefficients) -> arrays`, what is read of the
            actor's pass where the distance before the update needs whole distributions.
        with_token_rewards: whether some reward function gives rewards to tokens or turns.
    """

    algorithm: Algorithm
    cluster: Cluster
    temperature: float
    width: int
    reward_weights: tuple[float, ...] | None
    with_old_logp: bool
    before: Callable[..., Any]
    with_token_rewards: bool = False

    def __call__(self, collected: Collected, sequences: Sequences, spans: Spans) -> Gathered:
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
        if "turn_ids" in self._extra_inputs:
            found["turn_ids"] = self._padded([one.turn_ids for one in _all(collected)], np.int32)
        if self.with_token_rewards:
            rewards = [one for group in groups for one in group.token_rewards or ()]
            found["token_rewards"] = self._padded(rewards)
        used = np.flatnonzero((mask > 0).any(axis=1) & valid.reshape(-1))
        inputs = {name: x[used] for name, x in self._inputs(found).items()}
        for name, x in self._passes(sequences.take(used), inputs, spans).items():
            full = np.zeros((len(mask), *np.shape(x)[1:]), x.dtype)
            full[used] = np.asarray(x)
            found[name] = full
        return Gathered(ref_hidden=found.pop("ref_hidden", None), rollouts=Rollouts(**found))

    def outline(self, prompts: int, group: int, functions: int) -> Rollouts:
        """Shapes and types of what a call returns, for a batch of that size."""
        rows, needs = prompts * group, self._needs

        def shaped(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)

        tokens = ["mask", "rollout_logp"]
        tokens += ["old_logp", *self._actor_extras()] if self.with_old_logp else []
        tokens += ["ref_logp"] if "reference" in needs else []
        tokens += ["kl"] if self._before_the_update else []
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
        if critic and NEXT in self._extra_inputs:
            found[NEXT] = shaped(rows)
        if "turn_ids" in self._extra_inputs:
            found["turn_ids"] = shaped(rows, self.width, dtype=jnp.int32)
        if self.with_token_rewards:
            found["token_rewards"] = shaped(rows, self.width)
        return Rollouts(**found)

    def rehearse(self, rollouts: Rollouts) -> None:
        """Go through the distance before the update with shapes alone.

        Raises:
            ZootomyError: what the estimator would say in the first step.
        """
        if not self._before_the_update:
            return
        tokens: Any = jax.ShapeDtypeStruct(rollouts.mask.shape, np.float32)
        head, hidden, shared = self.outline_heads(tokens.shape)
        said = dict.fromkeys(("logp", *self._actor_extras()), tokens)
        group_ids = jax.ShapeDtypeStruct(tokens.shape[:1], np.int32)
        inputs = {"mask": tokens, "rollout_logp": tokens, "group_ids": group_ids}
        inputs |= {"truncated": group_ids, "turn_ids": rollouts.turn_ids}
        known = {name: x for name, x in inputs.items() if x is not None}
        jax.eval_shape(self.before, ModelOutputs(**said, head=head), (hidden, known), shared)

    def outline_heads(self, shape: tuple[int, ...]) -> tuple[Head, Any, dict[str, Any]]:
        """Shapes of the actor's head, of the reference's hidden states, and of what is shared."""

        def hidden(role: Role) -> tuple[Any, Any]:
            kernel = jax.eval_shape(lambda: self.cluster.head_kernel(role))
            return jax.ShapeDtypeStruct((*shape, kernel.shape[0]), np.float32), kernel

        temperature = jax.ShapeDtypeStruct((), np.float32)
        actor = Head(*hidden(Role.ACTOR), temperature)
        if not self.with_ref_hidden:
            return actor, None, {}
        states, kernel = hidden(Role.REFERENCE)
        return actor, states, {REF_HEAD: kernel}

    # What an algorithm asks for is worked out from its blocks, while devices wait: once.
    @functools.cached_property
    def _needs(self) -> frozenset[str]:
        return self.algorithm.needs

    @functools.cached_property
    def _extra_inputs(self) -> frozenset[str]:
        return self.algorithm.extra_inputs

    @functools.cached_property
    def _before_the_update(self) -> bool:
        return before_the_update(self.algorithm)

    @functools.cached_property
    def with_ref_hidden(self) -> bool:
        """Whether the reference's whole distributions are needed, before the update or in it."""
        whole = self._before_the_update or in_the_update(self.algorithm)
        return bool(whole) and "reference" in self._needs

    def shared(self) -> dict[str, Any]:
        """What all micro-batches share beside numbers: the reference's head, where it is needed."""
        return {REF_HEAD: self.cluster.head_kernel(Role.REFERENCE)} if self.with_ref_hidden else {}

    def logp(self, sequences: Sequences) -> np.ndarray:
        """`[N, T]` the actor's log-probabilities at its present weights."""
        return self.cluster.log_probs(Role.ACTOR, sequences, temperature=self.temperature)["logp"]

    def _actor_extras(self) -> list[str]:
        return [name for name in ACTOR_EXTRAS if name in self._extra_inputs]

    def _inputs(self, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What a distance over the vocabulary may ask for that no model says, `[N, ...]`."""
        prompts, group = found["rewards"].shape
        known = {name: found.get(name) for name in ("mask", "rollout_logp", "turn_ids")}
        inputs = {name: x for name, x in known.items() if x is not None}
        inputs["truncated"] = found["truncated"].reshape(-1)
        return inputs | {"group_ids": np.repeat(np.arange(prompts, dtype=np.int32), group)}

    def _passes(
        self, sequences: Sequences, inputs: Mapping[str, np.ndarray], spans: Spans
    ) -> Mapping[str, Any]:
        """What the models say of some sequences, by its name in `Rollouts`."""
        found: dict[str, Any] = {}
        if "reference" in self._needs:
            with spans("reference"):
                given = self.cluster.log_probs(
                    Role.REFERENCE,
                    sequences,
                    temperature=self.temperature,
                    with_hidden=self.with_ref_hidden,
                )
                found |= {f"ref_{name}": x for name, x in given.items()}
        if self._before_the_update:
            with spans("old_logp"):
                found |= self._measured(sequences, found["ref_hidden"], inputs)
        elif self.with_old_logp:
            asked = [*self._actor_extras(), *(["values"] if self._in_one_pass else [])]
            with spans("old_logp"):
                given = self.cluster.log_probs(
                    Role.ACTOR,
                    sequences,
                    temperature=self.temperature,
                    **{f"with_{name}": True for name in asked},
                )
                found |= {_NAMES.get(name, name): x for name, x in given.items()}
        if self.algorithm.value_loss is not None:
            if not self._in_one_pass:
                with spans("values"):
                    found["values"], found[NEXT] = self.cluster.values_with_final(sequences)
            if NEXT not in self._extra_inputs:
                del found[NEXT]
        return found

    @property
    def _in_one_pass(self) -> bool:
        """Whether the actor's pass gives the values too: the critic is a head on its backbone."""
        return (
            self.algorithm.value_loss is not None
            and self.cluster.shares_backbone
            and self.with_old_logp
            and not self._before_the_update
        )

    def _measured(
        self, sequences: Sequences, ref_hidden: np.ndarray, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The actor's pass, in which the distance by whole distributions is measured too."""
        extras = self._actor_extras()
        given = self.cluster.measure(
            Role.ACTOR,
            sequences,
            (ref_hidden, dict(inputs)),
            self.before,
            temperature=self.temperature,
            coefficients=self.shared(),
            wanted=Wanted(**dict.fromkeys(extras, True), head=True),
        )
        kept = {"kl", *extras, *(["old_logp"] if self.with_old_logp else [])}
        return {name: x for name, x in given.items() if name in kept}

    def _rollout_logp(self, collected: Collected) -> np.ndarray | None:
        """`[N, T]` the engine's log-probabilities; None from an engine that marks them NaN."""
        logps = self._padded([one.logp for one in _all(collected)])
        return None if np.isnan(logps).any() else logps

    def _padded(self, arrays: Sequence[np.ndarray], dtype: Any = np.float32) -> np.ndarray:
        """`[N, T]` of N arrays by token, 0 beyond a completion's end."""
        padded = np.zeros((len(arrays), self.width), dtype)
        for row, one in zip(padded, arrays, strict=True):
            row[: len(one)] = one
        return padded


def _all(collected: Collected) -> list[Completion]:
    """The completions of a batch, prompt-major."""
    return [one for group in collected.groups for one in group.completions]
