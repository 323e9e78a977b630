"""Several classes an image, and numbers: against scikit-learn and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score, f1_score, mean_absolute_error, r2_score
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.data.sources.targets import Lists
from vitkit.evaluation import Errors, MeanAveragePrecision, Part, Subject
from vitkit.evaluation.metrics.other_targets import Ranking
from vitkit.weights import Classifier


class Fixed(nn.Module):
    """Gives image i the outputs of row i, in order, whatever it shows."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, images):
        return self.table[((images[:, 0, 0, 0] + 1) * 127.5).round().long()]


def measured(evaluator, table, targets, kind, names=(), known=None, size=7):
    """Metrics by name; the last batch is filled up with padding."""
    count = len(table)
    source = Source(
        Arrays("x", np.zeros((count, 1, 1), np.uint8)), np.arange(count), targets, names, kind
    )
    batches = []
    for start in range(0, count, size):
        index = torch.arange(start, start + size)
        rows = index.clamp(max=count - 1)
        images = torch.zeros(size, 3, 1, 1, dtype=torch.uint8)
        images[:, 0, 0, 0] = rows.to(torch.uint8)
        of_batch = torch.from_numpy(source.targets_of(rows.numpy()))
        batches.append(Batch(images, of_batch, index < count, index))
    activation = {"classes": "sigmoid", "number": "none"}[kind]
    classifier = Classifier(Fixed(table), Preprocessing(size=(1, 1)), known or names, activation)
    metrics = evaluator.measure(Subject(classifier), Part(source, batches))
    return {metric.name: metric for metric in metrics}


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
    metrics = measured(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    there = truth.any(0)
    expected = average_precision_score(truth[:, there], scores.numpy()[:, there], average="macro")
    assert metrics["map"].value == pytest.approx(expected)
    ones = torch.from_numpy(truth).float()
    loss = nn.functional.binary_cross_entropy_with_logits(scores, ones, reduction="sum") / 40
    assert metrics["loss"].value == pytest.approx(loss.item()) and metrics["seen"].value == 40


def test_f1_is_scikit_learns(several):
    scores, targets, truth = several
    metrics = measured(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    there = truth.any(0)
    yes = (scores > 0).numpy()
    for average in ("macro", "micro"):
        expected = f1_score(truth[:, there], yes[:, there], average=average)
        assert metrics[f"{average}_f1"].value == pytest.approx(expected)
    for name in ("map", "macro_f1", "micro_f1"):
        low, high = metrics[name].interval
        assert low < metrics[name].value < high


def test_average_precision_of_any_multiset_is_scikit_learns(several):
    scores, _, truth = several
    times = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    found = Ranking(scores.numpy(), truth.astype(float)).average_precisions(times)
    for k in (0, 1, 2, 4):
        expected = average_precision_score(truth[:, k], scores.numpy()[:, k], sample_weight=times)
        assert found[k] == pytest.approx(expected)
    assert found[3] == 0  # which no image has


def test_numbers_are_no_answers_to_classes(several):
    scores, targets, _ = several
    classifier = Classifier(Fixed(scores), Preprocessing(size=(1, 1)), NAMES, "none")
    source = Source(Arrays("x", np.zeros((40, 1, 1), np.uint8)), np.arange(40), targets, NAMES)
    with pytest.raises(ValueError, match="outputs are numbers, not classes"):
        list(MeanAveragePrecision().measure(Subject(classifier), Part(source, [])))


def test_classes_meet_by_name(several):
    scores, targets, _ = several
    order = [3, 0, 4, 1, 2]
    known = (*(NAMES[i] for i in order), "another")
    other = torch.cat([scores[:, order], torch.full((40, 1), 9.0)], 1)
    one = measured(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    two = measured(MeanAveragePrecision(), other, targets, "classes", NAMES, known)
    assert one["map"] == two["map"]


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_lost_has_no_precision(several, lost):
    scores, targets, _ = several
    scores[7, 2] = lost
    metrics = measured(MeanAveragePrecision(), scores, targets, "classes", NAMES)
    assert math.isnan(metrics["map"].value) and math.isnan(metrics["micro_f1"].value)
    assert metrics["map"].interval is None


def test_errors_are_scikit_learns_and_scipys():
    random = np.random.default_rng(0)
    targets = random.normal(1000, 20, 33).astype(np.float32)
    predicted = (targets + random.normal(3, 10, 33)).astype(np.float32)
    table = torch.from_numpy(predicted)[:, None]
    metrics = measured(Errors(), table, targets, "number", known=("value",))
    assert metrics["mae"].value == pytest.approx(mean_absolute_error(targets, predicted))
    assert metrics["r2"].value == pytest.approx(r2_score(targets, predicted), abs=1e-6)
    assert metrics["pearson"].value == pytest.approx(pearsonr(targets, predicted)[0], abs=1e-6)
    for name in ("mae", "r2", "pearson"):
        low, high = metrics[name].interval
        assert low < metrics[name].value < high
    assert metrics["mae"].unit.better == "lower" and metrics["r2"].unit.better == "higher"


def test_of_equal_numbers_nothing_is_explained():
    table = torch.ones(5, 1)
    metrics = measured(Errors(), table, np.ones(5, np.float32), "number", known=("value",))
    assert metrics["mae"].value == 0 and math.isnan(metrics["r2"].value)
    with pytest.raises(ValueError, match="the model has 5 outputs, and a number is one"):
        measured(Errors(), torch.ones(5, 5), np.ones(5, np.float32), "number", known=NAMES)
