"""Several classes an image, and numbers: against scikit-learn and SciPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score, f1_score, mean_absolute_error, r2_score
from tables import classifier_of, measured, part_of
from torch import nn

from vitkit.data import Lists
from vitkit.evaluation import Errors, MeanAveragePrecision
from vitkit.evaluation.metrics.other_targets import Ranking


def judged(evaluator, table, targets, kind, names=(), known=None):
    """Metrics by name of a model with this table; `known` are its classes, by default the data's."""
    activation = {"classes": "sigmoid", "number": "none"}[kind]
    classifier = classifier_of(table, known or names, activation)
    return measured(evaluator, classifier, part_of(targets, names, kind=kind))


@pytest.fixture
def several():
    """Scores, some of them equal, and classes of forty images, of five classes, one of which no
    image has."""
    random = np.random.default_rng(0)
    truth = random.random((40, 5)) < 0.3
    truth[:, 3] = False
    scores = torch.from_numpy(random.normal(0, 1, (40, 5)).round(1) + truth).float()
    return scores, Lists.of([np.flatnonzero(row).tolist() for row in truth]), truth


NAMES = tuple("abcde")


def test_mean_average_precision_is_scikit_learns(several):
    scores, targets, truth = several
    metrics = judged(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    there = truth.any(0)
    expected = average_precision_score(truth[:, there], scores.numpy()[:, there], average="macro")
    assert metrics["map"].value == pytest.approx(expected)
    ones = torch.from_numpy(truth).float()
    loss = nn.functional.binary_cross_entropy_with_logits(scores, ones, reduction="sum") / 40
    assert metrics["loss"].value == pytest.approx(loss.item()) and metrics["seen"].value == 40


def test_f1_is_scikit_learns(several):
    scores, targets, truth = several
    metrics = judged(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    there = truth.any(0)
    yes = (scores > 0).numpy()
    macro = f1_score(truth[:, there], yes[:, there], average="macro")
    assert metrics["macro_f1"].value == pytest.approx(macro)
    micro = f1_score(truth, yes, average="micro")  # a yes for a class that no image has is wrong
    assert metrics["micro_f1"].value == pytest.approx(micro)
    for name in ("map", "macro_f1", "micro_f1"):
        low, high = metrics[name].interval
        assert low < metrics[name].value < high


def test_average_precision_of_any_multiset_is_scikit_learns(several):
    scores, _, truth = several
    times = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    known = np.ones_like(truth, dtype=bool)
    found = Ranking(scores.numpy(), truth.astype(float), known).average_precisions(times)
    for k in (0, 1, 2, 4):
        expected = average_precision_score(truth[:, k], scores.numpy()[:, k], sample_weight=times)
        assert found[k] == pytest.approx(expected)
    assert found[3] == 0  # which no image has


def test_unknown_labels_take_no_part(several):
    """The figures of each class are scikit-learn's on the images of which it is known."""
    scores, targets, truth = several
    unknown = np.random.default_rng(2).random(truth.shape) < 0.3
    rows = [np.flatnonzero(row).tolist() for row in unknown]
    kept = [np.flatnonzero(row).tolist() for row in truth & ~unknown]
    targets = replace(Lists.of(kept), unknown=Lists.of(rows))
    metrics = judged(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    precisions = []
    f1 = []
    for k in (0, 1, 2, 4):
        known = ~unknown[:, k]
        precisions.append(average_precision_score(truth[known, k], scores[known, k].numpy()))
        f1.append(f1_score(truth[known, k], (scores[known, k] > 0).numpy()))
    assert metrics["map"].value == pytest.approx(np.mean(precisions))
    assert metrics["macro_f1"].value == pytest.approx(np.mean(f1))
    micro = f1_score(truth[~unknown], (scores.numpy() > 0)[~unknown])
    assert metrics["micro_f1"].value == pytest.approx(micro)
    ones = torch.from_numpy(truth).float()
    each = nn.functional.binary_cross_entropy_with_logits(scores, ones, reduction="none")
    assert metrics["loss"].value == pytest.approx(
        each[torch.from_numpy(~unknown)].sum().item() / 40
    )

    # Whatever is answered to what is unknown changes nothing
    other = torch.where(torch.from_numpy(unknown), -7.5, scores)
    again = judged(MeanAveragePrecision(), other, targets, "classes", NAMES)
    assert {name: metric.value for name, metric in again.items()} == pytest.approx(
        {name: metric.value for name, metric in metrics.items()}
    )


def test_numbers_are_no_answers_to_classes(several):
    scores, targets, _ = several
    part = part_of(targets, NAMES, kind="classes")
    with pytest.raises(ValueError, match="outputs are numbers, not classes"):
        measured(MeanAveragePrecision(), classifier_of(scores, NAMES, "none"), part)


def test_classes_meet_by_name(several):
    scores, targets, _ = several
    order = [3, 0, 4, 1, 2]
    known = (*(NAMES[i] for i in order), "another")
    other = torch.cat([scores[:, order], torch.full((40, 1), 9.0)], 1)
    one = judged(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    two = judged(MeanAveragePrecision(), other, targets, "classes", NAMES, known)
    assert one["map"] == two["map"]


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_lost_has_no_precision(several, lost):
    scores, targets, _ = several
    scores[7, 2] = lost
    metrics = judged(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    assert math.isnan(metrics["map"].value) and math.isnan(metrics["micro_f1"].value)
    assert metrics["map"].interval is None


def test_errors_are_scikit_learns_and_scipys():
    random = np.random.default_rng(0)
    targets = random.normal(1000, 20, 33).astype(np.float32)
    predicted = (targets + random.normal(3, 10, 33)).astype(np.float32)
    table = torch.from_numpy(predicted)[:, None]
    metrics = judged(Errors(), table, targets, "number", known=("value",))
    assert metrics["mae"].value == pytest.approx(mean_absolute_error(targets, predicted))
    assert metrics["r2"].value == pytest.approx(r2_score(targets, predicted), abs=1e-6)
    assert metrics["pearson"].value == pytest.approx(pearsonr(targets, predicted)[0], abs=1e-6)
    for name in ("mae", "r2", "pearson"):
        low, high = metrics[name].interval
        assert low < metrics[name].value < high
    assert metrics["mae"].unit.better == "lower" and metrics["r2"].unit.better == "higher"


def test_of_equal_numbers_nothing_is_explained():
    table = torch.ones(5, 1)
    metrics = judged(Errors(), table, np.ones(5, np.float32), "number", known=("value",))
    assert metrics["mae"].value == 0 and math.isnan(metrics["r2"].value)
    with pytest.raises(ValueError, match="the model has 5 outputs, and a number is one"):
        judged(Errors(), torch.ones(5, 5), np.ones(5, np.float32), "number", known=NAMES)
