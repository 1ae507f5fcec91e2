"""Metrics: no split of a batch changes a mean, and nothing missing counts as zero."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.monitor import Mean, MetricAccumulator, MonitorError, nonfinite


def test_means_merge_by_weight():
    # Fault 74: 3 clipped of 12 and 3 of 4: 6/16 = .375; the mean of the means is .5.
    metrics = MetricAccumulator()
    metrics.add_sum("clip_ratio", 3, 12)
    other = MetricAccumulator()
    other.add_sum("clip_ratio", 3, 4)
    metrics.merge(other)
    assert metrics.result() == {"clip_ratio": 0.375}


def test_masked_rows_do_not_count():
    # Fault 75: KL [1, -, 1, -] with two masked rows: 1.0; counted as 0 they give .5.
    assert Mean.of([1.0, 0.0, 1.0, 0.0], [1, 0, 1, 0]).value == 1.0
    assert Mean.of([1.0, math.nan, 1.0, math.inf], [1, 0, 1, 0]).value == 1.0


def test_inactive_values_do_not_count():
    # Fault 16: [.5, NaN, NaN, .8, .6, .7] has the mean 2.6/4 = .65, not NaN, not 2.6/6.
    values = [0.5, math.nan, math.nan, 0.8, 0.6, 0.7]
    assert Mean.of(values).value == pytest.approx(0.65)
    metrics = MetricAccumulator()
    for value in values:
        metrics.add("rewards/f/mean", value)
    assert metrics.result() == {"rewards/f/mean": pytest.approx(0.65)}


def test_a_mean_of_nothing_is_absent():
    metrics = MetricAccumulator()
    metrics.add("a", [math.nan, math.nan])
    metrics.add("b", [1.0, 2.0], [0, 0])
    metrics.add_sum("c", 0, 0)
    metrics.maximum("d", [math.nan])
    assert metrics.result() == {}
    assert Mean().value is None


def test_a_computed_nan_shows():
    metrics = MetricAccumulator()
    metrics.add_sum("policy_loss", math.nan, 4)
    metrics.add_sum("policy_loss", 2.0, 4)
    metrics.gauge("lr", math.inf)
    metrics.add("reward/mean", 1.0)
    result = metrics.result()
    assert math.isnan(result["policy_loss"])
    assert nonfinite(result) == ["lr", "policy_loss"]


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.integers(0, 5)), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_any_split_gives_the_same_mean(pairs, size):
    values, weights = np.array(pairs).T
    whole = Mean.of(values, weights)
    parts = Mean()
    for start in range(0, len(values), size):
        parts += Mean.of(values[start : start + size], weights[start : start + size])
    assert parts.weight == whole.weight
    assert parts.sum == pytest.approx(whole.sum)


def test_extremes_gauges_and_reset():
    metrics, other = MetricAccumulator(), MetricAccumulator()
    metrics.maximum("max", [1, 5, math.nan])
    other.maximum("max", 3)
    metrics.minimum("min", 4)
    other.minimum("min", [2, 7])
    metrics.gauge("lr", 0.1)
    other.gauge("lr", 0.2)
    metrics.merge(other)
    assert metrics.result() == {"lr": 0.2, "max": 5.0, "min": 2.0}
    metrics.reset()
    assert metrics.result() == {}


def test_wrong_use():
    with pytest.raises(MonitorError, match=r"shape \(2,\) have weights of shape \(3,\)"):
        Mean.of([1, 2], [1, 1, 1])
    with pytest.raises(MonitorError, match="finite and at least 0"):
        Mean.of([1.0, 2.0], [1, -1])
    metrics = MetricAccumulator()
    metrics.gauge("lr", 1)
    with pytest.raises(MonitorError, match="Metric 'lr' is a mean, a maximum, a minimum or a gau"):
        metrics.add("lr", 1)
