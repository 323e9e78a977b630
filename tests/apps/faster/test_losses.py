"""What images promise about the loss of a faster model, by simulation: models whose loss is known."""

import numpy as np
import pytest
import torch
from margins import at_least, at_most

from vitkit.apps.faster.losses import (
    SAME,
    Evidence,
    Loss,
    ReferenceComparison,
    independent,
    is_ordering,
    limit,
    loss_of,
    needed,
    on_others,
)
from vitkit.apps.faster.pareto import ParetoLine, Point

CLASSES = 5


def world(generator, count):
    """Logits of a model that knows how sure it is, and right answers that are drawn by them."""
    logits = generator.normal(size=(count, CLASSES))
    likely = generator.integers(0, CLASSES, count)
    logits[np.arange(count), likely] += 4 * generator.gamma(2.0, 0.7, count)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    truth = (p.cumsum(1) > generator.random((count, 1))).argmax(1)
    return logits, p, truth


def worse(generator, logits, p, loss):
    """The logits with the first two classes changed on some images, so that so much is lost in the mean."""
    rows = np.arange(len(p))
    order = np.argsort(-p, 1)
    gap = p[rows, order[:, 0]] - p[rows, order[:, 1]]
    near = np.exp(-gap / 0.3)
    changed = generator.random(len(p)) < loss / (gap * near).mean() * near
    others = logits.copy()
    first, second = order[changed, 0], order[changed, 1]
    others[changed, first], others[changed, second] = (
        logits[changed, second],
        logits[changed, first],
    )
    return torch.tensor(others)


def point(name, milliseconds, loss):
    return Point(name, "onnx", "int8", (8, 8), 4, 0, milliseconds, 1.0, 1.0, loss)


def line_of(losses):
    """A line of models, each a tenth faster than the one before, behind one that loses nothing."""
    reference = point("exact", 100.0, SAME)
    points = [reference]
    for number, loss in enumerate(losses):
        points.append(point(str(number), 90.0 * 0.9**number, loss))
    return ParetoLine(reference, tuple(points), 100, "photos", 80, 1)


@pytest.mark.slow
def test_the_fastest_of_many_that_lose_too_much_is_hardly_ever_chosen():
    generator = np.random.default_rng(0)
    lose = 0.02
    wrong = 0
    useful = 0
    worlds = 100
    for _ in range(worlds):
        logits, p, truth = world(generator, 600)
        comparison = ReferenceComparison(torch.tensor(logits), truth)
        bad = [worse(generator, logits, p, lose) for _ in range(20)]
        good = worse(generator, logits, p, 0.1 * lose)
        chosen = line_of([loss_of(comparison.of(each)) for each in bad]).fastest(lose)
        wrong += chosen.name != "exact"
        useful += line_of([loss_of(comparison.of(good))]).fastest(lose).name == "0"
    # 5 % in the mean; the least loss of the six would be below it in most
    at_most(wrong, 0.1 * worlds)
    at_least(useful, 0.7 * worlds, best=worlds)


def test_the_limit_is_that_of_a_paired_test():
    # The rule of three
    assert limit(Evidence(0.0, 0, 0, 0, 1000)) == pytest.approx(0.0027, abs=1e-4)
    more = Evidence(0.1, 12, 4, 16, 1000)
    assert 0.008 < limit(more) < 0.016
    assert limit(more, share=0.5) > limit(more) > limit(more, share=4)
    assert loss_of(Evidence(0.0, 0, 0, 0, 1000)).distance > 0  # other arithmetic is not the same


def test_how_many_images_would_promise_it():
    evidence = Evidence(0.01, 2, 1, 5, 400)
    images = needed(evidence, 0.005)
    assert 500 < images < 5000
    times = images * 0.8 / 400
    assert limit(evidence, times) <= 0.005 < limit(evidence, 0.9 * times)
    assert needed(Evidence(0.1, 40, 0, 40, 400), 0.005) is None
    assert needed(Evidence(0.1, 2, 20, 30, 400), 0.005) == 500  # these show it already
    assert needed(Evidence(0.0, 0, 0, 0, 500), 1e-7) == 10_000_000
    assert needed(evidence, 0.005, share=0.5) == pytest.approx(2 * images, rel=0.1)


