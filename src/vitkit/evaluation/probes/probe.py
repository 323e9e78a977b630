"""Probes: linear heads on a model's features, fitted in seconds, with cross-validated predictions for the
examples that they were fitted to.

The scores of least squares, and distances, are not log-probabilities. So a probe's logits are scores that are
calibrated on the cross-validated predictions: divided by a temperature for a softmax; scaled by Platt's method
(1999) for a sigmoid; unscaled for a number.

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
    Calibrated,
    LeaveOut,
    LeaveOutKnown,
    best_left_out,
)
from vitkit.evaluation.probes.folds import Folds, balanced_folds, folds_of
from vitkit.evaluation.probes.ridge import Moments, targets
from vitkit.models.head import DistilledHead
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadWeights
from vitkit.weights import Activation, Classifier

INVERSE_STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # values of C of scikit-learn's logistic regression
# Multiplications per step below which the logistic regression is fastest with one thread
SMALL = 10**9
FOLDS = 5  # folds for the logistic regression, which has no closed form for leave-one-out

Method = Literal["linear", "prototype", "logistic"]


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear head, and cross-validated predictions for the examples that it was fitted to."""

    weight: Tensor
    """Weights, float64 (K, D)."""
    bias: Tensor
    """Biases, float64 (K,)."""
    left_out: Tensor
    """The logits of each example by a fit without its fold, float64 (N, K); NaN for the only example of a
    class, if the method needs an example of each class."""
    fold: Tensor
    """The fold that each example was left out with, (N,)."""
    known: Tensor
    """Whether the fit without an example's fold has other examples of its class, bool (N,)."""
    strength: float
    """Strength of the regularisation, in the unit of the method; NaN for a method without."""
    temperature: float
    """Temperature by which the weights and the cross-validated scores were divided."""

    def logits(self, x: Tensor) -> Tensor:
        """Features (N, D) -> (N, K)."""
        return x.double() @ self.weight.mT + self.bias


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Examples of one class each, to fit a probe to."""

    x: Tensor
    """Features, (N, D)."""
    classes: Tensor
    """Class of each example, (N,)."""
    count: int
    """Number of classes, K; each has an example."""
    balanced: bool = False
    """Whether all classes have the same weight, however many examples they have."""
    groups: np.ndarray | None = None
    """Examples with the same number, (N,), are left out together; None if each is a group."""
    products: Tensor | None = None
    """Gram matrix of the rows of x, from `row_products`; None if it was not computed."""

    def folds(self, most: int | None = None) -> Folds:
        """The folds of the examples, which do not depend on their order. most: largest number of folds."""
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
    """Ridge regression with an intercept, in closed form. l2 is the value whose cross-validated predictions
    have the lowest cross-entropy, each value with its best temperature."""
    classes = examples.classes
    folds = examples.folds()
    y = targets(classes, examples.count)
    fit = LeaveOut(examples.x, y, folds, examples.weights, products=examples.products)
    l2, t, left_out = best_for_classes(fit, classes)
    weight, bias = fit.head(l2)
    return Probe(weight / t, bias / t, left_out, folds.fold, folds.known, l2, t)


def best_for_classes(fit: LeaveOut, classes: Tensor) -> tuple[float, float, Tensor]:
    """For examples with one class each, (N,): the l2 whose cross-validated predictions have the lowest
    cross-entropy, each with its best temperature; that temperature; and the cross-validated logits (N, K)."""
    temperature: float | None = None
    known = fit.folds.known
    if not known.any():  # one image of each class: a temperature cannot be estimated
        l2 = fit.scale
        return l2, 1.0, fit.scores(l2)

    # Predictions by a fit without the example's class are not informative
    counted = fit.weights * known

    def calibrator(scores: Tensor, examples: Tensor) -> Calibrated[float]:
        nonlocal temperature  # starts the search at the temperature of the previous l2
        own = classes[examples]
        weights = counted[examples]
        if not weights.any():
            weights = torch.ones_like(weights)
        temperature = fit_temperature(scores, own, temperature, weights)
        logits = scores / temperature
        losses = weights * F.cross_entropy(logits, own, reduction="none")
        return Calibrated(losses, logits, temperature)

    l2, calibrated = best_left_out(fit, calibrator)
    if (fit.weights == fit.weights[0]).all():
        return l2, calibrated.scale, calibrated.predictions

    # With balanced weights, two unpredictable images of a rare class would lower the confidence of all
    # answers: the final temperature is fitted with equal weights for all images
    again = fit_temperature(calibrated.predictions[known], classes[known])
    return l2, calibrated.scale * again, calibrated.predictions / again


def prototype(examples: TrainingSet) -> Probe:
    """The nearest class mean as a linear head: -‖x - mean‖², without the ‖x‖² that all classes share."""
    # Centring does not change distances, and keeps more digits
    x = examples.x.double()
    centre = x.mean(0)
    x = x - centre
    moments = Moments.of(x, examples.classes, examples.count)
    weight, bias = _nearest_mean(moments)

    # Scores by the means without each fold; NaN for a class without other examples
    folds = examples.folds()
    left_out = torch.empty(len(x), examples.count, dtype=x.dtype)
    for members, answered in zip(folds.members, folds.answered, strict=True):
        gone = members[members >= 0]
        lost = Moments.of(x[gone], examples.classes[gone], examples.count)
        without, offset = _nearest_mean(moments - lost)
        predicted = members[answered]
        left_out[predicted] = x[predicted] @ without.mT + offset
    return _calibrated(weight, bias - weight @ centre, left_out, examples, folds, torch.nan)


def _nearest_mean(moments: Moments) -> tuple[Tensor, Tensor]:
    """The weights (K, D) and the bias (K,) whose largest output is the class with the nearest mean."""
    mean = moments.sums / moments.counts[:, None]
    return 2 * mean, -mean.square().sum(1)


def logistic(examples: TrainingSet) -> Probe:
    """scikit-learn's logistic regression on standardised features. Its parameter C is the value with the
    lowest cross-entropy in cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # With small products, threads wait for each other longer than they compute
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
        """Weights (K, D) and bias (K,) of a fit to the chosen examples."""
        with threadpool_limits(threads):
            model = LogisticRegression(C=c, max_iter=5000, class_weight=weights)
            model.fit(rows[chosen], y[chosen])
        if count == 2:  # scikit-learn returns one row, the log-odds of the second class
            signs = np.array([[-0.5], [0.5]])
            return signs * model.coef_, signs[:, 0] * model.intercept_
        return model.coef_, model.intercept_

    # The only example, or group, of a class is never left out
    folds = examples.folds(FOLDS)
    fold = folds.fold.numpy()
    answered = folds.known.numpy()
    candidates = []
    for c in INVERSE_STRENGTHS:
        left_out = np.full((len(y), count), np.nan)
        for number in np.unique(fold):
            held_out = answered & (fold == number)
            if held_out.any():
                weight, bias = fit(~held_out, c)
                left_out[held_out] = rows[held_out] @ weight.T + bias
        scores = torch.from_numpy(left_out)
        loss = F.cross_entropy(scores[answered], classes[answered]).item()
        candidates.append((loss, c, scores))
    _, c, scores = min(candidates, key=lambda candidate: candidate[0])
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
    """A probe with these weights and cross-validated scores, divided by the temperature fitted to these."""
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
    """Fit a head to features (N, D) and classes (N,), of `count` classes in all.

    balanced: whether all classes have the same weight.
    groups: examples with the same number, (N,), are left out together.
    products: Gram matrix of the features, if it was computed (`row_products`).

    Raises VitkitError for fewer than two classes, for a class without an example, and for features that
    are not finite.
    """
    if not len(classes) or count < 2:
        raise BadData(
            f"a classifier cannot be fitted to {len(classes)} examples of {count} classes; give "
            "examples of two classes or more"
        )
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
            f"the features of {len(broken):,} of {len(x):,} examples hold NaN or infinity; the "
            f"first is example {broken[0]}"
        )


