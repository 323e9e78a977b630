"""Metrics: their unit decides what is printed and which of two is better; they come back from a
file as they were."""

import json
import math

import numpy as np
import pytest
from margins import at_least

from vitkit.evaluation import COUNT, NATS, SHARE, Metric, Unit, wilson
from vitkit.evaluation.metrics.metric import (
    CORRELATION,
    UNITS,
    basic_percentiles,
    interval_of,
    percentiles,
    resampled,
    with_intervals,
)


def test_the_unit_prints():
    assert Metric("a", 0.724, SHARE).text() == "72.40 %"
    assert Metric("a", 0.724, SHARE, (0.6755, 0.768)).text() == "72.40 % (67.55 to 76.80 %)"
    assert Metric("a", 0.93214, NATS).text() == "0.9321"
    assert Metric("a", 1234, COUNT).text() == "1,234"
    assert Metric("a", 1234567.0, UNITS["number"]).text() == "1.235e+06"
    assert Metric("a", math.nan, NATS).text() == "nan"


def test_the_unit_compares():
    assert Metric("a", 0.9, SHARE).beats(Metric("b", 0.8, SHARE))
    assert Metric("a", 0.8, NATS).beats(Metric("b", 0.9, NATS))
    assert not Metric("a", 0.8, NATS).beats(Metric("b", 0.8, NATS))
    assert Metric("a", 9.0, NATS).beats(Metric("b", math.nan, NATS))
    assert not Metric("a", math.nan, NATS).beats(Metric("b", 9.0, NATS))
    for other in (Metric("b", 2, COUNT), Metric("b", 2, SHARE)):
        with pytest.raises(ValueError, match="cannot be compared"):
            Metric("a", 1, COUNT).beats(other)


@pytest.mark.parametrize("value", [0.5, 3, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "unit", [SHARE, CORRELATION, Unit("seconds", "s", "lower", ".1f", 1e3, " ms")]
)
def test_a_metric_comes_back_from_json(value, unit):
    metric = Metric("test/x", value, unit, (0.25, 0.75))
    text = json.dumps(metric.to_json(), allow_nan=False)
    again = Metric.from_json("test/x", json.loads(text))
    assert repr(again) == repr(metric)


@pytest.mark.parametrize(("right", "seen"), [(0, 10), (10, 10), (13, 19), (1, 2), (362, 500)])
def test_wilson_is_scipys(right, seen):
    from scipy.stats import binomtest

    low, high = binomtest(right, seen).proportion_ci(method="wilson")
    assert wilson(right, seen) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("seen", [1, 6, 7, 1000])
def test_the_interval_of_none_or_all_right_ends_at_0_or_1(seen):
    assert wilson(0, seen)[0] == 0 and wilson(seen, seen)[1] == 1


def test_percentiles_hold_the_middle_95_percent():
    values = np.arange(1001.0)
    assert percentiles(values, 10**9) == pytest.approx((25, 975))
    assert interval_of(values, 10**9) == pytest.approx((25, 975))
    assert interval_of(np.ones(9), 9) is interval_of(np.array([1.0, np.nan]), 2) is None
    assert interval_of(np.linspace(0.2, 0.3, 101), 10**9) == pytest.approx((0.2025, 0.2975))


@pytest.mark.parametrize("units", [2, 3, 4, 5])
def test_an_interval_of_very_few_holds_the_mean(units):
    """Of two units, resampled means are the two and their middle: no percentiles of them are 95 % of anything."""
    random = np.random.default_rng(units)
    held = 0
    for _ in range(300):
        seen = random.beta(8, 2, units)
        means = seen[random.integers(0, units, (500, units))].mean(1)
        low, high = interval_of(means, units, SHARE)
        assert 0 <= low < high <= 1
        held += low <= 0.8 <= high
    at_least(held / 300, 0.86)


def test_turned_percentiles_are_as_far_on_the_other_side_and_never_below_0():
    values = np.arange(1001.0)
    assert basic_percentiles(600, values, 10**9) == pytest.approx((225, 1175))
    assert basic_percentiles(10, values, 10**9) == (0, 0)


@pytest.mark.whole_statistics
def test_a_mean_has_the_interval_that_theory_gives_it():
    """The mean of N numbers: 1.96 standard errors on each side, as well as 1000 resamples tell."""
    numbers = np.random.default_rng(0).normal(3, 2, 400)

    def figures(rows):
        return np.array([numbers[rows].mean(), numbers[rows].max()])

    units = {"mean": UNITS["number"], "most": UNITS["number"]}
    mean, most = with_intervals(units, figures, len(numbers))
    assert (mean.value, most.value) == (numbers.mean(), numbers.max())
    assert len(resampled(figures, len(numbers))) == 1000
    error = 1.96 * numbers.std() / 20
    assert mean.interval == pytest.approx((mean.value - error, mean.value + error), abs=error / 6)
    assert most.interval[1] == most.value
    assert with_intervals(units, figures, len(numbers), finite=False)[0].interval is None


@pytest.mark.parametrize("unit", [SHARE, UNITS["error"], CORRELATION])
def test_a_widened_interval_of_very_few_stays_possible(unit):
    """Widened for the variance of the fits, which `fewer` stands for."""
    for seed in range(20):
        seen = np.random.default_rng(seed).beta(8, 0.5, 3)
        (metric,) = with_intervals(
            {"x": unit}, lambda rows, x=seen: x[rows].mean(keepdims=True), 3, fewer=2
        )
        low, high = metric.interval
        assert low <= metric.value <= high
        assert unit == CORRELATION or low >= 0
        assert unit == UNITS["error"] or high <= 1
