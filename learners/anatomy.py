"""Algorithms and blocks as pages of text: what each does, with formula, values, paper and cost."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ..registry import BlockSpec, describe, names, slot, slots, type_text
from .costs import cost
from .difference import diff_algorithms
from .equations import PLACEMENTS, objective_latex, objective_text
from .latex import to_latex_lines
from .zoo import algorithm as named_algorithm
from .zoo import algorithms

if TYPE_CHECKING:
    from .algorithm import Algorithm

__all__ = [
    "algorithm_data",
    "block_data",
    "block_latex",
    "describe_algorithm",
    "describe_block",
    "diff_algorithms",
    "idle_slots",
    "objective_latex",
    "objective_text",
    "summaries",
]


def describe_algorithm(algorithm: Algorithm, *, shared_critic: bool = False) -> str:
    """The page that `zootomy show` prints: the objective, then every block with its values.

    Args:
        algorithm: what to describe.
        shared_critic: as of `cost`.
    """
    title = f"{algorithm.name}: {algorithm.summary}" if algorithm.summary else algorithm.name
    lines = [title]
    if algorithm.paper:
        lines.append(f"paper: {algorithm.paper}")
    lines.extend(f"deviates: {sentence}" for sentence in algorithm.deviations)
    lines.append(f"needs: {', '.join(sorted(algorithm.needs)) or 'nothing beyond the policy'}")
    lines += [*cost(algorithm, shared_critic=shared_critic).lines(), "", "objective"]
    lines += [f"  {line}" for line in objective_text(algorithm).split("\n")]
    lines.append("")
    idle = idle_slots(algorithm)
    for place in slots():
        known = {*(entry.name for entry in fields(algorithm)), *dict(algorithm.plugged)}
        if place.name in known and place.name not in idle:
            lines += _slot_lines(algorithm, place.name)
    return "\n".join(lines).rstrip() + "\n"


def idle_slots(algorithm: Algorithm) -> tuple[str, ...]:
    """Slots whose block has no part in what the algorithm computes."""
    return ("kl_estimator", "controller") if algorithm.kl_placement == "none" else ()


def describe_block(slot_name: str, block_name: str) -> str:
    """The page of one block: formula, hyperparameters, remarks, needs and where it is defined."""
    info = describe(slot_name, block_name)
    said = info.documentation
    lines = [f"{info.slot}.{info.name}: {info.summary}"]
    for label, text in (
        ("also called", ", ".join(info.aliases)),
        ("paper", info.paper),
        ("needs", ", ".join(info.needs_lines)),
        ("asks for", ", ".join(info.extras)),
    ):
        lines += [f"{label}: {text}"] if text else []
    lines += ["", *(f"  {line}" for line in said.formula.split("\n"))] if said.formula else []
    lines += ["", *said.remarks.split("\n")] if said.remarks else []
    if info.hyperparameters:
        lines += ["", "hyperparameters"]
    for entry in info.hyperparameters.values():
        lines.append(f"  {entry.name}: {type_text(entry.annotation)} = {entry.default!r}")
        lines += [f"    {entry.meaning}"] if entry.meaning else []
    lines += ["", f"returns: {said.returns}"] if said.returns else [""]
    lines += [f"source: {said.source}"] if said.source else []
    return "\n".join([*lines, f"defined in {info.where}"]) + "\n"


def block_latex(slot_name: str, block_name: str) -> str:
    """A block's formula in LaTeX, for mathematical mode; empty if it has none."""
    return to_latex_lines(describe(slot_name, block_name).documentation.formula)


def summaries(what: str) -> dict[str, str]:
    """Names with their summaries: the blocks or words of a slot, or the `algorithms`."""
    if what == "algorithms":
        return {name: named_algorithm(name).summary for name in algorithms()}
    if slot(what).choices:
        return {word: PLACEMENTS.get(word, "") for word in names(what)}
    return {name: describe(what, name).summary for name in names(what)}


def algorithm_data(algorithm: Algorithm, *, shared_critic: bool = False) -> dict[str, Any]:
    """What `zootomy show --json` prints of an algorithm: plain data; see `describe_algorithm`."""
    return {
        **algorithm.to_dict(),
        "needs": sorted(algorithm.needs),
        "cost": asdict(cost(algorithm, shared_critic=shared_critic)),
        "objective": objective_text(algorithm).split("\n"),
        "latex": objective_latex(algorithm),
    }


def block_data(slot_name: str, block_name: str) -> dict[str, Any]:
    """What `zootomy show --json` prints of a block: plain data."""
    info = describe(slot_name, block_name)
    return {
        "slot": info.slot,
        "name": info.name,
        "aliases": list(info.aliases),
        "summary": info.summary,
        "formula": info.documentation.formula,
        "latex": block_latex(slot_name, block_name),
        "paper": info.paper,
        "needs": info.needs_lines,
        "hyperparameters": {
            entry.name: {
                "type": type_text(entry.annotation),
                "default": list(entry.default)
                if isinstance(entry.default, tuple)
                else entry.default,
                "meaning": entry.meaning,
            }
            for entry in info.hyperparameters.values()
        },
        "where": info.where,
    }


def _slot_lines(algorithm: Algorithm, name: str) -> list[str]:
    value: Any = algorithm.value(name)
    lines = [f"{name}  ({slot(name).question})"]
    if isinstance(value, str):
        return [*lines, f"  {value}", ""]
    specs = [value] if isinstance(value, BlockSpec) else list(value or ())
    if not specs:
        lines.append("  none")
    for spec in specs:
        lines += _block_lines(name, spec)
    return [*lines, ""]


def _block_lines(slot_name: str, spec: BlockSpec) -> list[str]:
    info = describe(slot_name, spec.name)
    known = {**slot(slot_name).parameters, **info.hyperparameters}
    lines = [f"  {spec.name}: {info.summary}"]
    lines += [f"    {line}" for line in info.documentation.formula.split("\n") if line]
    pairs = {key: f"{key} = {value!r}" for key, value in spec.hyperparameters.items()}
    width = max((len(pair) for pair in pairs.values()), default=0)
    lines += [
        f"      {pair:{width}}   {known[key].meaning}".rstrip() for key, pair in pairs.items()
    ]
    if info.paper:
        lines.append(f"    {info.paper}")
    return lines