# Probes for several classes per image, and for numbers


def several_probe(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """Fit a multi-label head, for a sigmoid. l2 is the value whose cross-validated predictions have the
    lowest cross-entropy.

    x: features (N, D).
    y: ones, zeros, or NaN where unknown, (N, K); an example takes no part in the fit of an unknown class.
    groups: examples with the same number, (N,), are left out together.
    products: Gram matrix of the features, if it was computed (`row_products`).

    Raises VitkitError for a class without an example, for one that is known for one group only, for no class
    at all, if all examples have all classes, and for features that are not finite.
    """
    refuse_broken(x)
    if not len(y) or not y.shape[1]:
        examples = counted(len(y), "example")
        raise BadData(f"a classifier cannot be fitted to {examples} of {y.shape[-1]} classes")
    empty = np.flatnonzero(~(y == 1).any(0))
    if len(empty):
        raise BadData(f"of {y.shape[1]} classes {len(empty)} have no example")
    alone = np.flatnonzero(~learnable(y, groups))
    if len(alone):
        raise BadData(
            f"of {y.shape[1]} classes {len(alone)} are known for a single example or group of examples only"
        )
    if (y != 0).all():
        raise BadData(
            f"all {len(y):,} examples have all {y.shape[1]} classes; add examples without some of them"
        )
    truth = torch.tensor(y, dtype=torch.float64)
    folds = _leave_one_out(len(y), groups)
    fit: LeaveOut | LeaveOutKnown
    if truth.isnan().any():
        fit = LeaveOutKnown.of_targets(torch.tensor(x), 2 * truth - 1, folds, products)
    else:
        fit = LeaveOut(torch.tensor(x), 2 * truth - 1, folds, products=products)

    def calibrator(scores: Tensor, examples: Tensor) -> Calibrated[Platt]:
        own = truth[examples]
        known = ~own.isnan()
        platt = fit_platt(scores[known], own[known])
        logits = platt.logits(scores)
        return Calibrated(losses_of_known(logits, own), logits, platt)

    l2, calibrated = best_left_out(fit, calibrator)
    platt = calibrated.scale
    weight, bias = fit.head(l2)
    return Probe(
        platt.slope * weight,
        platt.logits(bias),
        calibrated.predictions,
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
    """Fit a head with one output, a number in its own unit, to features (N, D) and numbers (N,). l2 is the
    value whose cross-validated predictions have the lowest squared error.

    groups: examples with the same number, (N,), are left out together.
    products: Gram matrix of the features, if it was computed (`row_products`).

    Raises VitkitError for fewer than two different numbers, and for features that are not finite.
    """
    refuse_broken(x)
    if len(y) < 2:
        raise BadData(
            f"a regression cannot be fitted to {counted(len(y), 'example')}; give two or more"
        )
    if np.ptp(y) == 0:
        raise BadData(
            f"all {len(y):,} examples have the number {y[0]:g}; there is nothing to learn"
        )
    truth = torch.tensor(y, dtype=torch.float64)[:, None]  # (N, 1)
    folds = _leave_one_out(len(y), groups)
    fit = LeaveOut(torch.tensor(x), truth, folds, products=products)

    def calibrator(scores: Tensor, examples: Tensor) -> Calibrated[None]:
        return Calibrated((scores - truth[examples]).square()[:, 0], scores, None)

    l2, calibrated = best_left_out(fit, calibrator)
    weight, bias = fit.head(l2)
    return Probe(weight, bias, calibrated.predictions, folds.fold, folds.known, l2, temperature=1.0)


def _leave_one_out(count: int, groups: np.ndarray | None) -> Folds:
    """A fold for each of `count` examples, or for each of their groups, (N,)."""
    if groups is None:
        groups = np.arange(count)
    return folds_of(groups)


def learnable(y: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Which classes can be cross-validated, bool (K,), from ones, zeros and NaN (N, K): those that an example
    has, and that are known for all examples, or for two groups, (N,), at least."""
    if groups is None:
        groups = np.arange(len(y))
    known = ~np.isnan(y)
    known_of = [len(np.unique(groups[some])) for some in known.T]
    return (y == 1).any(0) & (known.all(0) | (np.array(known_of) >= LEAST_KNOWN))


# A probe as the head of a model


def with_probe(
    classifier: Classifier,
    fitted: Probe,
    labels: tuple[str, ...],
    activation: Activation = "softmax",
) -> Classifier:
    """Copy a probe into the model's head, in place; returns the classifier with its labels."""
    head = classifier.model.head
    weight = fitted.weight.float()
    bias = fitted.bias.float()
    with torch.no_grad():
        # The mean of two layers, each on its half of the features
        if isinstance(head, DistilledHead):
            halves = (2 * weight).chunk(2, 1)
            for layer, half in zip((head.token, head.distilled), halves, strict=True):
                layer.weight.copy_(half)
                layer.bias.copy_(bias)
        else:
            assert isinstance(head, nn.Linear), "a model that was adopted for classes has a head"
            head.weight.copy_(weight)
            head.bias.copy_(bias)
    return replace(classifier, labels=labels, activation=activation)
