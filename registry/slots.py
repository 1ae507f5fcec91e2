"""The slots: which question each answers, and the signature a block must have to answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import DuplicateNameError, ZootomyError, unknown_name
from .hyperparameters import Hyperparameter
from .spec import BlockSpec

# Arrays that the assembly can hand to any block on tokens that asks for them by name
# (a keyword-only argument without a default).
TOKEN_EXTRAS = (
    "group_ids",
    "turn_ids",
    "logp",
    "old_logp",
    "rollout_logp",
    "ref_logp",
    "entropy",
    "sum_pi_squared",
    "advantages",
    "mask",
    "truncated",
    "next_values",
)


@dataclass(frozen=True)
class Slot:
    """One interchangeable place in an algorithm.

    Attributes:
        name: the slot's name, also the field of `Algorithm` and the dotted prefix of overrides.
        question: the question that a block in this slot answers.
        inputs: the block's positional arguments, by name and in order.
        returns: what the block returns, with shapes.
        extras: inputs that a block may ask for beyond `inputs`, as keyword-only arguments
            without a default.
        parameters: settings that belong to the place and not to the block in it (a
            coefficient, a strategy), by name; written beside the block's own hyperparameters and
            checked like them. A default of `...` means that the setting must be given.
        choices: for a slot that takes a word and no function, the words.
        logs: the shape of the metrics that a block may return beside its value (`[N, T]`, averaged
            over the actions; `[P, G]`, over the valid completions); empty for none.
        after: for a slot of a plug-in, the slot of an algorithm whose result the block is given as
            its first input and replaces (a key of `AFTER`); empty: only the plug-in's own code
            asks the block.
    """

    name: str
    question: str
    inputs: tuple[str, ...] = ()
    returns: str = ""
    extras: tuple[str, ...] = ()
    parameters: Mapping[str, Hyperparameter] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    logs: str = ""
    after: str = ""


# Where a plug-in's slot can stand: after these, with what they give under this name.
AFTER = {"reward_shaping": "rewards", "whitening": "advantages", "policy_loss": "loss"}


def _settings(*entries: Hyperparameter) -> dict[str, Hyperparameter]:
    return {entry.name: entry for entry in entries}


def _token_slot(
    name: str, question: str, inputs: str, returns: str, *settings: Hyperparameter
) -> Slot:
    names = tuple(inputs.split())
    extras = tuple(extra for extra in TOKEN_EXTRAS if extra not in names)
    logs = "[N, T]" if name in ("advantage", "whitening", "regularizer") else ""
    return Slot(name, question, names, returns, extras, _settings(*settings), logs=logs)


_BUILT_IN = (
    Slot(
        "reward_shaping",
        "What is a completion worth beside its siblings?",
        ("rewards", "info"),
        "[P, G]",
        logs="[P, G]",
    ),
    Slot(
        "group_filter",
        "Which prompts still teach?",
        ("rewards", "valid"),
        "keep [P]",
        parameters=_settings(
            Hyperparameter(
                "strategy",
                Literal["drop", "refill", "replace"],
                "drop",
                "what happens to a prompt that is not kept: its group is left out, other prompts "
                "are sampled instead, or a kept group takes its place.",
            ),
            Hyperparameter(
                "max_refills", int, 10, "rounds of sampling after the first, under `refill`."
            ),
            Hyperparameter(
                "when_short",
                Literal["error", "train"],
                "error",
                "what happens when the refills are used up: an error, or a smaller batch.",
            ),
        ),
    ),
    _token_slot("kl_estimator", "How far has the policy moved?", "logp ref_logp", "[N, T]"),
    Slot(
        "kl_placement",
        "Where does the distance hurt?",
        choices=("none", "reward", "loss", "advantage"),
    ),
    _token_slot(
        "advantage",
        "Which token earned it?",
        "token_rewards values mask",
        "(advantages [N, T], returns [N, T])",
    ),
    _token_slot("whitening", "On what scale?", "advantages mask", "[N, T]"),
    _token_slot(
        "ratio", "Per token, per sequence, or none?", "logp old_logp mask", "log_ratio [N, T]"
    ),
    _token_slot(
        "policy_loss",
        "How is an action pushed?",
        "log_ratio advantages logp old_logp mask",
        "TokenLoss(loss [N, T], stats)",
    ),
    _token_slot(
        "correction",
        "How is the sampler's drift repaid?",
        "old_logp rollout_logp mask",
        "(weights [N, T], kept [N, T])",
        Hyperparameter(
            "denominator",
            Literal["original", "kept"],
            "original",
            "whether rejected tokens still count in the aggregation's denominators.",
        ),
    ),
    Slot(
        "aggregation",
        "How much does a token count?",
        ("mask", "group_ids"),
        "weights [N, T], over the whole mini-batch",
    ),
    _token_slot(
        "regularizer",
        "What else is asked?",
        "logp ref_logp entropy advantages mask",
        "[N, T]",
        # A number, or a controller that moves it from step to step.
        Hyperparameter("coef", float | BlockSpec, ..., "the weight of the term in the loss."),
    ),
    _token_slot(
        "value_loss", "How is the critic taught?", "values old_values returns mask", "[N, T]"
    ),
    Slot(
        "controller",
        "How does a coefficient adapt?",
        (),
        "Controller(init, update)",
    ),
    Slot(
        "preference_loss",
        "Which of two completions is preferred?",
        ("chosen_logp", "rejected_logp", "ref_chosen_logp", "ref_rejected_logp", "lengths"),
        "[B]",
    ),
    Slot(
        "reward_loss",
        "Which of two completions scores higher?",
        ("chosen", "rejected", "margin"),
        "[B]",
    ),
)

_SLOTS: dict[str, Slot] = {slot.name: slot for slot in _BUILT_IN}


def slots() -> tuple[Slot, ...]:
    """Every slot, in the order in which an algorithm reads."""
    return tuple(_SLOTS.values())


def plugin_slots() -> tuple[Slot, ...]:
    """The slots that plug-ins have added."""
    built_in = {place.name for place in _BUILT_IN}
    return tuple(place for place in _SLOTS.values() if place.name not in built_in)


def slot(name: str) -> Slot:
    """The slot of that name.

    Raises:
        UnknownNameError: if there is none.
    """
    if name not in _SLOTS:
        raise unknown_name("slot", name, _SLOTS)
    return _SLOTS[name]


def add_slot(new: Slot) -> Slot:
    """Add a slot of a plug-in's own; its blocks are registered like any others.

    Raises:
        DuplicateNameError: if a slot of that name exists.
        ZootomyError: if the slot names the same input twice, or what it stands after does not
            give what its block takes.
    """
    if new.name in _SLOTS:
        raise DuplicateNameError(f"Slot {new.name!r} exists already; choose another name.")
    arguments = (*new.inputs, *new.extras)
    if len(set(arguments)) != len(arguments):
        raise ZootomyError(f"Slot {new.name!r} names an input twice: {', '.join(arguments)}.")
    if new.after:
        _check_place(new)
    _SLOTS[new.name] = new
    return new


def _check_place(new: Slot) -> None:
    if new.after not in AFTER:
        raise unknown_name(f"place for slot {new.name!r}: after", new.after, AFTER)
    first = AFTER[new.after]
    if new.inputs[:1] != (first,):
        raise ZootomyError(
            f"Slot {new.name!r} stands after {new.after}, so its first input must be {first!r}, "
            f"got {', '.join(new.inputs) or 'none'}."
        )
    known = ("info",) if new.after == "reward_shaping" else TOKEN_EXTRAS
    for name in (*new.inputs[1:], *new.extras):
        if name not in known:
            raise unknown_name(f"input of slot {new.name!r}:", name, known)
