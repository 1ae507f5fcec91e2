"""The zoo: every named algorithm, one entry each, a family a file. An entry lists what it chooses.

What an entry leaves out is a default of `Algorithm`: no shaping, no filter, no KL, the
undiscounted return, no whitening, a token ratio, `ppo_clip`, no correction, `token_mean`, no
regularizer, no critic. Deviations from the source come first in each entry, and say what of the
published settings could not be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import ZootomyError, describe, unknown_name
from ..algorithm import Algorithm
from .critics import CRITICS
from .groups import GROUPS
from .losses import LOSSES
from .recipes import RECIPES
from .reinforce import REINFORCE

ZOO: Mapping[str, Mapping[str, Any]] = {**CRITICS, **REINFORCE, **GROUPS, **LOSSES, **RECIPES}

ALIASES: Mapping[str, str] = {
    "drgrpo": "dr_grpo",
    "reinforce++": "reinforce_pp",
    "reinforce++_baseline": "reinforce_pp_baseline",
    "dro": "kimi",
}


def algorithms() -> list[str]:
    """The names of the zoo, family by family."""
    return list(ZOO)


def algorithm(name: str, /, **overrides: Any) -> Algorithm:
    """An algorithm of the zoo, with some of it changed.

    >>> algorithm("grpo", aggregation="token_mean").aggregation
    block('token_mean')

    Args:
        name: a name of `algorithms()`; `name+correction` adds a sampler correction, as in
            `grpo+tis`.
        **overrides: `slot=block` or, for hyperparameters, `**{"policy_loss.clip_high": 0.28}`.

    Returns:
        The algorithm, checked.

    Raises:
        UnknownNameError: for a name that does not exist.
        ZootomyError: for a change that cannot work.
    """
    base, plus, correction = (name, "", "") if name in ALIASES else name.rpartition("+")
    base = base if plus or name in ALIASES else name
    base = ALIASES.get(base, base)
    first, again, before = base.rpartition("+")
    if again and base not in ZOO and ALIASES.get(first, first) in ZOO:
        raise ZootomyError(
            f"{name!r} names two corrections, {before!r} and {correction!r}, and an algorithm has "
            f"one: write {first}+{before} or {first}+{correction}."
        )
    if base not in ZOO:
        raise unknown_name("algorithm", name, (*ZOO, *ALIASES))
    entry = Algorithm(name=base, **ZOO[base])
    if plus:
        correction = describe("correction", correction).name
        entry = entry.override({"name": f"{base}+{correction}", "correction": correction})
    return entry.override(overrides) if overrides else entry
