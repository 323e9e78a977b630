"""Probes: linear heads on a model's features, fitted in seconds, with what each example would have
been answered by a fit without it.

A probe's logits are scores divided by a temperature, which is fitted to those left-out answers. So
their softmax is calibrated: a score of least squares is no log-probability, nor is a distance.

Legend: N examples, D width, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Source
from vitkit.evaluation.metrics.calibration import (
    chance_sentence,
    fit_temperature,
    measured_calibration,
)
from vitkit.evaluation.metrics.classification import balanced_weights
from vitkit.evaluation.metrics.metric import SHARE, Metric, share_right
from vitkit.evaluation.metrics.weighted import share_of_answers
from vitkit.evaluation.probes.closed_forms import Moments, targets
from vitkit.evaluation.probes.folds import Folds, balanced_folds
from vitkit.evaluation.probes.left_out import LeaveOut, best_for_classes, share_of_left_out
from vitkit.models import DistilledHead
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadWeights
from vitkit.weights import Activation, Classifier

INVERSE_STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # of the logistic regression: scikit-learn's C
SMALL = 10**9  # multiplications of a step of the logistic regression that one thread does best
FOLDS = 5  # of its cross-validation: it has no closed form to leave one out

Method = Literal["linear", "prototype", "logistic"]


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear head, and how it answers examples that it has not learned from."""

    weight: Tensor
    """(K, D), float64 as all here."""
    bias: Tensor
    """(K,)"""
    left_out: Tensor
    """The logits of each example by a fit without its fold, (N, K); NaN for the only one of its
    class, if the method knows nothing of a class without examples."""
    fold: Tensor
    """The fold that each example was left out with, (N,): one of each class, or more."""
    known: Tensor
    """Whether a fit without its fold knows an example's class, bool (N,)."""
    strength: float
    """Of the regularisation, in the method's own measure; NaN for a method without."""
    temperature: float
    """What the weights and left-out scores were divided by."""

    def logits(self, x: Tensor) -> Tensor:
        """Features (N, D) -> (N, K)."""
        return x.double() @ self.weight.mT + self.bias


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples from which a probe learns."""

    x: Tensor
    """Features, (N, D)."""
    classes: Tensor
    """(N,)"""
    count: int
    """K, how many classes there are; each has an example."""
    balanced: bool = False
    """Whether classes count alike, however many examples they have."""
    groups: np.ndarray | None = None
    """Examples with the same number, (N,), are left out together; None if each is a group."""
    products: Tensor | None = None
    """Of each two rows of x, as `row_products` has them; None if they were not computed."""

    def folds(self, most: int | None = None) -> Folds:
        """The examples that are left out together, whatever their order."""
        keys = np.array([crc32(row.tobytes()) for row in self.x.numpy()])
        return balanced_folds(self.classes.numpy(), self.groups, most, keys)

    @property
    def weights(self) -> Tensor | None:
        """The weight of each example, (N,); None for equal weights."""
        if not self.balanced:
            return None
        counts = np.bincount(self.classes, minlength=self.count)
        return torch.from_numpy(balanced_weights(counts))[self.classes]


def linear(examples: Examples) -> Probe:
    """Least squares with an intercept, in closed form; l2 is the one whose left-out answers have
    the least cross-entropy, each l2 at its best temperature."""
    classes = examples.classes
    folds = examples.folds()
    y = targets(classes, examples.count)
    fit = LeaveOut(examples.x, y, folds, examples.weights, products=examples.products)
    l2, t, left_out = best_for_classes(fit, classes)
    weight, bias = fit.head(l2)
    return Probe(weight / t, bias / t, left_out, folds.fold, folds.known, l2, t)


def prototype(examples: Examples) -> Probe:
    """The class whose mean is nearest: -‖x - mean‖², without the ‖x‖² that all classes share."""
    # Distances hardly change if all features move together, and lose fewer digits
    x = examples.x.double()
    centre = x.mean(0)
    x = x - centre
    moments = Moments.of(x, examples.classes, examples.count)
    weight, bias = _nearest_mean(moments)

    # By the means without each fold; NaN for a class that has no other example
    folds = examples.folds()
    left_out = torch.empty(len(x), examples.count, dtype=x.dtype)
    for members, answered in zip(folds.members, folds.answered, strict=True):
        gone = members[members >= 0]
        lost = Moments.of(x[gone], examples.classes[gone], examples.count)
        without, offset = _nearest_mean(moments - lost)
        asked = members[answered]
        left_out[asked] = x[asked] @ without.mT + offset
    return _calibrated(weight, bias - weight @ centre, left_out, examples, folds, torch.nan)


def _nearest_mean(moments: Moments) -> tuple[Tensor, Tensor]:
    """The weights (K, D) and the bias (K,) of the class whose mean is nearest."""
    mean = moments.sums / moments.counts[:, None]
    return 2 * mean, -mean.square().sum(1)


def logistic(examples: Examples) -> Probe:
    """scikit-learn's logistic regression on standardised features. Its strength, scikit-learn's C,
    is the one whose answers have the least cross-entropy in cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # The threads of small products wait for each other longer than they compute
    x, classes, count = examples.x, examples.classes, examples.count
    threads = None
    if x.numel() * count < SMALL:
        threads = 1

    mean = x.double().mean(0)
    std = x.double().std(0, correction=0) + 1e-5
    rows = ((x.double() - mean) / std).numpy()
    y = classes.numpy()
    weights = "balanced" if examples.balanced else None

    def fit(chosen: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (K, D) and bias (K,), by the chosen examples."""
        with threadpool_limits(threads):
            model = LogisticRegression(C=c, max_iter=5000, class_weight=weights)
            model.fit(rows[chosen], y[chosen])
        if count == 2:  # one row, which says how much the second class is likelier
            signs = np.array([[-0.5], [0.5]])
            return signs * model.coef_, signs[:, 0] * model.intercept_
        return model.coef_, model.intercept_

    # The only example of a class, or group, always trains
    folds = examples.folds(FOLDS)
    fold = folds.fold.numpy()
    answered = folds.known.numpy()
    best = None
    least = np.inf
    for c in INVERSE_STRENGTHS:
        left_out = np.full((len(y), count), np.nan)
        for number in np.unique(fold):
            held_out = answered & (fold == number)
            if held_out.any():
                weight, bias = fit(~held_out, c)
                left_out[held_out] = rows[held_out] @ weight.T + bias
        scores = torch.from_numpy(left_out)
        loss = F.cross_entropy(scores[answered], classes[answered]).item()
        if best is None or loss < least:
            least = loss
            best = (c, scores)
    c, left_out = best
    weight, bias = map(torch.from_numpy, fit(fold >= 0, c))
    weight = weight / std
    return _calibrated(weight, bias - weight @ mean, left_out, examples, folds, c)


FIT: dict[Method, Callable[[Examples], Probe]] = {
    "linear": linear,
    "prototype": prototype,
    "logistic": logistic,
}


def fit_probe(
    method: Method,
    x: np.ndarray,
    classes: np.ndarray,
    count: int,
    balanced: bool = False,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """Fit a head to features (N, D) and classes (N,), of `count` classes in all, which have
    equal weight if `balanced`. Examples of one group, by its number (N,), are left out together.
    `products`: of each two rows, if they were computed (`row_products`).

    Raises VitkitError for fewer than two classes, for a class without an example, and for features that
    are not finite.
    """
    if not len(classes) or count < 2:
        raise BadData(f"{len(classes)} examples of {count} classes teach no classifier")
    counts = np.bincount(classes, minlength=count)
    if len(counts) > count or not counts.all():
        raise BadData(f"of {count} classes {(counts == 0).sum()} have no example")
    refuse_broken(x)
    examples = Examples(torch.tensor(x), torch.tensor(classes), count, balanced, groups, products)
    return FIT[method](examples)


def refuse_broken(x: np.ndarray) -> None:
    """Raises VitkitError for features (N, D) that are not finite."""
    broken = np.flatnonzero(~np.isfinite(x).all(1))
    if len(broken):
        raise BadWeights(
            f"the features of {len(broken):,} of {len(x):,} examples hold NaN or infinity, the "
            f"first of number {broken[0]}"
        )


def with_probe(
    classifier: Classifier,
    fitted: Probe,
    labels: tuple[str, ...],
    activation: Activation = "softmax",
) -> Classifier:
    """Put a probe into the model's head of zeros (`adopt`), in place."""
    head = classifier.model.head
    weight = fitted.weight.float()
    bias = fitted.bias.float()
    with torch.no_grad():
        if isinstance(head, DistilledHead):  # the mean of two, each on its half of the features
            halves = (2 * weight).chunk(2, 1)
            for layer, half in zip((head.token, head.distilled), halves, strict=True):
                layer.weight.copy_(half)
                layer.bias.copy_(bias)
        else:
            head.weight.copy_(weight)
            head.bias.copy_(bias)
    return replace(classifier, labels=labels, activation=activation)


def quality(
    name: str, logits: Tensor, classes: np.ndarray, groups: np.ndarray | None = None
) -> list[Metric]:
    """Accuracy and calibration error of logits (N, K), under this name; empty without images. Answers of
    one group, by its number (N,), are not independent."""
    if not len(classes):
        return []
    confidence, right = _confidence(logits, classes)
    return [
        accuracy_of(name, logits, classes, groups),
        measured_calibration(f"{name}/calibration_error", confidence, right, groups),
    ]


def accuracy_of(
    name: str, logits: Tensor, classes: np.ndarray, groups: np.ndarray | None = None
) -> Metric:
    """The accuracy alone, the first metric of `quality`."""
    _, right = _confidence(logits, classes)
    return share_right(f"{name}/top1", right, groups)


def balanced_quality(
    name: str, logits: Tensor, classes: np.ndarray, groups: np.ndarray | None = None
) -> Metric:
    """The balanced accuracy of logits (N, K), under this name. Images of classes that the head does not
    know, -1, count as one class, which is never answered. Answers of one group, by its number (N,), are
    not independent."""
    truth = np.where(classes < 0, logits.shape[1], classes)
    right = logits.argmax(1).numpy() == truth
    weights = balanced_weights(np.bincount(truth))[truth]
    share, interval = share_of_answers(right, truth, weights, groups)
    return Metric(f"{name}/balanced_accuracy", share, SHARE, interval)


def _confidence(logits: Tensor, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the likeliest class, and whether it is the right one, (N,) each."""
    confidence, predicted = logits.softmax(1).max(1)
    return confidence.numpy(), predicted.numpy() == classes


class LeftOut(NamedTuple):
    """The left-out answers that say something: those of fits that know the image's class."""

    logits: Tensor
    """(n, K)"""
    classes: np.ndarray
    """(n,)"""
    groups: np.ndarray | None
    """The number of each image's group, (n,), if some belong together."""

    @classmethod
    def of(cls, fitted: Probe, classes: np.ndarray, groups: np.ndarray | None) -> "LeftOut":
        """Those of a probe, which has learned from images of these classes and groups, (N,) each."""
        answered = fitted.left_out.isfinite().all(1).numpy()
        if fitted.known.any():  # what knows nothing of an image's class says nothing
            answered &= fitted.known.numpy()
        if groups is not None:
            groups = groups[answered]
        return cls(fitted.left_out[answered], classes[answered], groups)

    def accuracy(self, balanced: bool) -> Metric:
        """The accuracy; the balanced one if classes count alike."""
        _, right = _confidence(self.logits, self.classes)
        name = "top1"
        weights = None
        if balanced:
            name = "balanced_accuracy"
            weights = balanced_weights(np.bincount(self.classes))[self.classes]
        share, interval = share_of_left_out(right, self.classes, weights, self.groups)
        return Metric(f"left_out/{name}", share, SHARE, interval)


def left_out_quality(
    fitted: Probe, classes: np.ndarray, balanced: bool, groups: np.ndarray | None = None
) -> list[Metric]:
    """How good the left-out answers are: accuracy and calibration error, and first, if classes count
    alike, the balanced accuracy. Answers of one group, by its number (N,), are not independent. Empty
    if nothing could be left out."""
    found = LeftOut.of(fitted, classes, groups)
    if not len(found.classes):
        return []
    metrics = [found.accuracy(balanced=False)]
    if balanced:
        metrics.insert(0, found.accuracy(balanced=True))
    sure = _confidence(found.logits, found.classes)
    name = "left_out/calibration_error"
    return [*metrics, measured_calibration(name, *sure, found.groups)]


def chance_sentences(
    fitted: Probe,
    classes: np.ndarray,
    groups: np.ndarray | None,
    measured: Mapping[str, tuple[Tensor, np.ndarray | None]],
) -> list[str]:
    """What a perfectly calibrated model would show of a calibration error: on the images that were left
    out, of these classes and groups, (N,) each; and on others, by the part's name, of which there are
    logits and groups."""
    found = LeftOut.of(fitted, classes, groups)
    asked = {"left_out": (found.logits, found.groups), **measured}
    sentences = []
    for name, (logits, own_groups) in asked.items():
        if len(logits):
            confidence = logits.softmax(1).amax(1).numpy()
            sentences.append(f"{name}: {chance_sentence(confidence, own_groups)}")
    return sentences


def known_classes(source: Source) -> np.ndarray:
    """The classes that images have, ascending. Raises VitkitError if there are fewer than two."""
    classes = np.unique(source.targets)
    if len(classes) < 2:
        names = ", ".join(source.labels[number] for number in classes) or "no class"
        raise BadData(
            f"all there is to learn from, {counted(len(source), 'image')}, has {names}; a classifier "
            "needs two classes or more"
        )
    return classes


def _calibrated(
    weight: Tensor,
    bias: Tensor,
    left_out: Tensor,
    examples: Examples,
    folds: Folds,
    strength: float,
) -> Probe:
    """The probe of these scores, divided by their temperature."""
    answered = left_out.isfinite().all(1)
    t = 1.0
    if answered.any():
        t = fit_temperature(left_out[answered], examples.classes[answered])
    return Probe(weight / t, bias / t, left_out / t, folds.fold, folds.known, strength, t)
