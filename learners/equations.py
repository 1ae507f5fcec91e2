"""The objective that an algorithm's blocks make together, as equations with their values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ..registry import BlockInfo, BlockSpec, describe, slot
from .latex import to_latex, upright

if TYPE_CHECKING:
    from .algorithm import Algorithm

# What it means to place the distance to the reference somewhere.
PLACEMENTS = {
    "none": "no distance to the reference has a part in it.",
    "reward": "each action's reward is less by the coefficient times its distance.",
    "loss": "the coefficient times the distance is added to each action's loss.",
    "advantage": "the coefficient times (mean distance − distance) is added to the advantage.",
}
_GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "lam": "λ",
    "omega": "ω",
    "tau": "τ",
}
_FUNCTION = r"(?:exp|log|min|max|clip|sg|sqrt)\b"


def equations(algorithm: Algorithm) -> list[str]:
    """What is computed, one equation a line; names of blocks stand in backticks.

    Args:
        algorithm: the algorithm.

    Returns:
        The rewards, what each action gets, the advantages, the ratio, the loss, the weights, and
        what there is of a controller and a critic.
    """
    kl, coefficient = _quoted(algorithm.kl_estimator), _coefficient(_one(algorithm.controller))
    placement = algorithm.kl_placement
    rewards = "R"
    for spec in algorithm.value("reward_shaping"):
        rewards = f"{_quoted(spec)}({rewards})"
    rewards = _plugged(algorithm, "reward_shaping", rewards)
    per_action = "r_t = R' on the last action, 0 elsewhere"
    if placement == "reward":
        per_action = (
            f"r_t = (R' on the last action, 0 elsewhere) − {coefficient} · {kl}(π_old, π_ref)_t"
        )
    advantage = f"{_quoted(algorithm.advantage)}(r)"
    if _one(algorithm.whitening).name != "none":
        advantage = f"{_quoted(algorithm.whitening)}({advantage})"
    advantage = _plugged(algorithm, "whitening", advantage)
    if placement == "advantage":
        advantage += f" + {coefficient} · (mean {kl} − {kl}(π_old, π_ref)_t)"
    term = f"{_quoted(algorithm.policy_loss)}(ρ, A)"
    term = _plugged(algorithm, "policy_loss", term)
    if algorithm.correction is not None:
        term = f"{_quoted(algorithm.correction)}(π_old, π_rollout) · {term}"
    if placement == "loss":
        term += f" + {coefficient} · {kl}(π, π_ref)"
    for spec in algorithm.value("regularizer"):
        term += f" + {_weight(spec)} · {_quoted(spec)}"
    lines = [
        f"R' = {rewards}",
        per_action,
        f"A = {advantage}",
        f"log ρ = {_quoted(algorithm.ratio)}(π, π_old)",
        f"loss = Σ w · [{term}]",
        f"w = {_quoted(algorithm.aggregation)}(mask)",
    ]
    for name, controller in _steering(algorithm).items():
        lines.append(f"{name} = {_quoted(controller)}, after each step")
    if algorithm.group_filter is not None:
        lines.insert(0, f"prompts where {_quoted(algorithm.group_filter)}(R)")
    if algorithm.value_loss is not None:
        lines.append(f"critic loss = Σ w · {_quoted(algorithm.value_loss)}(V, V_old, G)")
    return lines


def definitions(algorithm: Algorithm) -> list[tuple[str, str]]:
    """The blocks that the equations name, each with its formula, values in the place of symbols."""
    found: dict[str, str] = {}
    for slot_name, spec in algorithm.specs():
        unused = slot_name == "kl_estimator" and algorithm.kl_placement == "none"
        unused |= slot_name in dict(algorithm.plugged) and not slot(slot_name).after
        if unused or slot_name == "controller" or (slot_name, spec.name) == ("whitening", "none"):
            continue
        found.setdefault(spec.name, formula_with_values(slot_name, spec))
    for spec in _steering(algorithm).values():
        found.setdefault(spec.name, formula_with_values("controller", spec))
    return [(name, text) for name, text in found.items() if text]


def objective_text(algorithm: Algorithm) -> str:
    """The assembled objective as lines of plain text, with the values in it."""
    lines = [line.replace("`", "") for line in equations(algorithm)]
    lines.append("with")
    for name, text in definitions(algorithm):
        first, *more = text.split("\n")
        lines.append(f"  {name}: {first}")
        lines += [f"  {' ' * len(name)}  {line}" for line in more]
    return "\n".join(lines)


def objective_latex(algorithm: Algorithm) -> str:
    """The assembled objective in LaTeX: an `align*` environment for a document with amsmath."""
    rows = [_aligned(to_latex(line)) for line in equations(algorithm)]
    for name, text in definitions(algorithm):
        for k, line in enumerate(text.split("\n")):
            label = upright(f"{name}: ") if k == 0 else ""
            rows.append(f"{label}& {to_latex(line)}")
    body = " \\\\\n".join(f"  {row}" for row in rows)
    return f"\\begin{{align*}}\n{body}\n\\end{{align*}}\n"


def formula_with_values(slot_name: str, spec: BlockSpec) -> str:
    """A block's formula with numbers where its hyperparameters stand.

    A symbol that the formula itself defines stays, and so does what has no number.

    Args:
        slot_name: the block's slot.
        spec: the block with its values.

    Returns:
        The formula's lines; empty if its docstring has none.
    """
    info = describe(slot_name, spec.name)
    text = info.documentation.formula
    for name, symbol in symbols(info).items():
        value = spec.hyperparameters.get(name, info.hyperparameters[name].default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for written in {name, symbol}:
            text = _put(text, written, number(value))
    return text


def symbols(info: BlockInfo) -> dict[str, str]:
    """Hyperparameter -> the symbol that stands for it in the formula, or its name.

    The symbol is what its description begins with (`lo.`, `c > 1, ...`, `τ, the strength`), or
    the Greek letter of its name.
    """
    found = {}
    for name, entry in info.hyperparameters.items():
        first = re.match(r"([^\W\d]\w*[⁺⁻]?)(?=[.,;]| > | of )", entry.meaning)
        candidate = first[1] if first else _GREEK.get(name, name)
        found[name] = candidate if candidate in info.documentation.formula else name
    return found


def number(value: Any) -> str:
    """A value as it stands in an equation.

    >>> number(0.0001), number(-10.0), number(float("inf"))
    ('0.0001', '−10', '∞')
    """
    if isinstance(value, float) and math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}".replace("-", "−") if value < 0 else f"{value:g}"
    return str(value)


def _put(text: str, symbol: str, value: str) -> str:
    """The text with a symbol's number in its place, and a dot where two factors would touch."""
    letter = len(symbol) == 1 and not symbol.isascii()
    guard = (
        ('(?<![_`"])', "(?![_`\"'⁺⁻\u0304])") if letter else ('(?<![\\w`"])', "(?![\\w(`\"'⁺⁻])")
    )
    pattern = f"{guard[0]}{re.escape(symbol)}{guard[1]}"
    if re.search(rf"{pattern}\s*[=←]", text):
        return text

    def replaced(found: re.Match[str]) -> str:
        before, after = text[: found.start()], text[found.end() :]
        result = value
        if re.match(rf" ?(?:[^\W\d](?![a-zA-Z])|\(|{_FUNCTION})| \|", after):
            result += " ·" if after.startswith(" ") else " · "
        if re.search(r"[\w½]$", before):
            result = f" · {result}"
        elif re.search(r"[\d½)] $", before):
            result = f"· {result}"
        return result

    return re.sub(pattern, replaced, text)


