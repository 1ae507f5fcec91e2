"""Algorithms as text: what each block does, the assembled objective, how two of them differ."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..registry import BlockSpec, describe, slot, slots

if TYPE_CHECKING:
    from .algorithm import Algorithm


def describe_algorithm(algorithm: Algorithm) -> str:
    """The page that `zootomy show` prints: every block with its formula, paper and values."""
    title = f"{algorithm.name}: {algorithm.summary}" if algorithm.summary else algorithm.name
    lines = [title]
    if algorithm.paper:
        lines.append(f"paper: {algorithm.paper}")
    lines.extend(f"deviates: {sentence}" for sentence in algorithm.deviations)
    needs = ", ".join(sorted(algorithm.needs)) or "nothing beyond the policy"
    lines += [f"needs: {needs}", "", "objective", *_indent(objective_text(algorithm)), ""]
    for place in slots():
        if place.name in {entry.name for entry in fields(algorithm)}:
            lines += _slot_lines(algorithm, place.name)
    return "\n".join(lines).rstrip() + "\n"


def objective_text(algorithm: Algorithm) -> str:
    """The assembled objective as lines of plain text, with the values in it."""
    chain = " → ".join(spec.name for spec in algorithm.value("reward_shaping")) or "R"
    estimator = _one(algorithm.kl_estimator).name
    coefficient = _coefficient(_one(algorithm.controller))
    placement = algorithm.kl_placement
    rewards = "r_t = [t is the last action] · R'"
    if placement == "reward":
        rewards += f" − {coefficient} · {estimator}_t(π_old ‖ π_ref)"
    advantage = f"A = {_call(_one(algorithm.advantage))}(r)"
    whitening = _one(algorithm.whitening)
    if whitening.name != "none":
        advantage = f"A = {_call(whitening)}({_call(_one(algorithm.advantage))}(r))"
    if placement == "advantage":
        advantage += f" + {coefficient} · (mean {estimator} − {estimator}_t)"
    term = f"{_call(_one(algorithm.policy_loss))}(r = {_one(algorithm.ratio).name} ratio, A)"
    if algorithm.correction is not None:
        term = f"{_call(_one(algorithm.correction))}(π_old / π_rollout) · {term}"
    if placement == "loss":
        term += f" + {coefficient} · {estimator}(π ‖ π_ref)"
    for spec in algorithm.value("regularizer"):
        term += f" + {spec.hyperparameters['coef']} · {spec.name}"
    lines = [f"R' = {chain}" if chain == "R" else f"R' = {chain} (R)", rewards, advantage]
    lines.append(f"loss = Σ w · [{term}],  w = {_call(_one(algorithm.aggregation))}")
    if algorithm.value_loss is not None:
        lines.append(f"critic loss = Σ w · {_call(_one(algorithm.value_loss))}(V, returns)")
    return "\n".join(lines)


def diff_algorithms(left: Algorithm, right: Algorithm) -> str:
    """Only what differs, a line a block or value; says so where nothing does."""
    lines = [f"{left.name} → {right.name}"]
    for entry in fields(left):
        if entry.name in ("name", "summary", "paper", "deviations"):
            continue
        a, b = left.__dict__[entry.name], right.__dict__[entry.name]
        if a != b:
            lines += _difference(entry.name, a, b)
    if len(lines) == 1:
        lines.append("  the same blocks with the same values")
    return "\n".join(lines) + "\n"


def formula(slot_name: str, block_name: str) -> str:
    """The formula of a block: the first indented passage of its docstring; empty if it has none."""
    documentation = inspect.getdoc(describe(slot_name, block_name).function) or ""
    passage: list[str] = []
    for line in documentation.split("\n")[1:]:
        if line.startswith("    ") or (passage and not line.strip()):
            passage.append(line)
        elif line.rstrip() == "Args:" or passage:
            break
    return textwrap.dedent("\n".join(passage)).strip()


def _one(value: Any) -> BlockSpec:
    assert isinstance(value, BlockSpec)
    return value


def _indent(text: str) -> list[str]:
    return textwrap.indent(text, "  ").split("\n")


def _coefficient(controller: BlockSpec) -> str:
    coefficient = controller.hyperparameters.get("coef")
    return str(coefficient) if controller.name == "constant" else f"β[{controller.name}]"


def _call(spec: BlockSpec) -> str:
    values = [f"{key}={value}" for key, value in spec.hyperparameters.items() if value is not None]
    return f"{spec.name}[{', '.join(values)}]" if values else spec.name


def _slot_lines(algorithm: Algorithm, name: str) -> list[str]:
    value = algorithm.value(name)
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
    lines = [f"  {spec.name}: {info.summary}"]
    lines += ["    " + line for line in formula(slot_name, spec.name).split("\n") if line]
    values = {**spec.hyperparameters}
    if values:
        lines.append("    " + ", ".join(f"{key} = {value!r}" for key, value in values.items()))
    if info.paper:
        lines.append(f"    {info.paper}")
    return lines


def _difference(name: str, left: Any, right: Any) -> list[str]:
    if isinstance(left, BlockSpec) and isinstance(right, BlockSpec) and left.name == right.name:
        keys = sorted({*left.hyperparameters, *right.hyperparameters})
        pairs = [
            (key, left.hyperparameters.get(key), right.hyperparameters.get(key)) for key in keys
        ]
        return [f"  {name}.{key}: {a!r} → {b!r}" for key, a, b in pairs if a != b]
    if isinstance(left, tuple) and isinstance(right, tuple) and _names(left) == _names(right):
        pairs = [(f"{name}.{a.name}", a, b) for a, b in zip(left, right, strict=True)]
        return [line for label, a, b in pairs for line in _difference(label, a, b)]
    lines = [f"  {name}: {_text(left)} → {_text(right)}"]
    for value in (left, right):
        for spec in [value] if isinstance(value, BlockSpec) else value or ():
            if isinstance(spec, BlockSpec):
                line = f"    {spec.name}: {describe(name, spec.name).summary}"
                lines += [line] if line not in lines else []
    return lines


def _names(specs: tuple[BlockSpec, ...]) -> list[str]:
    return [spec.name for spec in specs]


def _text(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, BlockSpec):
        return value.name
    if isinstance(value, tuple):
        return ", ".join(spec.name for spec in value)
    return str(value)
