"""The numbers of a report against scikit-learn, torchmetrics and SciPy, on ordinary and on
degenerate answers."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from scipy.stats import bootstrap
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from tables import answered, classifier_of, measured, part_of, random_answers

from vitkit.evaluation import Accuracy, answers_of_logits
from vitkit.evaluation.metrics import calibration, classification
from vitkit.evaluation.metrics.calibration import (
    at_coverages,
    coverage_curve,
    perfect_error,
    reliability,
)
from vitkit.evaluation.probes.quality import quality


def figures(given):
    return {metric.name: metric for metric in classification.classification(given)}


def test_answers_of_logits_are_those_of_the_model_that_gave_them():
    logits, targets = random_answers(50, 6)
    classifier = classifier_of(logits)
    source = part_of(targets, classifier.labels).source
    given = answers_of_logits(classifier, source, logits)
    for name, values in vars(answered(logits, targets)).items():
        assert np.array_equal(getattr(given, name), values), name


@pytest.mark.parametrize(
    ("count", "classes", "seed"), [(333, 10, 0), (61, 3, 1), (90, 9, 3), (500, 40, 2)]
)
def test_metrics_are_those_of_other_libraries(count, classes, seed):
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_calibration_error,
        multiclass_f1_score,
    )

    logits, targets = random_answers(count, classes, seed)
    metrics = {name: metric.value for name, metric in figures(answered(logits, targets)).items()}
    predicted = logits.argmax(-1).numpy()
    probabilities = logits.double().softmax(-1).numpy()
    expected = {
        "top1": accuracy_score(targets, predicted),
        "balanced_accuracy": balanced_accuracy_score(targets, predicted),
        "macro_f1": f1_score(targets, predicted, average="macro"),
        "loss": log_loss(targets, probabilities, labels=range(classes)),
        "seen": count,
    }
    if classes >= 10:
        expected["top5"] = top_k_accuracy_score(targets, logits.numpy(), k=5, labels=range(classes))
    assert ("top5" in metrics) == (classes >= 10)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-6), name

    theirs = {
        "calibration_error": multiclass_calibration_error(
            logits, torch.from_numpy(targets), classes
        ),
        "macro_f1": multiclass_f1_score(logits, torch.from_numpy(targets), classes),
        "balanced_accuracy": multiclass_accuracy(logits, torch.from_numpy(targets), classes),
    }
    for name, value in theirs.items():
        assert metrics[name] == pytest.approx(value.item(), abs=1e-6), name


@pytest.mark.parametrize("size", [1, 7, 10, 64])
def test_every_image_counts_once(size):
    """Whatever the batch, and whatever fills the last one up."""
    logits, targets = random_answers(23, 10)
    classifier = classifier_of(logits)
    metrics = measured(Accuracy(), classifier, part_of(targets, classifier.labels, size))
    assert metrics["seen"].value == 23
    assert metrics["top1"].value == accuracy_score(targets, logits.argmax(1).numpy())
    assert metrics["loss"].value == pytest.approx(
        log_loss(targets, logits.double().softmax(1).numpy(), labels=range(10)), rel=1e-6
    )


@pytest.mark.parametrize("rare", [4, 3])
def test_classes_of_unequal_size_count_alike_too(rare):
    """Ten images of one class, all right, and a few of another, of which one is."""
    logits = np.eye(3, dtype=np.float32)[[0] * 10 + [1] + [0] * (rare - 1)]
    part = part_of([0] * 10 + [1] * rare, ("a", "b", "c"))
    metrics = measured(Accuracy(), classifier_of(logits, ("a", "b", "c")), part)
    assert ("balanced_accuracy" in metrics) == (rare == 3)  # of three times the images
    if rare == 3:
        assert metrics["balanced_accuracy"].value == pytest.approx((1 + 1 / 3) / 2)


@pytest.mark.parametrize("in_bursts", [False, True])
def test_balanced_accuracy_has_one_interval(in_bursts):
    """The same 38 answers had 34.67 to 90.68 % in the terminal, and 52.60 to 82.92 % on the page."""
    random = np.random.default_rng(0)
    targets = np.repeat([0, 1, 2], [30, 5, 3])
    logits = random.normal(size=(38, 3)) + 1.5 * np.eye(3)[targets]
    groups = np.arange(38) // 3 if in_bursts else None
    given = replace(answered(logits.astype(np.float32), targets), groups=groups)
    on_the_page = figures(given)["balanced_accuracy"]
    while_training = classification.balanced(given)
    in_the_terminal = next(
        quality("test", torch.tensor(logits).float(), targets, balanced=True, groups=groups)
    )
    assert on_the_page.value == pytest.approx(in_the_terminal.value)
    assert on_the_page.interval == pytest.approx(in_the_terminal.interval)
    assert on_the_page == while_training


def test_class_scores_and_the_confusion_matrix_are_scikit_learns():
    logits, targets = random_answers(300, 6)
    logits[:, 4] = -9  # nobody gets this answer
    given = answered(logits, targets)
    predicted = logits.argmax(-1).numpy()
    scores = classification.class_scores(given)
    precision, recall, f1, images = precision_recall_fscore_support(
        targets, predicted, zero_division=0
    )
    assert [score.precision or 0 for score in scores] == pytest.approx(precision)
    assert [score.recall for score in scores] == pytest.approx(recall)
    assert [score.f1 for score in scores] == pytest.approx(f1)
    assert [score.images for score in scores] == images.tolist()
    assert scores[4].precision is None

    matrix = classification.confusion_matrix(given)
    expected = confusion_matrix(targets, predicted)
    assert (matrix[:, :6] == expected).all() and not matrix[:, 6].any()
    pairs = classification.most_confused(given)
    np.fill_diagonal(expected, 0)
    assert sum(pair.count for pair in pairs) == expected.sum()
    assert pairs[0].count == expected.max()
    assert all(first.count >= second.count for first, second in pairwise(pairs))
    assert scores[0].taken_for == given.labels[expected[0].argmax()]


def test_only_classes_that_images_have_are_judged_among_more():
    """A head of 10 classes, images of three of them: other answers are wrong, and no class."""
    logits, targets = random_answers(200, 10)
    targets = targets % 3
    given = answered(logits, targets)
    metrics = figures(given)
    predicted = logits.argmax(-1).numpy()
    expected = f1_score(targets, predicted, labels=[0, 1, 2], average="macro")
    assert metrics["macro_f1"].value == pytest.approx(expected)
    expected = accuracy_score(targets, logits[:, :3].argmax(-1).numpy())
    assert metrics["top1_of_data"].value == pytest.approx(expected)
    assert metrics["top1"].value == accuracy_score(targets, predicted)
    matrix = classification.confusion_matrix(given)
    assert matrix.shape == (3, 4) and matrix[:, 3].sum() == (predicted > 2).sum()
    assert "top1_of_data" not in figures(answered(logits, np.arange(200) % 10))


def test_intervals_are_scipys_bootstrap():
    logits, targets = random_answers(120, 4)
    given = answered(logits, targets)
    metrics = figures(given)
    functions = {
        "balanced_accuracy": balanced_accuracy_score,
        "macro_f1": lambda truth, answer: f1_score(truth, answer, average="macro"),
    }
    for name, function in functions.items():
        theirs = bootstrap(
            (given.truth, given.predicted),
            function,
            paired=True,
            vectorized=False,
            n_resamples=150,
            method="percentile",
            random_state=np.random.default_rng(1),
        ).confidence_interval
        assert metrics[name].interval == pytest.approx(theirs, abs=0.04)
    low, high = metrics["loss"].interval
    spread = 1.96 * given.loss.std() / math.sqrt(len(given))
    assert (high - low) / 2 == pytest.approx(spread, rel=0.15)


def test_reliability_bins_hold_every_answer():
    logits, targets = random_answers(400, 5)
    given = answered(logits, targets)
    bins = reliability(given.confidence, given.right)
    assert sum(each.images for each in bins) == 400
    for each in bins:
        inside = (given.confidence > each.low) & (given.confidence <= each.high)
        assert (inside.sum(), given.right[inside].mean()) == (each.images, each.accuracy)
        assert each.interval[0] <= each.accuracy <= each.interval[1]
    gaps = sum(each.images * abs(each.accuracy - each.confidence) for each in bins)
    assert gaps / 400 == pytest.approx(figures(given)["calibration_error"].value)


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.15])
@pytest.mark.slow
def test_the_interval_holds_the_true_calibration_error(gap, monkeypatch):
    """Models whose answers are right less often than they say, by `gap`: 50 draws of 300 images.
    With 95 %, fewer than 44 of 50 would be one case in a hundred."""
    monkeypatch.setattr(calibration, "RESAMPLES", 200)
    held = 0
    told = 0
    errors = []
    for seed in range(50):
        random = np.random.default_rng(seed)
        confidence = random.uniform(0.4, 0.95, 300)
        right = random.random(300) < confidence - gap
        others = [
            calibration.calibration_error(confidence[rows], right[rows])
            for rows in random.integers(0, 300, (200, 300))
        ]
        low, high = calibration.calibration_interval(confidence, right, np.array(others))
        held += low <= gap <= high
        errors.append(calibration.calibration_error(confidence, right))
        told += errors[-1] > perfect_error(confidence)
    at_least(held, 44, best=50)
    if gap == 0.15:  # a gap is told from chance
        at_least(told, 46, best=50)
    elif gap == 0.0:
        at_most(told, 5)
    assert np.mean(errors) > gap  # the error itself is too high, above all for a perfect model


def test_accuracy_against_coverage_is_counted_by_hand():
    confidence = np.array([0.9, 0.5, 0.7, 0.9, 0.5, 0.2])
    right = np.array([True, False, True, False, True, False])
    points = coverage_curve(confidence, right)
    counted = [(point.coverage, point.accuracy, point.threshold) for point in points]
    expected = [(2 / 6, 1 / 2, 0.9), (3 / 6, 2 / 3, 0.7), (5 / 6, 3 / 5, 0.5), (1, 1 / 2, 0.2)]
    assert np.array(counted) == pytest.approx(np.array(expected))
    chosen = [point.coverage for point in at_coverages(points)]
    assert chosen == pytest.approx([1, 5 / 6, 3 / 6])
    fine = coverage_curve(np.linspace(0.9, 0.5, 20), np.ones(20, dtype=bool))
    chosen = [point.coverage for point in at_coverages(fine)]
    assert chosen == pytest.approx([1, 0.95, 0.9, 0.8, 0.7, 0.5])


# Degenerate answers


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_give_no_numbers(lost):
    logits, targets = random_answers(30, 8)
    logits[7, 2] = lost
    given = answered(logits, targets)
    assert np.flatnonzero(~given.finite).tolist() == [7]
    for name, metric in figures(given).items():
        assert math.isnan(metric.value) == (name != "seen"), name
        assert metric.interval is None


def test_of_classes_with_the_same_logit_the_first_is_the_answer():
    given = answered(torch.zeros(12, 3), [0, 1, 2] * 4)
    assert given.predicted.tolist() == [0] * 12
    assert given.rank.tolist() == [0, 1, 2] * 4
    assert given.tied.all()
    assert figures(given)["top1"].value == pytest.approx(1 / 3)


def test_images_of_one_class_have_all_numbers():
    logits, _ = random_answers(40, 3)
    metrics = figures(answered(logits, [1] * 40))
    assert metrics["balanced_accuracy"].value == metrics["top1"].value
    assert metrics["top1_of_data"].value == 1
    assert not any(math.isnan(metric.value) for metric in metrics.values())


def test_one_image_is_enough():
    metrics = figures(answered(torch.tensor([[0.0, 1.0]]), [1]))
    assert metrics["top1"].value == metrics["macro_f1"].value == 1
    for name in ("top1", "balanced_accuracy"):
        assert metrics[name].interval[0] < 0.3  # but it says little
    for name in ("macro_f1", "calibration_error", "loss"):
        assert metrics[name].interval is None  # and all its resamples are the same


def test_answers_that_are_all_right_have_no_interval_of_no_width():
    metrics = figures(answered(torch.eye(3).repeat(4, 1) + torch.rand(12, 3) / 2, [0, 1, 2] * 4))
    assert metrics["macro_f1"].value == 1
    assert metrics["macro_f1"].interval is None
    assert metrics["loss"].interval is not None


def test_a_class_that_does_not_exist_is_named():
    logits, _ = random_answers(4, 3)
    with pytest.raises(ValueError, match=r"1 of 4 images have a class that does not exist.* has 3"):
        answered(logits, [0, 1, 3, 2])
    with pytest.raises(ValueError, match="no image to evaluate on"):
        answered(logits, [])
    with pytest.raises(ValueError, match="no classification head"):
        answered(torch.zeros(4, 0), [0, 0], names=("a",))
