"""How good the predictions of a head are, as metrics with intervals: those for other images, and those for
each image that it has learned from, by a fit without it.

Each function yields first the metric that a head is judged by: `next(...)` is that one, without the time
that the others take.

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

OTHERS = 4  # left-out predictions vary 1 + OTHERS / n times as much as others, of n images a class,
CURVE = 0.25  # and fits to n have (1 - 1 / n) ** CURVE times the errors of fits to one less
NUMBERS = (
    100  # as OTHERS, of numbers and several classes: 1 + (NUMBERS / n) ** 0.5, of n images in all
)


def quality(
    name: str,
    logits: Tensor,
    y: np.ndarray,
    *,
    kind: TargetKind = "class",
    balanced: bool = False,
    groups: np.ndarray | None = None,
) -> Iterator[Metric]:
    """The metrics of predictions (N, K), under this name. For one class each these are the accuracy and the
    calibration error, and before them, if classes count alike, the balanced accuracy; none without images.

    y: targets, as `Probing.targets` gives them. Images of classes that the head does not know, -1, count as
        one class, which is never predicted.
    groups: predictions for images of one group, by its number (N,), are not independent.
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
    """The metrics of the left-out predictions of a head for the images that it has learned from, under the
    name left_out; none if no image could be left out. The arguments are those of `quality`."""
    if kind == "class":
        yield from _left_out_accuracy(fitted, y, balanced, groups)
        return
    fewer = variance_of_fits(group_count(len(y), groups))
    logits = fitted.left_out
    truth = torch.tensor(y)
    means = torch.tensor(means_without(y, fitted.fold.numpy()))
    if kind == "classes":
        # The order of images by their scores, for targets of 1 and -1, without that of these means
        scores = logits - 2 * means / fitted.temperature
        metrics = several(scores, logits.sigmoid() > YES, truth, groups, fewer)
    else:
        metrics = errors(logits[:, 0], truth, groups, fewer, means)
    yield from (metric.within("left_out") for metric in metrics)


def _left_out_accuracy(
    fitted: Probe, classes: np.ndarray, balanced: bool, groups: np.ndarray | None
) -> Iterator[Metric]:
    """The metrics of `left_out_quality` for one class each, (N,)."""
    some = _says_something(fitted)
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


def _says_something(fitted: Probe) -> np.ndarray:
    """Which left-out predictions are of a fit that knows the image's class, bool (N,)."""
    some = fitted.left_out.isfinite().all(1).numpy()
    if fitted.known.any():
        some &= fitted.known.numpy()
    return some


def _confidence(logits: Tensor) -> np.ndarray:
    """The probability of the likeliest class, (N,)."""
    return logits.softmax(1).amax(1).numpy()


def chance_sentences(
    fitted: Probe,
    groups: np.ndarray | None,
    measured: Mapping[str, tuple[Tensor, np.ndarray | None]],
) -> list[str]:
    """What a perfectly calibrated model would show of a calibration error: on the images that were left
    out, whose groups are (N,); and on others, by the part's name, of which there are logits and groups."""
    some = _says_something(fitted)
    left_out_groups = None
    if groups is not None:
        left_out_groups = groups[some]
    asked = {"left_out": (fitted.left_out[some], left_out_groups), **measured}
    sentences = []
    for name, (logits, own_groups) in asked.items():
        if len(logits):
            sentences.append(f"{name}: {chance_sentence(_confidence(logits), own_groups)}")
    return sentences


# What left-out predictions say about one fit to all


def variance_of_fits(independent: int) -> float:
    """How many times as much numbers computed of left-out predictions vary, about what one fit to all reaches on
    new images, as if all left-out predictions were those of that fit.

    Other examples would have made another fit, chosen another l2, and the left-out predictions of a fit have
    its errors in common. From simulations (NUMBERS), by the number of independent examples, or groups.
    """
    return 1 + math.sqrt(NUMBERS / independent)


def means_without(y: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The mean of all targets but those of each one's fold: of targets (N,) or (N, K) and folds, (N,).
    Targets that are NaN are unknown and take no part.

    A fit without an example begins at this mean, which is the lower the larger the example's target is. So
    left-out predictions that know nothing are ordered the wrong way round.
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
    """The share of left-out predictions that are right, bool (N,), and an interval that holds the accuracy of
    the whole fit on new images in 95 % of cases (docs/accuracy.md has how often it did).

    weights: what each answer counts, (N,). groups: answers with the same number are not independent.

    It is that of `share_of_answers`, for fewer answers where classes have few images, of which others
    would have made another fit (OTHERS). Its upper end has, too, what the image of each class that is
    missing may be worth (CURVE). Both are from simulations.
    """
    if weights is None:
        weights = np.ones(len(right))
    each = weights.sum() ** 2 / np.square(weights).sum() / len(np.unique(classes))
    share, (low, high) = share_of_answers(right, classes, weights, groups, 1 + OTHERS / each)
    high += (1 - high) * (1 - (1 - 1 / max(each, 2)) ** CURVE)
    return share, (low, high)
