"""A sampled batch as plain data, bit for bit, for a checkpoint written before it is used."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ..rollout import Completion
from .collect import Collected, Group


def pack_batch(batch: Collected) -> dict[str, Any]:
    """A batch as data that JSON can hold; arrays are one text, the base64 of an npz file."""
    arrays: dict[str, np.ndarray] = {}
    groups = []
    for g, group in enumerate(batch.sampled):
        completions = [
            _plain(vars(completion), f"{g}.{n}", arrays)
            for n, completion in enumerate(group.completions)
        ]
        rest = {name: value for name, value in vars(group).items() if name != "completions"}
        groups.append({**_plain(rest, str(g), arrays), "completions": completions})
    numbers = {id(group): g for g, group in enumerate(batch.sampled)}
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return {
        "sampled": groups,
        # A group can stand in a batch twice, and one that was sampled need not.
        "groups": [numbers[id(group)] for group in batch.groups],
        "consumed": batch.consumed,
        "refills": batch.refills,
        "failures": dict(batch.failures),
        "arrays": base64.b64encode(file.getvalue()).decode("ascii"),
    }


def unpack_batch(data: Mapping[str, Any]) -> Collected:
    """The batch that `pack_batch` packed."""
    file = io.BytesIO(base64.b64decode(data["arrays"]))
    with np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    sampled = []
    for g, group in enumerate(data["sampled"]):
        completions = [
            Completion(**_whole(entry, f"{g}.{n}", arrays, Completion))
            for n, entry in enumerate(group["completions"])
        ]
        rest = {name: value for name, value in group.items() if name != "completions"}
        found = _whole(rest, str(g), arrays, Group)
        sampled.append(Group(**{**found, "completions": completions}))
    return Collected(
        groups=[sampled[g] for g in data["groups"]],
        consumed=data["consumed"],
        sampled=sampled,
        refills=data["refills"],
        failures=Counter(data["failures"]),
    )


def _plain(values: Mapping[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Numbers and texts as they are, numbers that JSON lacks and arrays among the arrays."""
    plain = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray | float | np.generic):
            arrays[f"{prefix}.{name}"] = np.asarray(value)
        elif _holds_arrays(value):
            arrays |= {f"{prefix}.{name}.{i}": one for i, one in enumerate(value)}
            plain[name] = {"arrays": len(value)}
        elif isinstance(value, tuple):
            plain[name] = list(value)
        else:
            plain[name] = value
    return plain


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, np.ndarray) for one in value)


def _whole(
    plain: Mapping[str, Any], prefix: str, arrays: Mapping[str, np.ndarray], kind: type
) -> dict[str, Any]:
    """The fields of a dataclass from what `_plain` made of them."""
    found: dict[str, Any] = {}
    for entry in fields(kind):
        if entry.name in plain:
            value = plain[entry.name]
            if isinstance(value, Mapping):
                value = [arrays[f"{prefix}.{entry.name}.{i}"] for i in range(value["arrays"])]
            found[entry.name] = tuple(value) if isinstance(value, list) else value
        elif f"{prefix}.{entry.name}" in arrays:
            value = arrays[f"{prefix}.{entry.name}"]
            found[entry.name] = value if value.ndim else value.item()
    return found
