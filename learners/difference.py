"""How two algorithms differ: only what differs, and what the difference does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..registry import BlockSpec, describe, slot
from .equations import PLACEMENTS

if TYPE_CHECKING:
    from .algorithm import Algorithm

_LABELS = ("name", "summary", "paper", "deviations")
# A description of so few words is a symbol; the block's own line says what it belongs to.
_SHORT = 4


def diff_algorithms(left: Algorithm, right: Algorithm) -> str:
    """Only what differs, each with a line on what it does; says so where nothing does."""
    # An algorithm keeps its name when its blocks are changed.
    changed = " (changed)" if left.name == right.name and left != right else ""
    lines = [f"{left.name} → {right.name}{changed}"]
    for entry in fields(left):
        a, b = left.__dict__[entry.name], right.__dict__[entry.name]
        if entry.name == "plugins":
            for name in sorted({*dict(a), *dict(b)}):
                lines += _difference(name, dict(a).get(name), dict(b).get(name))
        elif entry.name not in _LABELS and a != b:
            lines += _difference(entry.name, a, b)
    if len(lines) == 1:
        lines.append("  the same blocks with the same values")
    elif left.needs != right.needs:
        gone, new = sorted(left.needs - right.needs), sorted(right.needs - left.needs)
        words = [f"no {need} any more" for need in gone] + [f"{need} too" for need in new]
        lines.append(f"  needs: {', '.join(words)}")
    return "\n".join(lines) + "\n"


def plain_differences(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two trees of plain data: `name: before → now`, one entry a line.

    >>> plain_differences({"batch": {"full": 4, "mini": 2}}, {"batch": {"full": 8, "mini": 2}})
    ['batch.full: 4 → 8']
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys((*before, *now))
        pairs = [(f"{name}.{key}" if name else str(key), key) for key in keys]
        return [
            line
            for path, key in pairs
            for line in plain_differences(before.get(key), now.get(key), path)
        ]
    return [] if before == now else [f"{name}: {before!r} → {now!r}"]


def meaning(slot_name: str, block_name: str, key: str) -> str:
    """What a hyperparameter, or a setting of the slot, does; empty if nobody says."""
    info = describe(slot_name, block_name)
    known = {**slot(slot_name).parameters, **info.hyperparameters}
    said = known[key].meaning if key in known else ""
    if len(said.split()) < _SHORT:
        return f"{said} In {block_name}: {info.summary}".strip()
    return said


def _difference(name: str, left: Any, right: Any) -> list[str]:
    slot_name = name.split(".", 1)[0]
    if left == right:
        return []
    if isinstance(left, BlockSpec) and isinstance(right, BlockSpec) and left.name == right.name:
        lines = []
        for key in sorted({*left.hyperparameters, *right.hyperparameters}):
            a, b = left.hyperparameters.get(key), right.hyperparameters.get(key)
            if a != b:
                lines.append(f"  {name}.{key}: {a!r} → {b!r}")
                lines.append(f"    {key}: {meaning(slot_name, left.name, key)}")
        return lines
    if isinstance(left, tuple) and isinstance(right, tuple) and _names(left) == _names(right):
        pairs = [(f"{name}.{a.name}", a, b) for a, b in zip(left, right, strict=True)]
        return [line for label, a, b in pairs for line in _difference(label, a, b)]
    lines = [f"  {name}: {_text(left)} → {_text(right)}"]
    if isinstance(left, str) or isinstance(right, str):
        words = [w for w in (left, right) if isinstance(w, str) and w in PLACEMENTS]
        return lines + [f"    {word}: {PLACEMENTS[word]}" for word in words]
    shared = set(_specs(left)) & set(_specs(right))
    for spec in dict.fromkeys((*_specs(left), *_specs(right))):
        if spec not in shared:
            lines.append(f"    {spec.name}: {describe(name, spec.name).summary}")
    return list(dict.fromkeys(lines))


def _specs(value: Any) -> tuple[BlockSpec, ...]:
    return (value,) if isinstance(value, BlockSpec) else tuple(value or ())


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
