"""Metrics that add up rightly: sums and weights are merged, never means of means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..registry import ZootomyError


class MonitorError(ZootomyError):
    """A metric, log or plot that cannot be made from what was given."""


@dataclass(frozen=True)
class Mean:
    """A weighted mean in two parts that can be added over micro-batches, steps and hosts.

        value = sum / weight

    Args:
        sum: `Σ w_i x_i`.
        weight: `Σ w_i`.
    """

    sum: float = 0.0
    weight: float = 0.0

    @classmethod
    def of(cls, values: Any, weights: Any = None) -> Mean:
        """The mean of what is there.

        NaN means "does not apply" and does not count; neither does an entry of weight 0, whatever
        it holds. Infinity counts, and shows.

        Args:
            values: a number or an array.
            weights: of the same shape, at least 0, e.g. a mask; None: 1 each.

        Raises:
            MonitorError: if the shapes differ or a weight is negative or not finite.
        """
        x = np.asarray(values, np.float64)
        w = np.ones_like(x) if weights is None else np.asarray(weights, np.float64)
        if x.shape != w.shape:
            raise MonitorError(f"Values of shape {x.shape} have weights of shape {w.shape}.")
        if not (np.isfinite(w) & (w >= 0)).all():
            raise MonitorError(f"Weights must be finite and at least 0, got {w}.")
        counts = (w > 0) & ~np.isnan(x)
        return cls(float((np.where(counts, x, 0.0) * w).sum()), float(w[counts].sum()))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.weight + other.weight)

    @property
    def value(self) -> float | None:
        """The mean, or None where nothing counts: no mean is not a mean of 0."""
        return self.sum / self.weight if self.weight != 0 else None


class MetricAccumulator:
    """Metrics of one step, gathered from micro-batches, several hosts, or both.

    Means by weight, largest and smallest values, and gauges (the last value set). A name belongs
    to one of these kinds.

    >>> metrics = MetricAccumulator()
    >>> metrics.add_sum("clip_ratio", 3, 12)
    >>> metrics.add_sum("clip_ratio", 3, 4)
    >>> metrics.result()
    {'clip_ratio': 0.375}
    """

    def __init__(self) -> None:
        self._means: dict[str, Mean] = {}
        self._largest: dict[str, float] = {}
        self._smallest: dict[str, float] = {}
        self._gauges: dict[str, float] = {}

    def add(self, name: str, values: Any, weights: Any = None) -> None:
        """Count observations into a mean; NaN and weight 0 do not count, see `Mean.of`."""
        self.add_mean(name, Mean.of(values, weights))

    def add_sum(self, name: str, total: Any, weight: Any) -> None:
        """Count a sum and its weight into a mean, as a jitted step returns them.

        A NaN here was computed, so it is kept and shows in the log.
        """
        self.add_mean(name, Mean(float(total), float(weight)))

    def add_mean(self, name: str, mean: Mean) -> None:
        """Count a mean's two parts."""
        self._claim(name, self._means)
        self._means[name] = self._means.get(name, Mean()) + mean

    def maximum(self, name: str, values: Any) -> None:
        """Keep the largest value; NaN does not count."""
        self._claim(name, self._largest)
        self._keep(self._largest, name, values, max)

    def minimum(self, name: str, values: Any) -> None:
        """Keep the smallest value; NaN does not count."""
        self._claim(name, self._smallest)
        self._keep(self._smallest, name, values, min)

    def gauge(self, name: str, value: Any) -> None:
        """Set a value that no other is averaged with, e.g. a learning rate."""
        self._claim(name, self._gauges)
        self._gauges[name] = float(value)

    def merge(self, other: MetricAccumulator) -> None:
        """Count everything another accumulator holds; its gauges win."""
        for name, mean in other._means.items():
            self.add_mean(name, mean)
        for name, value in other._largest.items():
            self.maximum(name, value)
        for name, value in other._smallest.items():
            self.minimum(name, value)
        for name, value in other._gauges.items():
            self.gauge(name, value)

    def result(self) -> dict[str, float]:
        """Every metric's value, by name; a mean of nothing is absent, not 0."""
        means = {name: mean.value for name, mean in self._means.items()}
        present = {name: value for name, value in means.items() if value is not None}
        return dict(sorted({**present, **self._largest, **self._smallest, **self._gauges}.items()))

    def reset(self) -> None:
        """Forget everything, for the next step."""
        for kind in (self._means, self._largest, self._smallest, self._gauges):
            kind.clear()

    def _claim(self, name: str, kind: Mapping[str, Any]) -> None:
        for other in (self._means, self._largest, self._smallest, self._gauges):
            if other is not kind and name in other:
                raise MonitorError(
                    f"Metric {name!r} is a mean, a maximum, a minimum or a gauge already; give "
                    "this one another name."
                )

    @staticmethod
    def _keep(kept: dict[str, float], name: str, values: Any, choose: Any) -> None:
        numbers = np.asarray(values, np.float64).ravel()
        numbers = numbers[~np.isnan(numbers)]
        if numbers.size:
            kept[name] = float(choose(kept.get(name, numbers[0]), choose(numbers)))


def nonfinite(metrics: Mapping[str, float]) -> list[str]:
    """The names of metrics that are NaN or infinite, sorted."""
    return sorted(name for name, value in metrics.items() if not math.isfinite(value))
