"""A row of results: one measure, one value a contestant, the machine's bound and the target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from children import Contestant

OURS = "zootomy"
LEFT_OUT = "left out"  # why a contestant has no value that was not asked to take part


@dataclass(frozen=True)
class Target:
    """What a measure has to reach: a factor over the best of some, or a share of the bound.

    Attributes:
        factor: how many times better than the best of them; a share of the bound where there is
            nobody in `against`.
        against: their labels.
    """

    factor: float
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One measure.

    Attributes:
        measure: what is measured.
        vocab: the model's vocabulary.
        unit: of the values.
        more_is_better: whether it is a rate.
        cells: label -> `{"value": median, "all": [...]}` or `{"failed": reason}`.
        bound: the best value that the machine's limits allow; None where nothing is known.
        targets: what it has to reach.
        notes: what one should know of it.
    """

    measure: str
    vocab: int
    unit: str
    more_is_better: bool
    cells: Mapping[str, Mapping[str, Any]]
    bound: float | None = None
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()

    def value(self, label: str) -> float | None:
        """The median of a contestant, None if it has none."""
        cell = self.cells.get(label, {})
        return cell.get("value")

    def ratio(self, against: Sequence[str] | None = None) -> float | None:
        """How many times better we are than the best of some; None: than the best of all."""
        ours = self.value(OURS)
        names = [name for name in self.cells if name != OURS] if against is None else against
        theirs = [value for name in names if (value := self.value(name)) is not None]
        if ours is None or not theirs:
            return None
        return ours / max(theirs) if self.more_is_better else min(theirs) / ours

    def share(self) -> float | None:
        """Which part of the bound we reach, 1 being all of it."""
        ours = self.value(OURS)
        if ours is None or self.bound is None:
            return None
        return ours / self.bound if self.more_is_better else self.bound / ours

    def reached(self, target: Target) -> bool | None:
        """Whether a target is reached; None where there is nothing to compare with."""
        found = self.ratio(target.against) if target.against else self.share()
        return None if found is None else found >= target.factor


def cells(
    contestants: Sequence[Contestant], value: Callable[[Mapping[str, Any]], float]
) -> dict[str, dict[str, Any]]:
    """What each said, as medians.

    Args:
        contestants: after their rounds.
        value: the number in an answer.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in contestants:
        if one.failed or not one.answers:
            found[one.label] = {"failed": one.failed or "not measured"}
        else:
            values = [value(answer) for answer in one.answers]
            found[one.label] = {"value": statistics.median(values), "all": values}
    return found


def seconds(answer: Mapping[str, Any]) -> float:
    """The time of an answer."""
    return answer["seconds"]


def rate(answer: Mapping[str, Any]) -> float:
    """Sampled tokens a second of an answer."""
    return answer["tokens"] / answer["seconds"]


def to_plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as JSON has them."""
    return [{**vars(row), "targets": [vars(target) for target in row.targets]} for row in rows]


def from_plain(data: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows from JSON."""
    return [
        Row(
            **{
                **entry,
                "notes": tuple(entry["notes"]),
                "targets": tuple(
                    Target(target["factor"], tuple(target["against"]))
                    for target in entry["targets"]
                ),
            }
        )
        for entry in data
    ]
