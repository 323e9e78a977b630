"""Calibration: whether 80 % of the answers given with a probability of 80 % are right.

A confidence is the probability of the most likely class. The calibration error, the bins and the
temperature, a number that all logits are divided by, are those of Guo et al. 2017, "On Calibration of Modern
Neural Networks".

Legend: N images, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import (
    MISFIT,
    NATS,
    NUMBER,
    RESAMPLES,
    GroupSums,
    Metric,
    basic_percentiles,
    group_count,
    interval_of,
    percentiles,
    resampled,
    share_interval,
    shared_groups,
    wilson,
)
from vitkit.system.errors import BadData
from vitkit.weights import Classifier

BINS = 15  # as in Guo et al. and in most papers since
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)  # the rows of a report's table


STEPS = 60  # far more than Newton's method takes
CONVERGED = 1e-6  # relative size of the last step; the remaining error is about its square
# Bounds of a fitted temperature, in units of the logits' standard deviation
COLDEST = 1e-6
HOTTEST = 1e6


class Bin(NamedTuple):
    """The answers whose confidence is in one range."""

    low: float
    high: float
    """Bounds of the range of confidences: `low` is excluded, `high` included."""
    images: int
    confidence: float
    """The mean confidence of the bin's answers."""
    accuracy: float
    """The share of the bin's answers that are right."""
    interval: tuple[float, float]
    """The accuracy's interval of 95 % confidence."""


