"""Probes: linear heads on a model's features, fitted in seconds, with the prediction for each example by
a fit without it.

A probe's logits are scores on a scale that is fitted to those left-out predictions: divided by a
temperature, for a softmax; on a line (Platt 1999), for a sigmoid; in their own unit, for a number. So they
are calibrated: a score of least squares is no log-probability, nor is a distance.

Legend: N examples, D width, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.evaluation.metrics.calibration import (
    fit_temperature,
)
from vitkit.evaluation.metrics.classification import balanced_weights
from vitkit.evaluation.metrics.other_targets import losses_of_known
from vitkit.evaluation.metrics.platt import Platt, fit_platt
from vitkit.evaluation.probes.cross_validation import (
    LEAST_KNOWN,
    LeaveOut,
    LeaveOutKnown,
    Scored,
    best_left_out,
)
from vitkit.evaluation.probes.folds import Folds, balanced_folds, folds_of
from vitkit.evaluation.probes.ridge import Moments, targets
from vitkit.models.head import DistilledHead
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadWeights
from vitkit.weights import Activation, Classifier

INVERSE_STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # of the logistic regression: scikit-learn's C
SMALL = 10**9  # multiplications of a step of the logistic regression that one thread does best
FOLDS = 5  # of its cross-validation: it has no closed form to leave one out

Method = Literal["linear", "prototype", "logistic"]


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear head, and its predictions for the examples that it has learned from, by fits without them."""

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
class TrainingSet:
    """The examples of one class each from which a probe learns."""

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


def linear(examples: TrainingSet) -> Probe:
    """Least squares with an intercept, in closed form; l2 is the one whose left-out predictions have
    the least cross-entropy, each l2 at its best temperature."""
    classes = examples.classes
    folds = examples.folds()
    y = targets(classes, examples.count)
    fit = LeaveOut(examples.x, y, folds, examples.weights, products=examples.products)
    l2, t, left_out = best_for_classes(fit, classes)
    weight, bias = fit.head(l2)
    return Probe(weight / t, bias / t, left_out, folds.fold, folds.known, l2, t)


def best_for_classes(fit: LeaveOut, classes: Tensor) -> tuple[float, float, Tensor]:
    """For one class each, (N,): the l2 whose left-out predictions have the least cross-entropy, each l2 at
    its best temperature; that temperature, and the left-out logits (N, K)."""
    temperature: float | None = None
    known = fit.folds.known
    if not known.any():  # one image of each class: nothing tells how sure an answer is
        l2 = fit.scale
        return l2, 1.0, fit.scores(l2)

    # What a fit that does not know its class answers to an image says nothing
    counted = fit.weights * known

    def judge(scores: Tensor, examples: Tensor) -> Scored[float]:
        nonlocal temperature  # that of the l2 before is near
        own = classes[examples]
        weights = counted[examples]
        if not weights.any():
            weights = torch.ones_like(weights)
        temperature = fit_temperature(scores, own, temperature, weights)
        logits = scores / temperature
        losses = weights * F.cross_entropy(logits, own, reduction="none")
        return Scored(losses, logits, temperature)

    l2, judged = best_left_out(fit, judge)
    if (fit.weights == fit.weights[0]).all():
        return l2, judged.scale, judged.predictions

    # Where classes count alike, two images of a rare one that nothing can know would make all answers
    # unsure: the last temperature is that of the images as they are
    again = fit_temperature(judged.predictions[known], classes[known])
    return l2, judged.scale * again, judged.predictions / again


def prototype(examples: TrainingSet) -> Probe:
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


def logistic(examples: TrainingSet) -> Probe:
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
    judged = []
    for c in INVERSE_STRENGTHS:
        left_out = np.full((len(y), count), np.nan)
        for number in np.unique(fold):
            held_out = answered & (fold == number)
            if held_out.any():
                weight, bias = fit(~held_out, c)
                left_out[held_out] = rows[held_out] @ weight.T + bias
        scores = torch.from_numpy(left_out)
        loss = F.cross_entropy(scores[answered], classes[answered]).item()
        judged.append((loss, c, scores))
    _, c, scores = min(judged, key=lambda each: each[0])
    weight, bias = fit(fold >= 0, c)
    w = torch.from_numpy(weight) / std
    b = torch.from_numpy(bias) - w @ mean
    return _calibrated(w, b, scores, examples, folds, c)


def _calibrated(
    weight: Tensor,
    bias: Tensor,
    left_out: Tensor,
    examples: TrainingSet,
    folds: Folds,
    strength: float,
) -> Probe:
    """The probe of these scores, divided by their temperature."""
    answered = left_out.isfinite().all(1)
    t = 1.0
    if answered.any():
        t = fit_temperature(left_out[answered], examples.classes[answered])
    return Probe(weight / t, bias / t, left_out / t, folds.fold, folds.known, strength, t)


