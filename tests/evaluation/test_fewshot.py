"""Few-shot accuracy: the official code's numbers, scikit-learn's, and what cannot be learned."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from vitkit.data import Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import (
    Fewshot,
    Metric,
    Part,
    Subject,
    draw,
    interval,
    predictions,
    shot_notes,
)
from vitkit.evaluation.probes.fewshot import BIAS, GRID, best_ranked
from vitkit.weights import Classifier


@pytest.fixture(params=["few", "many"])
def official(request, shared):
    """50 examples of width 96, which go through XXᵀ, or 400, which go through XᵀX; with the accuracy
    that the official code, in float32, has at each of 30 values of l2."""
    reference = np.load(shared("reference/fewshot.npz"))
    names = ("x_train", "y_train", "x_test", "y_test", "l2_exponents", "accuracy")
    return [reference[f"{request.param}/{name}"] for name in names]


def test_in_float32_every_l2_has_the_accuracy_of_the_official_code(official):
    x, y, x_test, y_test, exponents, accuracy = official
    assert exponents.tolist() == list(GRID)
    got = (predictions(x, y, x_test, 10, GRID, np.float32) == y_test).mean(1)
    np.testing.assert_allclose(got, accuracy, atol=1e-7)  # a test image is 2e-3


def test_in_float64_only_images_between_two_classes_differ(official):
    """At 3 of 30 values of l2 with few examples, and at 15 with many, by an image or two of 500."""
    x, y, x_test, y_test, _, accuracy = official
    got = (predictions(x, y, x_test, 10, GRID) == y_test).mean(1)
    images = np.abs(got - accuracy) * len(y_test)
    assert images.max() < 2.1 and (images > 0.5).sum() in (3, 15)


@pytest.mark.parametrize("count", [12, 60])
def test_predictions_are_those_of_scikit_learn(count):
    random = np.random.default_rng(0)
    x = random.normal(2, 3, (count, 20)).astype(np.float32)
    y = np.arange(count) % 3
    x_test = random.normal(2, 3, (50, 20)).astype(np.float32)
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-5
    biased, biased_test = (np.c_[(z - mean) / std, np.full(len(z), BIAS)] for z in (x, x_test))
    for exponent, got in zip((-3, 10), predictions(x, y, x_test, 3, (-3, 10)), strict=True):
        model = Ridge(2.0**exponent, fit_intercept=False, solver="svd")
        model.fit(biased, 2 * np.eye(3)[y] - 1)
        assert got.tolist() == model.predict(biased_test).argmax(1).tolist()


def test_images_are_drawn_as_big_vision_draws_them():
    classes = np.array([2, 0, 1, 0, 1, 0, 0, 2, 0])
    assert draw(classes, 2, None).tolist() == [1, 3, 2, 4, 0, 7]
    random = np.random.default_rng(1)
    expected = [random.permutation(np.flatnonzero(classes == k))[:3] for k in range(3)]
    assert draw(classes, 3, 1).tolist() == np.concatenate(expected).tolist()
    assert len(draw(classes, 3, 1)) == 7  # two classes have only two


def test_l2_is_chosen_by_its_mean_rank():
    accuracies = np.zeros((2, 30))
    accuracies[0, 4], accuracies[0, 7] = 0.9, 0.8
    accuracies[1, 7], accuracies[1, 4] = 0.3, 0.2
    accuracies[1, 9] = 0.25
    assert best_ranked(accuracies[:1]) == GRID[4] and best_ranked(accuracies) == GRID[7]


def test_the_interval_is_of_images_and_draws():
    right = np.zeros((3, 100), bool)
    right[:, :80] = True
    low, high = interval(right)
    assert (low, high) == pytest.approx((0.7112, 0.8666), abs=1e-4)  # Wilson's
    right[0, 60:] = False  # a draw that was unlucky
    wider = interval(right)
    assert wider[0] < low - 0.1 and wider[1] > high


# As an evaluator


class Pixel(nn.Module):
    """Two features: the first pixel, and its square."""

    config = None

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def features(self, images):
        pixel = images[:, 0, 0, :1]
        return torch.cat([pixel, pixel.square()], 1) + self.unused


def source_of(pixels, classes, names=("dark", "bright")):
    array = np.array(pixels, np.uint8)[:, None, None]
    targets = np.array(classes)
    return Source(Arrays("pixels", array), np.arange(len(array)), targets, tuple(names))


DARK_AND_BRIGHT = source_of([5, 250, 30, 220, 10, 240, 60, 200], [0, 1] * 4)
TEST = source_of([0, 255, 20, 230, 200], [0, 1, 0, 1, 0])  # the last is labelled wrongly


def measured(fewshot, train=DARK_AND_BRIGHT, test=TEST, model=None):
    classifier = Classifier(model or Pixel(), Preprocessing(size=(1, 1)), ())
    subject = Subject(classifier, learner=nn.Identity())
    return {metric.name: metric for metric in fewshot.measure(subject, Part(test, None, train))}


def test_it_measures_what_a_few_images_teach():
    metrics = measured(Fewshot(shots=(1, 3)))
    names = ["1-shot/top1", "1-shot/deviation", "3-shot/top1", "3-shot/deviation", "fewshot/seen"]
    assert list(metrics) == names
    assert metrics["3-shot/top1"].value == pytest.approx(0.8)
    assert metrics["3-shot/deviation"].value < 1e-9
    low, high = metrics["3-shot/top1"].interval
    assert low < 0.8 < high and metrics["fewshot/seen"].value == 5
    again = Metric.from_json("x", json.loads(json.dumps(metrics["3-shot/deviation"].to_json())))
    assert again.unit.text(0.0123) == "1.23 %"

    ranked = measured(Fewshot(shots=(3,), form="ranked"))
    assert list(ranked) == ["3-shot/top1", "3-shot/l2_exponent", "fewshot/seen"]
    assert ranked["3-shot/top1"].value == 0.8


def test_what_cannot_be_learned_is_a_sentence():
    alone = source_of([1, 2], [0, 0])
    with pytest.raises(ValueError, match="needs training images"):
        measured(Fewshot(), train=None)
    with pytest.raises(ValueError, match="all 2 training images have the class dark"):
        measured(Fewshot(), train=alone)
    with pytest.raises(ValueError, match="no image to evaluate on"):
        measured(Fewshot(), test=source_of(np.zeros(0), np.zeros(0, np.int64)))
    for wrong in ({"shots": ()}, {"shots": (0, 5)}, {"shots": (5, 5)}, {"seeds": 0}):
        with pytest.raises(ValueError, match="`shots` is|`seeds` is"):
            Fewshot(**wrong)


def test_features_that_are_not_finite_have_no_accuracy():
    model = Pixel()
    model.unused.data[:] = math.nan
    metrics = measured(Fewshot(shots=(2,)), model=model)
    assert math.isnan(metrics["2-shot/top1"].value) and metrics["fewshot/seen"].value == 5


def test_what_classes_lack_is_said():
    names = ("dark", "bright", "grey")
    train = replace(DARK_AND_BRIGHT, labels=names)
    test = source_of([0, 128, 255], [0, 2, 1], names)
    assert shot_notes(train, test, 4) == [
        "no training image has the class grey, so 1 test image cannot be answered right"
    ]
    assert "2 of 2 classes have fewer than 5 training images" in shot_notes(train, test, 5)[1]
    metrics = measured(Fewshot(shots=(5,)), train, test)
    assert metrics["5-shot/top1"].value == pytest.approx(2 / 3)
