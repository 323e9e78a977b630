"""Intervals of left-out answers to numbers and to several classes hold what the fit reaches on new images,
where each image is alone and where several show one object."""

import numpy as np
import pytest
import torch

from vitkit.evaluation import NATS, SHARE, Features, Probing
from vitkit.evaluation.metrics import metric
from vitkit.evaluation.metrics.metric import CORRELATION, ERROR, widened
from vitkit.evaluation.metrics.other_targets import errors
from vitkit.evaluation.probes.quality import means_without, variance_of_fits

WIDTH = 96
NEW = 4000
ASKED = {
    "number": Probing("number", ("0",), np.zeros(0, np.int64)),
    "classes": Probing("classes", tuple("abc"), np.arange(3)),
}


def world(kind, seed):
    """A function that draws objects: features (G, D), which vary as those of photographs do, most in a few
    directions; and what the objects are."""
    of_world = np.random.default_rng(seed)
    spread = (1 + np.arange(WIDTH)) ** -0.8
    weights = of_world.normal(size=(WIDTH, 3))

    def drawn(count, random):
        x = random.normal(size=(count, WIDTH)) * spread
        y = x @ weights + 0.7 * random.normal(size=(count, 3))
        if kind == "number":
            return x, y[:, 0]
        return x, (y > 0.3).astype(np.float64)

    return drawn


def shots(x, y, each, random):
    number = np.repeat(np.arange(len(x)), each)
    seen = x[number]
    if each > 1:
        seen = seen + 0.2 * seen.std(0) * random.normal(size=seen.shape)
    return seen.astype(np.float32), y[number], number


def held(kind, objects, each, draws, naive=False):
    """How often the intervals of each figure hold, as printed and, if naive, as if each image were alone."""
    asked = ASKED[kind]
    after: dict[str, list[bool]] = {}
    before: dict[str, list[bool]] = {}
    for seed in range(draws):
        random = np.random.default_rng(100 + seed)
        drawn = world(kind, seed)
        x, y, number = shots(*drawn(objects, random), each, random)
        fitted = asked.fit("linear", Features(x, y), number)
        new, truth = drawn(NEW, random)
        # Of what is reached, nothing reads the intervals
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metric, "RESAMPLES", 2)
            reached = asked.quality("left_out", fitted.logits(torch.tensor(new)), truth)
        values = {each.name: each.value for each in reached}
        asked_of = [(asked.left_out_quality(fitted, y, number), after)]
        if naive:
            asked_of.append((asked.quality("left_out", fitted.left_out, y), before))
        for metrics, found in asked_of:
            for printed in metrics:
                low, high = printed.interval
                found.setdefault(printed.name, []).append(low <= values[printed.name] <= high)
    return [{name: np.mean(each) for name, each in found.items()} for found in (after, before)]


@pytest.mark.parametrize(
    ("kind", "objects", "each"), [("number", 50, 1), ("number", 20, 5), ("classes", 20, 5)]
)
def test_intervals_of_left_out_answers_hold_what_the_fit_reaches(kind, objects, each):
    """Coarsely: more draws are among the slow tests."""
    after, before = held(kind, objects, each, 8, naive=each > 1)
    assert np.mean(list(after.values())) > 0.7
    if each > 1:
        assert np.mean(list(before.values())) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("objects", "each"), [(50, 1), (40, 5)])
@pytest.mark.parametrize("kind", ["number", "classes"])
def test_in_many_draws_they_hold_in_nine_of_ten(kind, objects, each, monkeypatch):
    monkeypatch.setattr(metric, "RESAMPLES", 250)
    after, _ = held(kind, objects, each, 40)
    assert min(after.values()) > 0.83 and np.mean(list(after.values())) > 0.9


def test_a_correlation_of_answers_that_know_nothing_is_none():
    """A fit without an image begins at the mean of the others, which is the lower the larger the image's own
    number is: by itself that is a correlation of -1."""
    random = np.random.default_rng(0)
    found = []
    raw = []
    for _ in range(30):
        x = random.normal(size=(30, 20)).astype(np.float32)
        y = random.normal(size=30)
        fitted = ASKED["number"].fit("linear", Features(x, y))
        metrics = {m.name: m for m in ASKED["number"].left_out_quality(fitted, y)}
        found.append(metrics["left_out/pearson"].value)
        raw.append(np.corrcoef(fitted.left_out[:, 0], y)[0, 1])
    assert np.mean(raw) < -0.25
    assert abs(np.mean(found)) < 0.17


def test_the_mean_of_the_others_explains_nothing_and_not_less():
    """Beside the mean of all, it would have an R² of 1 - (n / (n - 1))², below 0."""
    y = torch.tensor(np.random.default_rng(0).normal(size=12))
    others = torch.tensor(means_without(y.numpy(), np.arange(12)))
    _, r2, _ = errors(others, y, means=others)
    assert r2.value == pytest.approx(0)
    _, r2, _ = errors(others, y)
    assert r2.value == pytest.approx(1 - (12 / 11) ** 2)


def test_means_without_a_fold_are_those_of_all_others():
    y = np.array([[1.0, 0], [2, 1], [4, 1], [9, 0]])
    fold = np.array([0, 0, 1, 2])
    expected = [y[2:].mean(0), y[2:].mean(0), y[[0, 1, 3]].mean(0), y[:3].mean(0)]
    assert means_without(y, fold) == pytest.approx(np.array(expected))
    assert means_without(y[:, 0], fold) == pytest.approx(np.array(expected)[:, 0])


def test_fits_vary_less_the_more_they_have_learned_from():
    factors = [variance_of_fits(count) for count in (10, 50, 200, 5000)]
    assert factors == sorted(factors, reverse=True) and 1 < factors[-1] < 1.2


@pytest.mark.parametrize("unit", [ERROR, CORRELATION, SHARE, NATS])
def test_a_wider_interval_ends_where_the_number_can_be(unit):
    low, high = widened(unit, 0.9, (0.6, 0.97), 4.0)
    assert low < 0.6 and high > 0.97
    assert widened(unit, 0.9, (0.6, 0.97), 1.0) == pytest.approx((0.6, 0.97))
    assert widened(unit, 0.9, None, 4.0) is None
    if unit == ERROR:
        assert low > 0
    if unit in (CORRELATION, SHARE):
        assert high <= 1