FIT: dict[Method, Callable[[TrainingSet], Probe]] = {
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
    examples = TrainingSet(
        torch.tensor(x), torch.tensor(classes), count, balanced, groups, products
    )
    return FIT[method](examples)


def refuse_broken(x: np.ndarray) -> None:
    """Raises VitkitError for features (N, D) that are not finite."""
    broken = np.flatnonzero(~np.isfinite(x).all(1))
    if len(broken):
        raise BadWeights(
            f"the features of {len(broken):,} of {len(x):,} examples hold NaN or infinity, the "
            f"first of number {broken[0]}"
        )


# Several classes an image, and numbers: least squares in closed form, as for one class each


def several_probe(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """A head of yes-or-no questions, for a sigmoid: features (N, D), and ones and zeros (N, K), or NaN
    where it is unknown: an example takes no part in the fit of such a class. l2 is the one whose left-out
    predictions have the least cross-entropy. Examples of one group, by its number (N,), are left out together.
    `products`: of each two rows, if they were computed (`row_products`).

    Raises VitkitError for a class without an example, for one that is known of one group only, for no class
    at all, if all examples have all classes, and for features that are not finite.
    """
    refuse_broken(x)
    if not len(y) or not y.shape[1]:
        examples = counted(len(y), "example")
        raise BadData(f"{examples} of {y.shape[-1]} classes teach no classifier")
    empty = np.flatnonzero(~(y == 1).any(0))
    if len(empty):
        raise BadData(f"of {y.shape[1]} classes {len(empty)} have no example")
    alone = np.flatnonzero(~learnable(y, groups))
    if len(alone):
        raise BadData(
            f"of {y.shape[1]} classes {len(alone)} are known of one example only, or of one group of them"
        )
    if (y != 0).all():
        raise BadData(
            f"all {len(y):,} examples have all {y.shape[1]} classes, so nothing tells what has them not"
        )
    truth = torch.tensor(y, dtype=torch.float64)
    folds = _each(len(y), groups)
    fit: LeaveOut | LeaveOutKnown
    if truth.isnan().any():
        fit = LeaveOutKnown.of_targets(torch.tensor(x), 2 * truth - 1, folds, products)
    else:
        fit = LeaveOut(torch.tensor(x), 2 * truth - 1, folds, products=products)

    def judge(scores: Tensor, examples: Tensor) -> Scored[Platt]:
        own = truth[examples]
        known = ~own.isnan()
        platt = fit_platt(scores[known], own[known])
        logits = platt.logits(scores)
        return Scored(losses_of_known(logits, own), logits, platt)

    l2, judged = best_left_out(fit, judge)
    platt = judged.scale
    weight, bias = fit.head(l2)
    return Probe(
        platt.slope * weight,
        platt.logits(bias),
        judged.predictions,
        folds.fold,
        folds.known,
        l2,
        temperature=1 / platt.slope,
    )


def number_probe(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """A head of one output, the number in its own unit: features (N, D), numbers (N,). l2 is the
    one whose left-out predictions have the least squared error. Examples of one group, by its number
    (N,), are left out together. `products`: of each two rows, if they were computed. Raises VitkitError for
    fewer than two different numbers, and for features that are not finite."""
    refuse_broken(x)
    if len(y) < 2:
        raise BadData(f"{counted(len(y), 'example')} cannot teach a number; two or more can")
    if np.ptp(y) == 0:
        raise BadData(
            f"all {len(y):,} examples have the number {y[0]:g}; there is nothing to learn"
        )
    truth = torch.tensor(y, dtype=torch.float64)[:, None]  # (N, 1)
    folds = _each(len(y), groups)
    fit = LeaveOut(torch.tensor(x), truth, folds, products=products)

    def judge(scores: Tensor, examples: Tensor) -> Scored[None]:
        return Scored((scores - truth[examples]).square()[:, 0], scores, None)

    l2, judged = best_left_out(fit, judge)
    weight, bias = fit.head(l2)
    return Probe(weight, bias, judged.predictions, folds.fold, folds.known, l2, temperature=1.0)


def _each(count: int, groups: np.ndarray | None) -> Folds:
    """A fold for each example, or for each group."""
    if groups is None:
        groups = np.arange(count)
    return folds_of(groups)


def learnable(y: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Which classes a fit without some example can know: those that an example has, and that are known of
    all examples, or of two groups, (N,), at least; of ones, zeros and NaN (N, K): bool (K,)."""
    if groups is None:
        groups = np.arange(len(y))
    known = ~np.isnan(y)
    known_of = [len(np.unique(groups[some])) for some in known.T]
    return (y == 1).any(0) & (known.all(0) | (np.array(known_of) >= LEAST_KNOWN))


# In a model


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
            assert isinstance(head, nn.Linear), "a model that was adopted for classes has a head"
            head.weight.copy_(weight)
            head.bias.copy_(bias)
    return replace(classifier, labels=labels, activation=activation)
