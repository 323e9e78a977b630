"""The quality of a head's predictions, as metrics with intervals: of its predictions for new images, and of the
cross-validated predictions for the images that it was fitted to.

Each function yields the main metric first, so that `next(...)` does not compute the others.

Legend: N images, K outputs of the head.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from vitkit.data import TargetKind
from vitkit.evaluation.metrics.calibration import chance_sentence, measured_calibration
from vitkit.evaluation.metrics.classification import balanced_weights
from vitkit.evaluation.metrics.metric import SHARE, Metric, group_count, share_right
from vitkit.evaluation.metrics.other_targets import YES, errors, several
from vitkit.evaluation.metrics.weighted import share_of_answers
from vitkit.evaluation.probes.probe import Probe

# With n images per class, the accuracy of cross-validated predictions has 1 + OTHERS / n times the variance of
# that of independent predictions
OTHERS = 4
# A fit to n images per class has (1 - 1 / n) ** CURVE times the errors of a fit to n - 1
CURVE = 0.25
# The factor of the variance for numbers and several classes, with n images in all: 1 + (NUMBERS / n) ** 0.5
NUMBERS = 100


def quality(
    name: str,
    logits: Tensor,
    y: np.ndarray,
    *,
    kind: TargetKind = "class",
    balanced: bool = False,
    groups: np.ndarray | None = None,
) -> Iterator[Metric]:
    """Yields the metrics of predictions (N, K), whose names begin with `name`. For one class per image these
    are the balanced accuracy, if `balanced`, the accuracy and the calibration error; none without images.

    y: targets from `Probing.targets`. Images of classes that the head does not know, -1, count as one class,
        which is never predicted.
    groups: images with the same number, (N,), have dependent predictions.
    """
    if kind == "classes":
        metrics = several(logits, logits.sigmoid() > YES, torch.tensor(y), groups)
        yield from (metric.within(name) for metric in metrics)
    elif kind == "number":
        metrics = errors(logits[:, 0], torch.tensor(y), groups)
        yield from (metric.within(name) for metric in metrics)
    elif len(y):
        right = logits.argmax(1).numpy() == y
        if balanced:
            truth = np.where(y < 0, logits.shape[1], y)
            weights = balanced_weights(np.bincount(truth))[truth]
            share, interval = share_of_answers(right, truth, weights, groups)
            yield Metric(f"{name}/balanced_accuracy", share, SHARE, interval)
        yield share_right(f"{name}/top1", right, groups)
        yield measured_calibration(f"{name}/calibration_error", _confidence(logits), right, groups)


def left_out_quality(
    fitted: Probe,
    y: np.ndarray,
    *,
    kind: TargetKind = "class",
    balanced: bool = False,
    groups: np.ndarray | None = None,
) -> Iterator[Metric]:
    """Yields the metrics of a head's cross-validated predictions, whose names begin with left_out/; none if
    no image could be left out. The arguments are those of `quality`."""
    if kind == "class":
        yield from _left_out_accuracy(fitted, y, balanced, groups)
        return
    fewer = variance_of_fits(group_count(len(y), groups))
    logits = fitted.left_out
    truth = torch.tensor(y)
    means = torch.tensor(means_without(y, fitted.fold.numpy()))
    if kind == "classes":
        # Subtract the mean of each fit's targets, which are 1 and -1: it would reverse the ranking of images
        scores = logits - 2 * means / fitted.temperature
        metrics = several(scores, logits.sigmoid() > YES, truth, groups, fewer)
    else:
        metrics = errors(logits[:, 0], truth, groups, fewer, means)
    yield from (metric.within("left_out") for metric in metrics)


def _left_out_accuracy(
    fitted: Probe, classes: np.ndarray, balanced: bool, groups: np.ndarray | None
) -> Iterator[Metric]:
    """Yields the metrics of `left_out_quality` for one class per image, (N,)."""
    some = _informative(fitted)
    logits = fitted.left_out[some]
    classes = classes[some]
    if groups is not None:
        groups = groups[some]
    if not len(classes):
        return
    right = logits.argmax(1).numpy() == classes
    if balanced:
        weights = balanced_weights(np.bincount(classes))[classes]
        share, interval = share_of_left_out(right, classes, weights, groups)
        yield Metric("left_out/balanced_accuracy", share, SHARE, interval)
    share, interval = share_of_left_out(right, classes, None, groups)
    yield Metric("left_out/top1", share, SHARE, interval)
    yield measured_calibration("left_out/calibration_error", _confidence(logits), right, groups)


def _informative(fitted: Probe) -> np.ndarray:
    """Which cross-validated predictions are by a fit that knows the image's class, bool (N,)."""
    some = fitted.left_out.isfinite().all(1).numpy()
    if fitted.known.any():
        some &= fitted.known.numpy()
    return some


