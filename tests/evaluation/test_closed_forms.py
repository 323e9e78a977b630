"""Closed forms against scikit-learn, and against fits without each example in turn."""

import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge

from vitkit.evaluation.probes.closed_forms import (
    LeaveImagesOut,
    LeaveOneOut,
    Moments,
    ridge,
    targets,
)

SHAPES = [(40, 12), (12, 40), (20, 20)]


def some(count, width, classes=4):
    generator = torch.Generator().manual_seed(count)
    x = 3 * torch.randn(count, width, generator=generator, dtype=torch.float64) + 5
    return x, torch.arange(count) % classes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**19])
def test_every_l2_has_the_weights_of_scikit_learn(shape, l2):
    x, classes = some(*shape)
    y = targets(classes, 4)
    plain = SklearnRidge(l2, fit_intercept=False, solver="svd").fit(x, y)
    expected = torch.from_numpy(plain.coef_).mT
    torch.testing.assert_close(ridge(x, y).weights(l2), expected, rtol=1e-6, atol=1e-9)

    weights, bias = LeaveOneOut(x, targets(classes, 4)).fit.head(l2)
    centred = SklearnRidge(l2, solver="svd").fit(x, y)
    torch.testing.assert_close(weights, torch.from_numpy(centred.coef_), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(bias, torch.from_numpy(centred.intercept_), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("l2", [0.1, 100.0])
def test_scores_without_an_example_are_those_of_a_fit_without_it(shape, l2):
    x, classes = some(*shape)
    scores = LeaveOneOut(x, targets(classes, 4)).scores(l2)
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        weights, bias = LeaveOneOut(x[others], targets(classes[others], 4)).fit.head(l2)
        torch.testing.assert_close(scores[i], weights @ x[i] + bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("images", "width", "views"), [(30, 8, 2), (9, 40, 3), (12, 12, 1)])
@pytest.mark.parametrize("l2", [0.1, 100.0])
def test_scores_without_an_image_are_those_of_a_fit_without_its_views(images, width, views, l2):
    x, _ = some(images * views, width)
    x = x.reshape(images, views, width)
    asked, classes = some(images, width)
    asked = asked + 1  # other views than those that are learned from
    scores = LeaveImagesOut(x, targets(classes, 4), asked).scores(l2)
    for i in range(images):
        others = torch.arange(images) != i
        of_views = classes[others].repeat_interleave(views)
        fit = LeaveOneOut(x[others].reshape(-1, width), targets(of_views, 4)).fit
        weights, bias = fit.head(l2)
        torch.testing.assert_close(scores[i], weights @ asked[i] + bias, rtol=1e-8, atol=1e-8)


def test_examples_are_added_and_taken_away_exactly():
    x, classes = some(30, 12)
    expected = LeaveOneOut(x[:20], targets(classes[:20], 4)).fit.head(0.5)
    first = Moments.of(x[:12], classes[:12], 4)
    all_others = Moments.of(x[12:], classes[12:], 4)
    last = Moments.of(x[20:], classes[20:], 4)
    moments = first + all_others - last
    assert moments.counts.tolist() == [5, 5, 5, 5]
    for got, wanted in zip(moments.centred().head(0.5), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