class Covered(NamedTuple):
    """The accuracy if only the most confident answers are given (selective classification)."""

    coverage: float
    """The share of the images that get an answer."""
    accuracy: float
    """The share of the given answers that are right."""
    interval: tuple[float, float]
    """The accuracy's interval of 95 % confidence."""
    threshold: float
    """The lowest confidence with which an answer is given."""


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """(N,), (N,) -> the expected calibration error, from 0 to 1: the distance of confidence and accuracy
    in each of 15 equal ranges of confidence, weighted by the number of images in the range."""
    gaps = np.bincount(bins_of(confidence), weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def reliability(
    confidence: np.ndarray, right: np.ndarray, groups: np.ndarray | None = None
) -> list[Bin]:
    """(N,), (N,) -> the bins that hold an answer, by ascending confidence. groups: answers with the same
    number, (N,), are not independent."""
    bin_of = bins_of(confidence)
    bins = []
    for i in np.unique(bin_of).tolist():
        inside = bin_of == i
        count = int(inside.sum())
        mean = float(confidence[inside].mean())
        right_inside = int(right[inside].sum())
        groups_inside = None
        if groups is not None:
            groups_inside = groups[inside]
        interval = share_interval(right[inside], groups_inside)
        bins.append(Bin(i / BINS, (i + 1) / BINS, count, mean, right_inside / count, interval))
    return bins


def bins_of(confidence: np.ndarray) -> np.ndarray:
    """(N,) -> the bin of each answer, from 0 to 14: int64 (N,)."""
    edges = np.arange(1, BINS) / BINS
    return np.searchsorted(edges, confidence, side="left")


def coverage_curve(
    confidence: np.ndarray, right: np.ndarray, groups: np.ndarray | None = None
) -> list[Covered]:
    """(N,), (N,) -> the accuracy at every distinct confidence as threshold, the highest first. groups:
    answers with the same number, (N,), are not independent."""
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    right_so_far = right[order].cumsum()
    last_of_its_kind = np.append(np.diff(sorted_confidence) != 0, True)
    sums = None
    shared = shared_groups(groups)
    if shared is not None:
        sums = _sums_so_far(right[order], shared[order])
    points = []
    for i in np.flatnonzero(last_of_its_kind).tolist():
        given = i + 1
        right_given = int(right_so_far[i])
        if sums is None:
            interval = wilson(right_given, given)
        else:
            interval = sums[i].interval()
        coverage = given / len(confidence)
        accuracy = right_given / given
        points.append(Covered(coverage, accuracy, interval, float(sorted_confidence[i])))
    return points


def _sums_so_far(right: np.ndarray, groups: np.ndarray) -> list[GroupSums]:
    """The running group sums of answers, (N,) each: those of the first one, of the first two, and so on."""
    sizes: dict[int, int] = {}
    rights: dict[int, int] = {}
    sums = GroupSums(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    every = []
    for value, group in zip(right.astype(int).tolist(), groups.tolist(), strict=True):
        m = sizes.get(group, 0)
        s = rights.get(group, 0)
        sizes[group] = m + 1
        rights[group] = s + value
        sums = GroupSums(
            len(sizes),
            sums.answers + 1,
            sums.total + value,
            sums.value_squares + value,
            sums.total_squares + (s + value) ** 2 - s**2,
            sums.products + (s + value) * (m + 1) - s * m,
            sums.size_squares + (m + 1) ** 2 - m**2,
        )
        every.append(sums)
    return every


def at_coverages(points: Sequence[Covered]) -> list[Covered]:
    """For each of COVERAGES the first point of the curve that reaches it, without repetitions."""
    chosen: list[Covered] = []
    for wanted in COVERAGES:
        enough = [point for point in points if point.coverage >= wanted - 1e-9]
        if enough and enough[0] not in chosen:
            chosen.append(enough[0])
    return chosen


def calibration_interval(
    confidence: np.ndarray,
    right: np.ndarray,
    others: np.ndarray,
    groups: np.ndarray | None = None,
) -> tuple[float, float]:
    """The calibration error's interval of 95 % confidence, from `others`, the errors of resampled
    images. groups: answers with the same number, (N,), are not independent, and were resampled together.

    The error is biased upwards on few images, and resampling adds to the bias. So the lower end is that of
    the basic bootstrap, and 0 if a perfectly calibrated model may have such an error by chance. The upper
    end is that of the percentile bootstrap, which is rather too high: the basic bootstrap's was below the
    true error in up to 15 % of cases.

    In simulations of five kinds of models and two distributions of confidences, the interval held the
    true error in 89 to 98 % of cases with 200 and 1,000 images, and in 84 to 97 % with 50.
    """
    error = calibration_error(confidence, right)
    independent = group_count(len(right), groups)
    low, _ = basic_percentiles(error, others, independent)
    _, high = percentiles(others, independent)
    if error <= perfect_error(confidence, groups):
        low = 0.0
    return min(low, error), min(max(high, error), 1.0)


def perfect_error(confidence: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The 97.5th percentile of the calibration error of a perfectly calibrated model with these
    confidences, (N,). A smaller error is no evidence of miscalibration.

    groups: images with the same number, (N,), are assumed to be perfectly correlated: with equal
    confidences, all of a group are right or all are wrong.
    """
    random = np.random.Generator(np.random.PCG64(0))
    number = np.arange(len(confidence))
    if groups is not None:
        number = np.unique(groups, return_inverse=True)[1]
    errors = []
    for _ in range(RESAMPLES):
        right = random.random(number.max() + 1)[number] < confidence
        errors.append(calibration_error(confidence, right))
    return float(np.percentile(errors, 97.5))


def measured_calibration(
    name: str, confidence: np.ndarray, right: np.ndarray, groups: np.ndarray | None = None
) -> Metric:
    """The calibration error of answers, (N,) each, with its interval by resampling; without one if all
    resamples are equal. groups: answers with the same number, (N,), are not independent."""

    def figures(rows: np.ndarray) -> np.ndarray:
        return np.array([calibration_error(confidence[rows], right[rows])])

    others = resampled(figures, len(right), groups=groups)[:, 0]
    interval = None
    if interval_of(others, group_count(len(right), groups)) is not None:
        interval = calibration_interval(confidence, right, others, groups)
    return Metric(name, calibration_error(confidence, right), MISFIT, interval)


def chance_sentence(confidence: np.ndarray, groups: np.ndarray | None = None) -> str:
    """A sentence about the calibration error that a perfectly calibrated model has by chance."""
    limit = MISFIT.text(perfect_error(confidence, groups))
    return (
        "by chance alone, a perfectly calibrated model would have a calibration error of up to "
        f"{limit} on these images"
    )


# The temperature. It does not change the order of classes, and so no accuracy. It must be fitted on logits
# of images that the model was not trained on: held-out images, or cross-validated predictions.


def fit_temperature(
    logits: Tensor, classes: Tensor, start: float | None = None, weights: Tensor | None = None
) -> float:
    """The temperature T at which softmax(logits / T) fits the true classes best: (N, K), int64 (N,)
    -> T.

    It minimises the cross-entropy, which is convex in 1 / T. As in Platt scaling, the target of the true
    class is (N + 1) / (N + 2), not 1: otherwise T would be 0 if every answer is right. The rest goes to
    the most likely of the other classes; spread over a thousand classes, most of it would go to classes
    that are never predicted, and T would be too large. If the answers are no better than chance, T is so
    large that all classes are equally likely.

    start: an initial guess of T. weights: weight of each answer, (N,); None for equal weights. Raises
    VitkitError for logits that are not finite, or have fewer than two classes.
    """
    count, outputs = logits.shape
    if not count or outputs < 2:
        raise BadData(f"a temperature is fitted on answers of two classes or more, not {outputs}")
    z = logits.double()
    if not z.isfinite().all():
        raise BadData("the logits hold NaN or infinity, so no temperature fits them")
    spread = z.std(correction=0).item() or 1.0
    z = (z - z.mean(1, keepdim=True)) / spread  # (N, K), standardised
    if weights is None:
        weights = torch.ones(count, dtype=torch.float64)
    shares = weights / weights.sum()  # (N,)

    # The expected logit under the targets: (N + 1) / (N + 2) for the true class, the rest for the next
    wrong = 1 / (count + 2)
    true = z.gather(1, classes[:, None])[:, 0]  # (N,)
    next_likely = z.scatter(1, classes[:, None], -torch.inf).amax(1)  # (N,)
    expected = shares @ ((1 - wrong) * true + wrong * next_likely)

    # Find the zero of the gradient, which increases with b = 1 / T: Newton's method within a bracket
    low = 1 / HOTTEST
    high = 1 / COLDEST
    b = 1.0
    if start is not None:
        b = min(max(spread / start, low), high)
    for _ in range(STEPS):
        weighted = (b * z).softmax(1) * z
        mean = weighted.sum(1)  # (N,)
        gradient = (shares @ mean - expected).item()
        if gradient > 0:
            high = b
        else:
            low = b
        curvature = (shares @ ((weighted * z).sum(1) - mean.square())).item()
        before = b
        b = b - gradient / max(curvature, 1e-300)
        if not low < b < high:
            b = (low * high) ** 0.5
        if abs(b - before) <= CONVERGED * b:
            break
    return spread / b


# The effect of a temperature on a model: `vitkit evaluate --calibrate`


class Calibration(NamedTuple):
    """A temperature, and its effect on images that it was not fitted on."""

    temperature: float
    """The temperature fitted on all images."""
    error_before: float
    """The calibration error without a temperature."""
    error_after: float
    """The calibration error of the images, each half with the temperature fitted on the other half."""
    loss_before: float
    """The mean softmax loss without a temperature."""
    loss_after: float
    """The mean softmax loss, each half of the images with the temperature fitted on the other half."""
    bins_after: tuple[Bin, ...]
    """The bins, each half of the images with the temperature fitted on the other half."""

    def metrics(self) -> list[Metric]:
        """The temperature, and the cross-fitted calibration error and loss."""
        return [
            Metric("temperature", self.temperature, NUMBER),
            Metric("calibrated/calibration_error", self.error_after, MISFIT),
            Metric("calibrated/loss", self.loss_after, NATS),
        ]


def check_can_calibrate(classifier: Classifier) -> None:
    """Raises VitkitError unless a temperature makes sense for the model's probabilities."""
    if classifier.activation != "softmax":
        raise BadData(
            f"a temperature is for probabilities of one class among several (softmax); the model's "
            f"activation is {classifier.activation}"
        )


def calibrate(given: Answers) -> Calibration:
    """Fit the temperature with the smallest loss; `given` must have logits. Raises VitkitError if the
    answers are no better than chance, and if they are not finite."""
    assert given.logits is not None, "the answers were computed without `keep_logits`"
    if not given.finite.all():
        raise BadData("the model's outputs are not finite; no temperature can mend that")
    logits = torch.from_numpy(given.logits)
    truth = torch.from_numpy(given.truth)
    temperature = fit_temperature(logits, truth)
    highest = float((logits / temperature).softmax(-1).max())
    if highest < 1.01 / logits.shape[1]:
        raise BadData(
            f"no temperature fits: of {len(given)} images {int(given.right.sum())} are right, which "
            "is no better than chance"
        )
    confidence, loss = _cross_fitted(logits, truth, given.groups)
    return Calibration(
        temperature=temperature,
        error_before=calibration_error(given.confidence, given.right),
        error_after=calibration_error(confidence, given.right),
        loss_before=float(given.loss.mean()),
        loss_after=float(loss.mean()),
        bins_after=tuple(reliability(confidence, given.right, given.groups)),
    )


def _cross_fitted(
    logits: torch.Tensor, truth: torch.Tensor, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and loss of each image, (N,) each, at the temperature fitted on the other half of the
    images. groups: images with the same number, (N,), are in the same half."""
    number = np.arange(len(truth))
    if groups is not None:
        number = np.unique(groups, return_inverse=True)[1]
    count = int(number.max()) + 1
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation(count)
    in_first = np.isin(number, shuffled[: count // 2])
    halves = (
        torch.from_numpy(np.flatnonzero(in_first)),
        torch.from_numpy(np.flatnonzero(~in_first)),
    )
    confidence = torch.empty(len(truth), dtype=torch.float64)
    loss = torch.empty(len(truth), dtype=torch.float64)
    for rows, others in (halves, halves[::-1]):
        temperature = 1.0  # a single image has no other half
        if len(others):
            temperature = fit_temperature(logits[others], truth[others])
        scaled = logits[rows] / temperature
        confidence[rows] = scaled.softmax(-1).amax(-1).double()
        loss[rows] = F.cross_entropy(scaled, truth[rows], reduction="none").double()
    return confidence.numpy(), loss.numpy()
