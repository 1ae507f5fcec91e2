"""The commands that tell what there is: list, show, diff, find."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import tyro

from ..learners import Algorithm, anatomy
from ..learners import algorithm as named_algorithm
from ..learners.run_config import read_yaml
from ..learners.search import search
from ..registry import ZootomyError, slot, slots, unknown_name
from .output import say, say_json


def list_names(
    what: Annotated[str | None, tyro.conf.Positional] = None, /, *, json: bool = False
) -> None:
    """List the blocks of a slot, of every slot, or the algorithms.

    Args:
        what: a slot, or `algorithms`; everything if left out.
        json: print JSON.
    """
    known = ["algorithms", *(place.name for place in slots())]
    if what is not None and what not in known:
        raise unknown_name("slot", what, known)
    table = {name: anatomy.summaries(name) for name in known if what in (None, name)}
    if json:
        say_json(table)
        return
    for name, entries in table.items():
        question = f"  {slot(name).question}" if name != "algorithms" else ""
        say(f"{name}{question}")
        width = max((len(entry) for entry in entries), default=0)
        for entry, summary in entries.items():
            say(f"  {entry:{width}}  {summary}".rstrip())
        say("")


def show(
    name: Annotated[str, tyro.conf.Positional], /, *, latex: bool = False, json: bool = False
) -> None:
    """Show an algorithm, or a block as SLOT.BLOCK: formula, every value, paper, needs, cost.

    Args:
        name: an algorithm (`grpo`, `grpo+tis`), a config file, or a block (`policy_loss.ppo_clip`).
        latex: print only the formula, in LaTeX.
        json: print JSON.
    """
    first, _, block_name = name.partition(".")
    if block_name and first in {place.name for place in slots()}:
        if json:
            say_json(anatomy.block_data(first, block_name))
        else:
            page = anatomy.block_latex if latex else anatomy.describe_block
            say(page(first, block_name))
        return
    found, shared = _algorithm(name)
    if json:
        say_json(anatomy.algorithm_data(found, shared_critic=shared))
    else:
        page = anatomy.objective_latex(found) if latex else found.describe(shared_critic=shared)
        say(page)


def diff(
    left: Annotated[str, tyro.conf.Positional],
    right: Annotated[str, tyro.conf.Positional],
    /,
    *,
    json: bool = False,
) -> None:
    """Show only what two algorithms differ in.

    Args:
        left: an algorithm or a config file.
        right: another algorithm or config file.
        json: print JSON.
    """
    a, b = _algorithm(left)[0], _algorithm(right)[0]
    if json:
        x, y = a.to_dict(), b.to_dict()
        keys = [key for key in {**x, **y} if x.get(key) != y.get(key)]
        say_json({key: [x.get(key), y.get(key)] for key in keys})
    else:
        say(a.diff(b))


def find(
    words: Annotated[str, tyro.conf.Positional], /, *, limit: int = 15, json: bool = False
) -> None:
    """Search what blocks and algorithms say of themselves: names, summaries, docstrings.

    Args:
        words: what to look for, e.g. `"length bias"`.
        limit: how many to show.
        json: print JSON.
    """
    if limit < 1:
        raise ZootomyError(f"--limit must be 1 or more, got {limit}.")
    hits = search(words)
    if json:
        say_json([asdict(hit) for hit in hits[:limit]])
        return
    for hit in hits[:limit]:
        say(f"{hit.name}  {hit.summary}\n    {hit.where}")
    if not hits:
        say(f"Nothing that is registered speaks of {words!r}.")
    elif len(hits) > limit:
        say(f"{len(hits) - limit} more; see --limit.")


def _algorithm(name: str) -> tuple[Algorithm, bool]:
    """What a name or a file means, and whether its critic is a head on the policy's backbone."""
    if name.endswith((".yaml", ".yml")):
        chosen, run = read_yaml(name)
        return chosen, run.critic.shared
    return named_algorithm(name), False