def _confidence(logits: Tensor) -> np.ndarray:
    """The probability of the most likely class, (N,)."""
    return logits.softmax(1).amax(1).numpy()


def chance_sentences(
    fitted: Probe,
    groups: np.ndarray | None,
    measured: Mapping[str, tuple[Tensor, np.ndarray | None]],
) -> list[str]:
    """Sentences about the calibration error that a perfectly calibrated model has by chance.

    groups: the number of the group of each image that was left out, (N,).
    measured: logits and groups of other images, by the name of their part.
    """
    some = _informative(fitted)
    left_out_groups = None
    if groups is not None:
        left_out_groups = groups[some]
    parts = {"left_out": (fitted.left_out[some], left_out_groups), **measured}
    sentences = []
    for name, (logits, own_groups) in parts.items():
        if len(logits):
            sentences.append(f"{name}: {chance_sentence(_confidence(logits), own_groups)}")
    return sentences


# Cross-validated predictions as an estimate for the fit to all examples


def variance_of_fits(independent: int) -> float:
    """The factor by which the variance of a metric of cross-validated predictions, around its value for the fit
    to all examples on new images, exceeds that of independent predictions.

    Cross-validated predictions share the errors of their fits, and of the choice of l2, which other examples
    would have changed. From simulations (NUMBERS), for a number of independent examples, or groups.
    """
    return 1 + math.sqrt(NUMBERS / independent)


def means_without(y: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """For each example, the mean of the targets outside its fold, from targets (N,) or (N, K) and folds, (N,).
    Targets that are NaN are unknown and take no part.

    An uninformative fit without an example predicts this mean, which is lower the larger the example's target
    is. So uninformative cross-validated predictions are negatively correlated with the targets.
    """
    number = np.unique(fold, return_inverse=True)[1]
    known = ~np.isnan(y)
    y = np.where(known, y, 0)
    sums = np.zeros((number.max() + 1, *y.shape[1:]))
    counts = np.zeros_like(sums)
    np.add.at(sums, number, y)
    np.add.at(counts, number, known)
    return (y.sum(0) - sums[number]) / np.maximum(known.sum(0) - counts[number], 1)


def share_of_left_out(
    right: np.ndarray,
    classes: np.ndarray,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> tuple[float, tuple[float, float]]:
    """The share of cross-validated predictions that are right, bool (N,), and a 95 % interval for the accuracy
    of the fit to all examples on new images (docs/accuracy.md has its measured coverage).

    weights: weight of each answer, (N,). groups: answers with the same number are not independent.

    It is the interval of `share_of_answers` for fewer answers where classes have few images, because other
    images would have given another fit (OTHERS). The upper end is raised by what one more image per class may
    gain (CURVE). Both are from simulations.
    """
    if weights is None:
        weights = np.ones(len(right))
    each = weights.sum() ** 2 / np.square(weights).sum() / len(np.unique(classes))
    share, (low, high) = share_of_answers(right, classes, weights, groups, 1 + OTHERS / each)
    high += (1 - high) * (1 - (1 - 1 / max(each, 2)) ** CURVE)
    return share, (low, high)
