"""Probes against scikit-learn and against fits without each example; and on a model."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from vitkit.data import Preprocessing, open_source, subset
from vitkit.evaluation import FIT, Probing, fit_probe, voted, with_probe
from vitkit.models import create, vit
from vitkit.weights import Classifier, adopt, load, save


def some(count=90, width=8, classes=3, noise=1.5):
    random = np.random.default_rng(0)
    y = np.arange(count) % classes
    centres = random.normal(size=(classes, width))
    x = 4 + centres[y] + noise * random.normal(size=(count, width))
    return x.astype(np.float32), y


def logits_without(method, x, y, fold, strength):
    """What scikit-learn answers to the examples of a fold when it learns from all others, each class
    counting for as much as with them."""
    rows = x.astype(float)
    kept = ~fold
    if method == "linear":
        targets = 2 * np.eye(y.max() + 1)[y] - 1
        weights = (np.bincount(y) / np.bincount(y[kept]))[y[kept]]
        model = Ridge(strength, solver="svd").fit(rows[kept], targets[kept], weights)
        return model.predict(rows[fold])
    means = NearestCentroid().fit(rows[kept], y[kept]).centroids_
    centred = rows[fold] - rows.mean(0)
    distances = np.square(rows[fold][:, None] - means).sum(2)
    return np.square(centred).sum(1)[:, None] - distances


@pytest.mark.parametrize("method", ["linear", "prototype"])
@pytest.mark.parametrize("shape", [(60, 8), (20, 30)])
def test_left_out_logits_are_those_of_a_fit_without_one_of_each_class(method, shape):
    x, y = some(*shape)
    fitted = fit_probe(method, x, y, 3)
    first, last = fitted.fold[[0, -1]].tolist()  # of the first and of the last example
    for number in {0, 3, first, last}:
        fold = fitted.fold.numpy() == number
        assert sorted(y[fold].tolist()) == [0, 1, 2]
        errors = []
        # The other folds chose which, and a temperature
        for factor in 2.0 ** np.arange(-24, 26, 2):
            expected = logits_without(method, x, y, fold, fitted.strength * factor)
            logits = fitted.left_out[fold].numpy()
            times = (expected * logits).sum() / np.square(expected).sum()
            errors.append(np.abs(times * expected - logits).max())
        assert min(errors) < 1e-6


def test_the_answers_are_those_of_scikit_learn():
    x, y = some()
    rows = torch.tensor(x)
    answers = {method: fit_probe(method, x, y, 3) for method in FIT}
    linear = RidgeClassifier(answers["linear"].strength, solver="svd").fit(x.astype(float), y)
    scaled = (x - x.mean(0)) / (x.std(0) + 1e-5)
    logistic = LogisticRegression(C=answers["logistic"].strength, max_iter=5000).fit(scaled, y)
    expected = {
        "linear": linear.predict(x.astype(float)),
        "prototype": NearestCentroid().fit(x, y).predict(x),
        "logistic": logistic.predict(scaled),
    }
    for method, fitted in answers.items():
        assert fitted.logits(rows).argmax(1).tolist() == expected[method].tolist()
    np.testing.assert_allclose(
        answers["logistic"].logits(rows) * answers["logistic"].temperature,
        logistic.decision_function(scaled),
        atol=0.02,
    )

    neighbours = KNeighborsClassifier(5, metric="cosine", weights=lambda distance: 2 - distance)
    assert voted(rows[:60], torch.tensor(y[:60]), 5, rows[60:]).tolist() == (
        neighbours.fit(x[:60], y[:60]).predict(x[60:]).tolist()
    )


@pytest.mark.parametrize("method", list(FIT))
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_better_than_those_of_half_or_twice_the_logits(method, classes):
    """On images that were not learned from."""
    x, y = some(900, classes=classes)
    fitted = fit_probe(method, x[:180], y[:180], classes)
    logits = fitted.logits(torch.tensor(x[180:]))
    losses = [log_loss(y[180:], (scale * logits).softmax(1).numpy()) for scale in (0.5, 1, 2)]
    assert losses[1] == min(losses)
    assert log_loss(y[:180], fitted.left_out.softmax(1).numpy()) == pytest.approx(
        losses[1], abs=0.15
    )


def test_the_only_example_of_a_class_is_left_out_where_that_means_something():
    x, y = some(31)
    y[30] = 3
    for method in FIT:
        fitted = fit_probe(method, x, y, 4)
        assert fitted.weight.isfinite().all() and fitted.left_out[:30].isfinite().all()
        assert fitted.left_out[30].isfinite().all() == (method == "linear")


def test_what_teaches_nothing_is_a_sentence():
    x, y = some(30)
    with pytest.raises(ValueError, match="cannot be fitted to 30 examples of 1 classes"):
        fit_probe("linear", x, np.zeros(30, np.int64), 1)
    with pytest.raises(ValueError, match="0 examples"):
        fit_probe("linear", x[:0], y[:0], 3)
    with pytest.raises(ValueError, match="of 4 classes 1 have no example"):
        fit_probe("prototype", x, y, 4)
    x[[4, 9], 0] = (math.nan, math.inf)
    with pytest.raises(ValueError, match="2 of 30 examples hold NaN or infinity"):
        fit_probe("linear", x, y, 3)
    same = np.ones((30, 4), np.float32)
    for method in FIT:
        assert fit_probe(method, same, y, 3).left_out.isfinite().all()


@pytest.mark.parametrize("pool", ["token", "distilled"])
def test_on_a_model_the_head_gives_the_probe_s_logits(pool, tmp_path):
    digits = subset(open_source("digits"), range(120))
    registers = int(pool == "distilled")
    config = vit("mu/4", image=(8, 8), depth=1, pool=pool, registers=registers, classes=5)
    model = create(config, seed=0).eval()
    classifier = Classifier(model, Preprocessing(size=(8, 8)), tuple("abcde"))
    adopted, _ = adopt(classifier, labels=digits.labels, new_head=True)
    images = adopted.batch(map(picture, digits.store.array[digits.rows]))
    x = adopted.features(images)
    fitted = fit_probe("linear", x.numpy(), digits.targets, 10)
    probed = with_probe(adopted, fitted, digits.labels)
    saved = load(save(probed, tmp_path / "probed"), quiet=True)
    torch.testing.assert_close(
        saved.logits(images).double(), fitted.logits(x), rtol=1e-3, atol=1e-3
    )
    assert saved.labels == digits.labels and saved.activation == "softmax"
    right = fitted.logits(x).argmax(1) == torch.tensor(digits.targets)
    assert right.float().mean() > 0.8


def picture(pixels):
    from vitkit.data import open_image

    return open_image(pixels, "a digit")


def test_unequal_classes_are_judged_by_the_mean_of_their_own_accuracies():
    asked = Probing("class", ("a", "b"), np.arange(2), balanced=True)
    logits = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    truth = np.array([0] * 8 + [1, 1])
    metrics = list(asked.quality("test", logits, truth))
    assert [metric.name for metric in metrics][:2] == ["test/balanced_accuracy", "test/top1"]
    assert [metric.value for metric in metrics][:2] == pytest.approx([0.75, 0.9])
    unknown = np.array([0] * 8 + [1, -1])  # none of the head's classes
    assert next(asked.quality("test", logits, unknown)).value == pytest.approx((1 + 0 + 0) / 3)