def _aligned(row: str) -> str:
    left, equals, right = row.partition(" = ")
    return f"{left} &= {right}" if equals else f"& {row}"


def _one(value: Any) -> BlockSpec:
    assert isinstance(value, BlockSpec)
    return value


def _quoted(value: Any) -> str:
    return f"`{_one(value).name}`"


def _plugged(algorithm: Algorithm, after: str, inner: str) -> str:
    """The equation with the blocks of plug-ins' slots around it that stand there."""
    for name, spec in algorithm.plugged:
        if slot(name).after == after:
            inner = f"{_quoted(spec)}({inner})"
    return inner


def _coefficient(controller: BlockSpec, name: str = "β") -> str:
    """The number of a constant coefficient, the name of one that moves."""
    steady = controller.name == "constant"
    return number(controller.hyperparameters.get("coef")) if steady else name


def _weight(regularizer: BlockSpec) -> str:
    """The coefficient of a regularizer, which a controller may steer."""
    coefficient = regularizer.hyperparameters["coef"]
    if isinstance(coefficient, BlockSpec):
        return _coefficient(coefficient, f"β_{{{regularizer.name}}}")
    return number(coefficient)


def _steering(algorithm: Algorithm) -> dict[str, BlockSpec]:
    """The controllers that move a coefficient, by its name in the equations."""
    found = {}
    if algorithm.kl_placement != "none":
        found["β"] = _one(algorithm.controller)
    for spec in algorithm.value("regularizer"):
        if isinstance(spec.hyperparameters["coef"], BlockSpec):
            found[f"β_{{{spec.name}}}"] = spec.hyperparameters["coef"]
    return {name: spec for name, spec in found.items() if spec.name != "constant"}
