"""What an algorithm costs beyond sampling and the policy's own training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..registry import BlockSpec, describe, setting
from .contents import asked_inputs
from .vocabulary import before_the_update, in_the_update
from .whole import IN_THE_UPDATE, at_once

if TYPE_CHECKING:
    from .algorithm import Algorithm

# Inputs that come out of a pass of the policy before the update.
BEFORE_THE_UPDATE = ("old_logp", "logp", "entropy", "sum_pi_squared")
# Those that the correction `bypass` takes from the engine instead.
BY_THE_ENGINE = ("old_logp", "logp")


@dataclass(frozen=True)
class Cost:
    """What comes on top, each entry a sentence.

    Attributes:
        passes: forward passes over the sampled tokens a step, by name.
        memory: what is held beside the policy's weights with its optimizer's memory, by name.
        sampling: completions beyond one group a prompt.
    """

    passes: dict[str, str]
    memory: dict[str, str]
    sampling: dict[str, str]

    def lines(self) -> list[str]:
        """The cost as lines of text."""
        kinds = (
            ("forward passes", self.passes),
            ("memory", self.memory),
            ("sampling", self.sampling),
        )
        lines = ["cost, beyond sampling one group a prompt and training the policy"]
        for kind, rows in kinds:
            lines += [f"  {kind}: {name}: {text}" for name, text in rows.items()]
        return lines


def cost(algorithm: Algorithm, *, shared_critic: bool = False) -> Cost:
    """What an algorithm asks of a run beyond sampling and one training pass of the policy.

    Args:
        algorithm: says which passes and models there are.
        shared_critic: whether the critic is a head on the policy's backbone, by the run's
            `critic.shared`.
    """
    passes, memory = {}, {}
    asking = old_logp_asked_by(algorithm)
    if asking:
        passes["old_logp"] = f"one of the policy before the update, for {', '.join(asking)}"
    elif algorithm.bypasses:
        passes["old_logp"] = "none: the engine's log-probabilities stand in"
    else:
        passes["old_logp"] = "none with one update a step; one of the policy with several"
    if "reference" in algorithm.needs:
        passes["reference"] = (
            f"one of the frozen policy, for {', '.join(reference_asked_by(algorithm))}"
        )
        memory["reference"] = "the policy's weights as they were at the start"
    _distributions(algorithm, passes, memory)
    if algorithm.value_loss is not None:
        passes["critic"] = _values(algorithm, shared_critic, bool(asking))
        memory["critic"] = (
            "a head on the policy's backbone: one vector, with its optimizer memory"
            if shared_critic
            else "a model of the policy's size with gradients and optimizer memory; with "
            "critic.shared a head on the policy's backbone"
        )
    together = " and ".join(filter(None, (at_once(algorithm, role) for role in IN_THE_UPDATE)))
    if together:
        memory["mini-batch"] = f"{together} must see it whole: no cutting into micro-batches"
    return Cost(passes, memory, _sampling(algorithm))


def _values(algorithm: Algorithm, shared: bool, with_old_logp: bool) -> str:
    """Where the critic's values come from."""
    if not shared:
        return "one for the values; training it is one forward and backward an update"
    if before_the_update(algorithm):
        return "one more of the policy, for the values"
    if with_old_logp:
        return "none: the policy's pass before the update gives the values too"
    return "one of the policy for the values, or none where that for old_logp gives them too"


def old_logp_asked_by(algorithm: Algorithm) -> list[str]:
    """What needs a pass of the policy before the update, however many updates a step has."""
    given = BY_THE_ENGINE if algorithm.bypasses else ()
    asking = []
    # What the engine tells is of the sampled tokens alone.
    known = given and not before_the_update(algorithm)
    if algorithm.kl_placement in ("reward", "advantage") and not known:
        asking.append(f"kl_placement {algorithm.kl_placement!r}")
    if isinstance(algorithm.correction, BlockSpec) and not given:
        asking.append(f"correction {algorithm.correction.name!r}")
    for slot_name, spec in algorithm.specs():
        info = describe(slot_name, spec.name)
        for name in asked_inputs(slot_name, spec):
            if name in BEFORE_THE_UPDATE and name not in given:
                asking.append(f"{slot_name} {spec.name!r} ({name})")
        if "prompt_values" in info.needs:
            asking.append(f"{slot_name} {spec.name!r} (how far the policy moved)")
    return asking


def _distributions(algorithm: Algorithm, passes: dict[str, str], memory: dict[str, str]) -> None:
    """What blocks cost that need whole distributions."""
    asking = in_the_update(algorithm)
    if before_the_update(algorithm):
        asking.append(f"kl_placement {algorithm.kl_placement!r}")
    if not asking:
        return
    with_reference = "reference" in algorithm.needs
    heads = "the heads of policy and reference" if with_reference else "the policy's head"
    passes["distributions"] = f"{heads} once more, for {', '.join(asking)}"
    if with_reference:
        memory["distributions"] = (
            "the reference's hidden states, [N, T, D] on the host; distributions only of a chunk "
            "of tokens at a time"
        )
    else:
        memory["distributions"] = "only of a chunk of tokens at a time"


def reference_asked_by(algorithm: Algorithm) -> list[str]:
    """What needs the reference."""
    asking = []
    if algorithm.kl_placement != "none":
        asking.append(f"kl_placement {algorithm.kl_placement!r}")
    for slot_name, spec in algorithm.specs():
        info = describe(slot_name, spec.name)
        if "reference" in info.needs or "ref_logp" in asked_inputs(slot_name, spec):
            asking.append(f"{slot_name} {spec.name!r}")
    return asking


def _sampling(algorithm: Algorithm) -> dict[str, str]:
    found = {}
    if "greedy_baseline" in algorithm.needs:
        found["baseline"] = "one greedy completion a prompt"
    chosen = algorithm.group_filter
    if isinstance(chosen, BlockSpec) and setting("group_filter", chosen, "strategy") == "refill":
        rounds = setting("group_filter", chosen, "max_refills")
        found["refill"] = f"other prompts for those that are dropped, {rounds} rounds at the most"
    return found
