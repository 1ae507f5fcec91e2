"""`Algorithm`: a reinforcement-learning algorithm as a config of blocks, checked when built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..registry import BlockSpec, describe, plugin_slots, slot, unknown_name
from .contents import as_data, as_plain, asked_inputs, block_list, plugged, single, with_length
from .overrides import apply_overrides
from .validation import check_algorithm, check_run, warn_of_idle_distance

# Slots that hold a list of blocks, and those that hold one.
LIST_SLOTS = ("reward_shaping", "regularizer")
SINGLE_SLOTS = (
    "group_filter",
    "kl_estimator",
    "controller",
    "advantage",
    "whitening",
    "ratio",
    "policy_loss",
    "correction",
    "aggregation",
    "value_loss",
)

# What must be there for a block that asks for one of these inputs.
_INPUT_NEEDS = {
    "ref_logp": "reference",
    "rollout_logp": "rollout_logp",
    "entropy": "entropy",
    "sum_pi_squared": "sum_pi_squared",
    "next_values": "critic",
    "turn_ids": "turns",
}

Block = BlockSpec | str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A named choice of one block for every slot.

    Blocks are given as names, as `block(name, **hyperparameters)`, or as mappings with a `name`.
    They are stored as specs with every hyperparameter filled in, so that two algorithms are
    equal exactly if they compute the same. An algorithm that cannot work does not come into
    being: unknown names, missing needs and contradictions are errors here.

    Attributes:
        name: what to call it; `custom` unless it comes from the zoo.
        summary: one line on what is special about it.
        paper: its source.
        deviations: where it differs from its source, one sentence each.
        reward_shaping: blocks applied to the rewards `[P, G]` in order.
        group_filter: which prompts are trained on; None keeps all.
        kl_estimator: the distance to the reference.
        kl_placement: where that distance hurts: `none`, `reward`, `loss` or `advantage`.
        controller: the coefficient of the distance, and how it adapts.
        advantage: from token rewards to advantages.
        whitening: the scale of the advantages.
        ratio: what the importance ratio is taken over.
        policy_loss: the loss of an action.
        correction: the weight for sampler drift, one block; None for none.
        aggregation: how much each token counts.
        regularizer: terms beside the policy loss, each with its `coef`: a number, or a controller
            (`block("entropy", coef=block("entropy_target", target=0.3))`).
        value_loss: how a critic is taught; None for no critic.
        plugins: slot of a plug-in -> block, see `registry.add_slot`; kept as sorted pairs.

    Raises:
        ZootomyError: with a sentence that says what to change.
    """

    name: str = "custom"
    summary: str = ""
    paper: str = ""
    deviations: tuple[str, ...] = ()
    reward_shaping: Sequence[Block] | Block = ()
    group_filter: Block | None = None
    kl_estimator: Block = "k3"
    kl_placement: str = "none"
    controller: Block = "constant"
    advantage: Block = "cumulative_return"
    whitening: Block = "none"
    ratio: Block = "token"
    policy_loss: Block = "ppo_clip"
    correction: Block | None = None
    aggregation: Block = "token_mean"
    regularizer: Sequence[Block] | Block = ()
    value_loss: Block | None = None
    plugins: Mapping[str, Block] | Sequence[tuple[str, Block]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "deviations", tuple(self.deviations))
        for name in SINGLE_SLOTS:
            object.__setattr__(self, name, single(name, self.value(name)))
        for name in LIST_SLOTS:
            object.__setattr__(self, name, block_list(name, self.value(name)))
        words = slot("kl_placement").choices
        if self.kl_placement not in words:
            raise unknown_name("kl_placement", self.kl_placement, words)
        object.__setattr__(self, "plugins", plugged(self.plugins))
        check_algorithm(self)

    @property
    def plugged(self) -> tuple[tuple[str, Any], ...]:
        """What stands in the slots of plug-ins: (slot, spec or word), sorted by slot."""
        return tuple(self.plugins)  # pyright: ignore[reportReturnType]

    def value(self, slot_name: str) -> Any:
        """What stands in a slot: a spec, a tuple of specs, a word, or None."""
        added = [place.name for place in plugin_slots()]
        if slot_name in added:
            return dict(self.plugged).get(slot_name)
        known = (*SINGLE_SLOTS, *LIST_SLOTS, "kl_placement")
        if slot_name not in known:
            raise unknown_name("slot", slot_name, (*known, *added))
        return self.__dict__[slot_name]

    def specs(self) -> list[tuple[str, BlockSpec]]:
        """Every block of the algorithm with its slot, in the order of the fields."""
        found = []
        for entry in fields(self):
            if entry.name in SINGLE_SLOTS and self.value(entry.name) is not None:
                found.append((entry.name, self.value(entry.name)))
            elif entry.name in LIST_SLOTS:
                found.extend((entry.name, spec) for spec in self.value(entry.name))
        return found + [pair for pair in self.plugged if isinstance(pair[1], BlockSpec)]

    @property
    def needs(self) -> frozenset[str]:
        """What a run must provide: `critic`, `groups`, `reference`, `rollout_logp`, ..."""
        found: set[str] = set()
        for slot_name, spec in self.specs():
            # The distance is computed only where it is placed.
            if slot_name != "kl_estimator" or self.kl_placement != "none":
                info = describe(slot_name, spec.name)
                found |= info.needs_with(spec.hyperparameters)
                asked = asked_inputs(slot_name, spec)
                found |= {_INPUT_NEEDS[extra] for extra in asked if extra in _INPUT_NEEDS}
        if self.kl_placement != "none":
            found.add("reference")
        if self.value_loss is not None:
            found.add("critic")
        if self.correction is not None:
            found.add("rollout_logp")
        for spec in self.controllers.values():
            found |= describe("controller", spec.name).needs
        return frozenset(found)

    @property
    def controllers(self) -> dict[str, BlockSpec]:
        """The controllers by the coefficient they steer: `kl`, and `regularizer.NAME`."""
        assert isinstance(self.controller, BlockSpec)
        found = {"kl": self.controller}
        for spec in self.value("regularizer"):
            if isinstance(spec.hyperparameters["coef"], BlockSpec):
                found[f"regularizer.{spec.name}"] = spec.hyperparameters["coef"]
        return found

    @property
    def bypasses(self) -> bool:
        """Whether the engine's log-probabilities stand in for those before the update."""
        return isinstance(self.correction, BlockSpec) and self.correction.name == "bypass"

    @property
    def extra_inputs(self) -> frozenset[str]:
        """Inputs that some block asks for beyond those of its slot, e.g. `sum_pi_squared`."""
        return frozenset(extra for name, spec in self.specs() for extra in asked_inputs(name, spec))

    def override(self, changes: Mapping[str, Any]) -> Algorithm:
        """The same algorithm with some slots or hyperparameters changed.

        Args:
            changes: `slot` (one of a plug-in too) -> block(s), or `slot.hyperparameter` -> value;
                in a slot with a list of blocks `slot.block.hyperparameter` says which one is meant.

        Raises:
            ZootomyError: for a name that does not exist, or a change that cannot work.
        """
        changed = Algorithm(**apply_overrides(self, changes))
        if changed.kl_placement == "none":
            warn_of_idle_distance(changed, changes)
        return changed

    def check_run(self, *, group_size: int, rollout_logp: bool = True) -> None:
        """Check what only a run knows.

        Args:
            group_size: completions a prompt.
            rollout_logp: whether the engine reports the log-probabilities it sampled with.

        Raises:
            ZootomyError: if the algorithm needs what the run does not have.
        """
        check_run(self, group_size=group_size, rollout_logp=rollout_logp)

    def resolve_length(self, max_new_tokens: int) -> Algorithm:
        """Fill in the generation limit wherever a block's `length` was left None."""
        changed: dict[str, Any] = {}
        for name in (*SINGLE_SLOTS, *LIST_SLOTS):
            value = self.value(name)
            if name in LIST_SLOTS:
                changed[name] = tuple(with_length(spec, max_new_tokens) for spec in value)
            elif value is not None:
                changed[name] = with_length(value, max_new_tokens)
        changed["plugins"] = tuple(
            (name, with_length(given, max_new_tokens) if isinstance(given, BlockSpec) else given)
            for name, given in self.plugged
        )
        return replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """The algorithm as plain data, with every hyperparameter."""
        data: dict[str, Any] = {}
        for entry in fields(self):
            value = self.__dict__[entry.name]
            if isinstance(value, BlockSpec):
                data[entry.name] = as_plain(value)
            elif entry.name in LIST_SLOTS:
                data[entry.name] = [as_plain(spec) for spec in value]
            elif entry.name == "plugins":
                # Left out where it is empty, as in an algorithm that knows of no plug-in.
                if self.plugged:
                    data[entry.name] = {name: as_data(given) for name, given in self.plugged}
            else:
                data[entry.name] = list(value) if isinstance(value, tuple) else value
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Algorithm:
        """The algorithm that `to_dict` wrote.

        Raises:
            UnknownNameError: for a field that does not exist.
            ZootomyError: for a block that does not fit.
        """
        known = [entry.name for entry in fields(cls)]
        for key in data:
            if key not in known:
                raise unknown_name("field of an algorithm:", key, known)
        return cls(**data)

    def describe(self, *, shared_critic: bool = False) -> str:
        """The algorithm as a page of text: every block, its formula, paper and values.

        Args:
            shared_critic: whether the critic is a head on the policy's backbone, by a run's
                `critic.shared`; what it costs depends on it.
        """
        from .anatomy import describe_algorithm

        return describe_algorithm(self, shared_critic=shared_critic)

    def diff(self, other: Algorithm) -> str:
        """What differs between this algorithm and another, as text."""
        from .anatomy import diff_algorithms

        return diff_algorithms(self, other)
