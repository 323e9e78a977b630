"""What images promise about the loss of a faster model, by simulation: models whose loss is known."""

import numpy as np
import pytest
import torch
from margins import at_least, at_most

from vitkit.apps.faster.losses import (
    SAME,
    Evidence,
    Judge,
    Loss,
    LossEvidence,
    limit,
    limit_by_probabilities,
    losses,
    needed,
    on_others,
    sum_at_most,
    times_more,
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
    worlds = 60
    for _ in range(worlds):
        logits, p, truth = world(generator, 600)
        judge = Judge(torch.tensor(logits), truth)
        bad = [worse(generator, logits, p, 1.1 * lose) for _ in range(6)]
        good = worse(generator, logits, p, 0.1 * lose)
        chosen = line_of(losses([judge.judged(each) for each in bad], 600)).fastest(lose)
        wrong += chosen.name != "exact"
        useful += line_of(losses([judge.judged(good)], 600)).fastest(lose).name == "0"
    at_most(wrong, 0.1 * worlds)  # 5 % in the mean; without the order it is more than half
    at_least(useful, 0.7 * worlds, best=worlds)


def test_a_limit_holds_in_95_percent_of_cases():
    generator = np.random.default_rng(1)
    weights = generator.random(1000) ** 2
    chance = 0.004
    mean = chance * weights.sum()
    too_low = 0
    for _ in range(2000):
        seen = weights[generator.random(1000) < chance]
        too_low += sum_at_most(seen.sum(), np.square(seen).sum(), 0.05) < mean
    assert too_low <= 0.06 * 2000
    assert sum_at_most(0, 0, 0.05) == pytest.approx(3.0, abs=0.01)  # the rule of three


def test_probabilities_that_are_too_modest_are_found_out():
    costs = np.full(10, 0.1)
    assert times_more([Evidence(8, 2, costs, 1000)]) == pytest.approx(6)
    assert times_more([Evidence(5, 5, costs, 1000)]) == 1
    assert (
        times_more([Evidence(500, 0, np.full(600, 0.5), 1000)]) == 1
    )  # it tells nothing of small ones
    evidence = Evidence(8, 2, costs, 1000)
    assert limit_by_probabilities(evidence, 6.0) > limit_by_probabilities(evidence)


def test_which_limit_is_taken_is_decided_by_other_images():
    nothing = np.zeros(0)
    better = Evidence(
        2, 30, np.full(40, 0.2), 1000
    )  # it wins many: only the right answers show that
    worse_there = Evidence(3, 0, nothing, 200)
    better_there = Evidence(0, 8, np.full(9, 0.2), 200)
    assert (
        limit(LossEvidence(better, better_there, 0.0))
        < 0
        < limit(LossEvidence(better, worse_there, 0.0))
    )


@pytest.mark.parametrize(
    "ordering",
    [
        Evidence(0, 0, np.full(40, 0.2), 1000),  # without a win, though answers promise more
        Evidence(8, 9, np.full(17, 0.01), 1000),  # wins by one, though probabilities promise more
    ],
)
def test_right_answers_count_only_where_they_show_a_win_that_probabilities_do_not(ordering):
    assert limit(LossEvidence(ordering, ordering, 0.0)) == limit_by_probabilities(ordering)


def test_how_many_images_would_promise_it():
    evidence = Evidence(2, 1, np.full(5, 0.1), 400)
    judged = LossEvidence(evidence, Evidence(1, 0, np.full(1, 0.1), 100), 0.001)
    images = needed(judged, 0.005)
    assert 500 < images < 5000
    times = images * 0.8 / 400
    assert limit(judged, share=times) <= 0.005 < limit(judged, share=0.9 * times)
    assert (
        needed(LossEvidence(Evidence(40, 0, np.full(40, 0.9), 400), evidence, 0.1), 0.005) is None
    )
    wins = LossEvidence(
        Evidence(2, 20, np.full(30, 0.2), 400), Evidence(1, 1, np.full(2, 0.2), 100), 0.0
    )
    assert limit(wins) > 0.005 and needed(wins, 0.005) == 500  # other images may show it


def test_copies_of_a_photograph_are_one():
    generator = np.random.default_rng(2)
    logits, p, truth = world(generator, 300)
    other = worse(generator, logits, p, 0.02)
    alone = Judge(torch.tensor(logits), truth)
    pairs = Judge(torch.tensor(logits), truth, np.arange(300) // 2)
    [loss] = losses([alone.judged(other)], 300)
    [of_pairs] = losses([pairs.judged(other)], 300, np.arange(300) // 2)
    assert of_pairs.high - of_pairs.low > 1.2 * (loss.high - loss.low)
    assert (pairs.is_ordering[::2] == pairs.is_ordering[1::2]).all()  # on one side


def test_the_line_is_walked_from_the_slowest_to_the_first_that_fails():
    def loss(expected, at_most):
        return Loss(expected, 0.0, 0.0, at_most, at_most, 0.1)

    line = line_of([loss(0.001, 0.004), loss(0.002, 0.009), loss(0.003, 0.004)])
    assert line.fastest(0.005).name == "0"  # what comes behind one that failed is not asked
    assert line.failing(0.005).name == "1"
    assert line.fastest(0.01).name == "2" and line.failing(0.01) is None
    assert line.fastest(0.001).name == "exact"
    assert line.most_accurate(85.0).name == "1"
    assert line.most_accurate(60.0) is None
    dominated = line_of([loss(0.005, 0.004), loss(0.002, 0.009)])
    assert [each.name for each in dominated.best] == ["exact", "1"]


def test_what_is_hardly_faster_is_not_tested():
    loss = Loss(0.001, 0.0, 0.0, 0.1, 0.1, 0.1)
    good = loss._replace(expected=0.002, at_most=0.001)
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


def test_what_one_candidate_wins_is_no_consolation_for_another():
    loses = Evidence(4, 0, np.full(6, 0.05), 800)
    wins = Evidence(2, 10, np.full(14, 0.2), 800)
    alone = times_more([loses])
    assert alone > 10
    assert times_more([loses, wins]) > 1


def test_what_the_right_answers_refute_is_not_promised():
    """Probabilities that hold for all candidates together may hide what one of them loses."""
    hiding = LossEvidence(
        Evidence(12, 0, np.full(12, 0.05), 800), Evidence(3, 0, np.full(3, 0.05), 200), 0.001
    )
    others = [
        LossEvidence(
            Evidence(9, 5, np.full(20, 0.4), 800), Evidence(3, 2, np.full(5, 0.4), 200), 0.01
        )
    ] * 10
    (found, *_) = losses([hiding, *others], 1000)
    assert found.low > 0.005 and found.at_most > found.lost