def test_copies_of_a_photograph_are_one():
    share = independent(300, np.arange(300) // 2)
    assert share == 0.5 and independent(300) == 1
    one_large = independent(600, np.array([0] * 500 + list(range(1, 101))))
    assert one_large * 600 < 2  # nearly all is said by one photograph
    evidence = Evidence(0.02, 5, 2, 9, 300)
    of_two = is_ordering(300, np.arange(300) // 2)
    assert (of_two[::2] == of_two[1::2]).all() and 50 < of_two.sum() < 70  # on one side
    alone = loss_of(evidence)
    pairs = loss_of(evidence, share)
    assert pairs.high - pairs.low > 1.2 * (alone.high - alone.low)
    assert pairs.at_most > alone.at_most and pairs.lost == alone.lost == pytest.approx(0.01)


def test_a_judge_counts_the_images_that_are_classified_otherwise():
    logits = torch.tensor([[9.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    others = torch.tensor([[0.0, 9.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 3.0]])
    comparison = ReferenceComparison(logits, np.array([0, 0, 0, 0, 1]))
    evaluated = comparison.of(others)
    # The first image is for the order, the last a tie of the reference
    assert evaluated[1:] == (1, 1, 2, 4)
    assert evaluated.distance == pytest.approx(1, abs=1e-3)


def test_the_line_is_walked_from_the_slowest_to_the_first_that_fails():
    def loss(distance, at_most, lost=0.0):
        return Loss(distance, lost, 0.0, at_most, at_most, 0.1)

    line = line_of([loss(0.001, 0.004), loss(0.002, 0.009), loss(0.003, 0.004)])
    assert line.fastest(0.005).name == "0"  # what comes behind one that failed is not asked
    assert line.failing(0.005).name == "1"
    assert line.fastest(0.01).name == "2" and line.failing(0.01) is None
    assert line.fastest(0.001).name == "exact"
    assert line.most_accurate(85.0).name == "1"
    assert line.most_accurate(60.0) is None
    gains = line_of([loss(0.001, 0.1, lost=0.05), loss(0.1, 0.1, lost=-0.05)])
    assert gains.most_accurate(95.0).name == "1"  # though it is farther from the original
    dominated = line_of([loss(0.005, 0.004), loss(0.002, 0.009)])
    assert [each.name for each in dominated.best] == ["exact", "1"]


def test_what_is_hardly_faster_is_not_tested():
    loss = Loss(0.001, 0.0, 0.0, 0.1, 0.1, 0.1)
    good = loss._replace(distance=0.002, at_most=0.001)
    reference = point("exact", 100.0, SAME)
    points = (reference, point("hardly", 99.0, loss), point("faster", 50.0, good))
    assert ParetoLine(reference, points, 100, "photos", 80, 1).fastest(0.005).name == "faster"


@pytest.mark.parametrize(("images", "lost", "won"), [(120, 0.03, 0.01), (400, 0.025, 0.005)])
def test_a_few_other_images_may_show_more_than_what_is_lost_of_all(images, lost, won):
    """A model that loses just what is allowed is seen to lose more on every second set of images, but in 95 % of
    sets no more than is said."""
    random = np.random.default_rng(0)
    seen = random.multinomial(images, [lost, won, 1 - lost - won], 4000)
    losses_there = (seen[:, 0] - seen[:, 1]) / images
    allowed = lost - won
    loss = Loss(0.0, allowed, 0.0, 0.0, 0.0, lost + won)
    assert (losses_there > allowed).mean() > 0.3
    assert (losses_there > on_others(loss, allowed, images)).mean() < 0.07
