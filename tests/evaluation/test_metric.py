"""Metrics: their unit decides what is printed and which of two is better; they come back from a
file as they were."""

import json
import math

import pytest

from vitkit.evaluation.metrics.metric import (
    CORRELATION,
    COUNT,
    NATS,
    SHARE,
    UNITS,
    Metric,
    Unit,
    wilson,
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
