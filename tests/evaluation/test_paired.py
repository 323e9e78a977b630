"""Two models on the same images: against a published example, the binomial formula and SciPy's
bootstrap."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.metrics import balanced_accuracy_score
from tables import answered, random_answers

from vitkit.evaluation import agreement, tango
from vitkit.evaluation.metrics.classification import RESAMPLED
from vitkit.evaluation.metrics.paired import mcnemar, newcombe, paired


@pytest.fixture(scope="module")
def two():
    """A model, and another one that is a little better and mostly agrees with it."""
    logits, targets = random_answers(200, 7)
    better = logits.clone()
    better[np.arange(200), targets] += 0.8
    better += random_answers(200, 7, seed=1)[0] * 0.2
    return answered(better, targets), answered(logits, targets)


def test_shares_are_compared_image_by_image(two):
    first, second = two
    compared = paired(first, second)
    right, other = first.right, second.right
    counts = (compared.both, compared.only_first, compared.only_second, compared.neither)
    expected = (right & other, right & ~other, ~right & other, ~right & ~other)
    assert counts == tuple(each.sum() for each in expected)
    top1 = compared.differences[0]
    assert top1.difference.value == pytest.approx(right.mean() - other.mean())
    assert top1.first.interval[0] < top1.first.value < top1.first.interval[1]
    spread = np.random.default_rng(0).choice(right.astype(float) - other, (4000, 200)).mean(1)
    expected = np.percentile(spread, (2.5, 97.5))
    assert top1.difference.interval == pytest.approx(expected, abs=0.02)
    assert top1.difference.text().startswith("+") and "points" in top1.difference.text()


def test_other_figures_are_compared_by_resampling_the_same_images(two):
    first, second = two
    differences = {each.first.name: each for each in paired(first, second).differences}

    def difference(truth, answer, other):
        return balanced_accuracy_score(truth, answer) - balanced_accuracy_score(truth, other)

    samples = (first.truth, first.predicted, second.predicted)
    ours = differences["balanced_accuracy"].difference
    assert ours.value == pytest.approx(difference(*samples))
    random = np.random.default_rng(1)
    drawn = [random.integers(0, 200, 200) for _ in range(100)]
    theirs = [difference(*(values[rows] for values in samples)) for rows in drawn]
    assert ours.interval == pytest.approx(np.percentile(theirs, (2.5, 97.5)), abs=0.025)
    assert differences["loss"].difference.value == pytest.approx((first.loss - second.loss).mean())


def test_newcombes_interval_is_that_of_his_paper():
    """Newcombe 1998, method 10."""
    assert newcombe(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@pytest.mark.parametrize("cells", [(20, 0, 0, 5), (0, 5, 0, 0), (9, 0, 0, 0), (0, 0, 0, 3)])
def test_intervals_of_models_that_never_disagree_or_always_hold_the_difference(cells):
    low, high = newcombe(*cells)
    difference = (cells[1] - cells[2]) / sum(cells)
    assert -1 <= low <= difference <= high <= 1
    assert high - low > 0.01  # so few images prove little


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 0), (3, 3), (11, 23), (40, 17)])
def test_mcnemars_test_is_the_binomial_formula(first, second):
    total = first + second
    fewer = sum(math.comb(total, k) for k in range(min(first, second) + 1))
    assert mcnemar(first, second) == pytest.approx(min(1, 2 * fewer / 2**total))


def test_images_on_which_one_model_alone_is_right_are_named(two):
    first, second = two
    compared = paired(first, second)
    assert len(compared.disagreements) == compared.only_first + compared.only_second
    for each in compared.disagreements:
        answers = {True: each.first, False: each.second}
        assert answers[each.first_right] == each.true == f"class {first.truth[each.index]}"
        assert answers[not each.first_right] != each.true
    confidences = [each.confidence for each in compared.disagreements]
    assert confidences == sorted(confidences, reverse=True)


def test_a_model_compared_with_itself_is_no_better(two):
    first, _ = two
    compared = paired(first, first)
    assert compared.p_value == 1 and not compared.disagreements
    assert "chance alone would explain" in compared.sentence
    for each in compared.differences:
        assert each.difference.value == 0
        if each.first.name in RESAMPLED:
            assert each.difference.interval is None  # no resample differs
        else:
            assert each.difference.interval[0] < 0 < each.difference.interval[1]


def test_models_of_other_heads_are_compared_by_names():
    logits, targets = random_answers(60, 4)
    names = ("d", "a", "c", "b")
    other = answered(logits[:, [1, 3, 2, 0]], targets, ("a", "b", "c", "d"), names)
    same = answered(logits, targets, names)
    assert agreement(same.right, other.right)[1:3] == (0, 0)
    broken = answered(logits * math.inf, targets, names)
    with pytest.raises(ValueError, match="outputs of the second model are not finite"):
        paired(same, broken)


@pytest.mark.parametrize("counts", [(12, 2, 50), (3, 0, 500), (5, 9, 80)])
def test_tango_s_interval_ends_where_the_score_test_refutes(counts):
    """The statistic at both ends is 1.96, with the variance at the likeliest shares for that
    difference, found by search here."""
    only_first, only_second, count = counts
    for difference in tango(*counts):

        def unlikely(second, difference=difference):
            shares = np.array([second + difference, second, 1 - 2 * second - difference])
            seen = np.array([only_first, only_second, count - only_first - only_second])
            return -(seen * np.log(np.maximum(shares, 1e-300))).sum()

        ends = (max(0, -difference), (1 - difference) / 2)
        found = minimize_scalar(unlikely, bounds=ends, method="bounded", options={"xatol": 1e-12})
        second = found.x
        variance = count * (2 * second + difference - difference**2)
        statistic = (only_first - only_second - count * difference) / np.sqrt(variance)
        assert abs(statistic) == pytest.approx(1.96, abs=1e-3)


def test_tango_s_interval_of_no_difference_and_of_nothing_else():
    low, high = tango(0, 0, 50)
    assert -low == high == pytest.approx(1.959964**2 / (50 + 1.959964**2), abs=1e-6)
    assert tango(7, 0, 7)[1] == 1.0 and tango(0, 7, 7)[0] == -1.0


@pytest.mark.parametrize("shares", [(0.02, 0.02), (0.035, 0.005), (0.03, 0.0), (0.001, 0.0)])
def test_tango_s_interval_holds_rare_differences(shares):
    lost, won = shares
    counts = np.random.default_rng(0).multinomial(400, (lost, won, 1 - lost - won), size=400)
    held = 0
    for only_first, only_second, _ in counts.tolist():
        low, high = tango(only_first, only_second, 400)
        held += low <= lost - won <= high
    assert held >= 0.925 * 400
