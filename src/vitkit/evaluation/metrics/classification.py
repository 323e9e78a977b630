"""Metrics for images of one class each: accuracy, the other figures of merit, and which classes are confused
with which.

Only classes that occur among the images have scores. An answer outside of them is wrong.

Legend: N images, C classes that any of them has.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from vitkit.data import TargetKind
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.answers import Answers, answers
from vitkit.evaluation.metrics.calibration import calibration_error, calibration_interval
from vitkit.evaluation.metrics.metric import (
    COUNT,
    MISFIT,
    NATS,
    SHARE,
    Metric,
    group_count,
    interval_of,
    resampled,
    share_interval,
    share_right,
    wilson,
)
from vitkit.evaluation.metrics.weighted import share_of_answers

# Smallest number of classes for which top5 is measured: five answers are most of fewer classes
TOP5_FROM = 10
UNBALANCED = 3  # smallest ratio of the largest class's images to the smallest's
# The figures whose intervals are computed by resampling, in the order of `figures_of`
RESAMPLED = {
    "balanced_accuracy": SHARE,
    "macro_f1": SHARE,
    "calibration_error": MISFIT,
    "loss": NATS,
}


@dataclass(frozen=True)
class Accuracy:
    """The shares of images whose true class is the most likely one (top1), and one of the five most likely
    (top5, for ten classes or more); and the balanced accuracy if the classes are of unequal size."""

    figures: ClassVar = ("top1", "top5", "balanced_accuracy", "loss")
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields top1, top5, balanced_accuracy if the classes are of unequal size, the softmax loss,
        and `seen`, the number of images. The data's classes are matched with the model's by their names.

        The loss is the softmax's for a sigmoid (multi-label) model too: it measures how well the logits
        choose one class. Of classes with equal logits, the first ranks first. If any logit is not
        finite, top1 and top5 are NaN.

        Raises VitkitError for a model without a head, for one whose outputs are not classes, for
        classes that it does not know, and if there is no image.
        """
        given = answers(subject.classifier, part)
        yield from accuracy(given)
        if unbalanced(np.bincount(given.truth)[given.present]):
            yield balanced(given)
        yield Metric("loss", float(given.loss.mean()), NATS)
        yield Metric("seen", len(given), COUNT)


def balanced(given: Answers) -> Metric:
    """The balanced accuracy of the classes that are present, with its interval; NaN if a logit is not
    finite."""
    value = math.nan
    interval = None
    if given.finite.all():
        truth, predicted = among_present(given)
        value = balanced_accuracy(counts_of(truth, predicted, len(given.present)))
        weights = balanced_weights(np.bincount(truth))[truth]
        _, interval = share_of_answers(truth == predicted, truth, weights, given.groups)
    return Metric("balanced_accuracy", value, SHARE, interval)


def accuracy(given: Answers) -> Iterator[Metric]:
    """top1, and top5 if there are ten classes or more; NaN if any logit is not finite."""
    tops = [1]
    if len(given.labels) >= TOP5_FROM:
        tops.append(5)
    for top in tops:
        yield share_right(f"top{top}", _or_nan(given, given.rank < top), given.groups)


def _or_nan(given: Answers, right: np.ndarray) -> np.ndarray:
    """Which answers are right, (N,); NaN for all if any logit is not finite."""
    if given.finite.all():
        return right
    return np.full(len(given), math.nan)


@dataclass(frozen=True)
class Classification:
    """`Accuracy`'s metrics, balanced accuracy, macro F1 and calibration error, with intervals."""

    figures: ClassVar = ("top1", "top5", "top1_of_data", *RESAMPLED)
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `classification`. Raises VitkitError as Accuracy does."""
        yield from classification(answers(subject.classifier, part))


def classification(given: Answers) -> list[Metric]:
    """top1; top5 if there are ten classes or more; top1_of_data, the accuracy among the classes that
    occur in the data, if the model has others; balanced_accuracy; macro_f1; calibration_error; the loss;
    and `seen`.

    If any logit is not finite, all except `seen` are NaN.
    """
    metrics = list(accuracy(given))
    finite = bool(given.finite.all())
    if len(given.present) < len(given.labels):
        right = _or_nan(given, given.rank_in_data == 0)
        metrics.append(share_right("top1_of_data", right, given.groups))

    values = [math.nan] * len(RESAMPLED)
    intervals: list = [None] * len(RESAMPLED)
    if finite:
        figures = figures_of(given)
        values = figures(np.arange(len(given))).tolist()
        independent = group_count(len(given), given.groups)
        others = resampled(figures, len(given), groups=given.groups)
        intervals = [
            interval_of(column, independent, unit)
            for column, unit in zip(others.T, RESAMPLED.values(), strict=True)
        ]
        intervals[0] = balanced(given).interval
        if intervals[2] is not None:
            intervals[2] = calibration_interval(
                given.confidence, given.right, others[:, 2], given.groups
            )
    for (name, unit), value, interval in zip(RESAMPLED.items(), values, intervals, strict=True):
        metrics.append(Metric(name, value, unit, interval))
    metrics.append(Metric("seen", len(given), COUNT))
    return metrics


def figures_of(given: Answers) -> Callable[[np.ndarray], np.ndarray]:
    """A function that computes the RESAMPLED figures of some of the images, by their rows."""
    truth, predicted = among_present(given)
    classes = len(given.present)
    right = given.right

    def figures(rows: np.ndarray) -> np.ndarray:
        counts = counts_of(truth[rows], predicted[rows], classes)
        return np.array(
            [
                balanced_accuracy(counts),
                macro_f1(counts),
                calibration_error(given.confidence[rows], right[rows]),
                given.loss[rows].mean(),
            ]
        )

    return figures


# Which classes are confused with which


class ClassScore(NamedTuple):
    """The scores of one class."""

    name: str
    images: int
    """Number of images of the class."""
    recall: float
    """Share of the class's images that were classified right, from 0 to 1."""
    interval: tuple[float, float]
    """The recall's interval of 95 % confidence."""
    precision: float | None
    """Share of the images predicted as this class that are of it; None if no image was."""
    f1: float
    """The harmonic mean of recall and precision."""
    taken_for: str
    """The class that most of the class's misclassified images were predicted as; empty if there are none."""


def weakest(scores: Sequence[ClassScore]) -> str | None:
    """A sentence about the class with the lowest upper end of its recall's interval, so that a class is not
    the weakest because of a single image. None if every answer is right."""
    missed = [score for score in scores if score.recall < 1]
    if not missed:
        return None
    worst = min(missed, key=lambda score: score.interval[1])
    share = min(round(100 * worst.recall), 99)  # 999 of 1,000 is not 100 %
    return (
        f"weakest class: {worst.name}, {share} % of {worst.images:,} right; most often taken for "
        f"{worst.taken_for}"
    )


@dataclass(frozen=True)
class Confused:
    """A confused pair of classes: images of one class that were classified as another."""

    true: str
    predicted: str
    count: int
    """Number of images of the class `true` that were classified as `predicted`."""
    images: int
    """Number of all images of the class `true`."""


def class_scores(given: Answers) -> list[ClassScore]:
    """The scores of each class that occurs among the images, in the model's order."""
    mistakes: dict[str, str] = {}
    for pair in most_confused(given):
        mistakes.setdefault(pair.true, pair.predicted)
    counts = counts_of(*among_present(given), len(given.present))
    scores = []
    groups = given.groups
    for k, images, answered, right in zip(given.present, *counts.T, strict=True):
        precision = None
        if answered:
            precision = float(right / answered)
        name = given.labels[k]
        interval = wilson(right, images)
        if groups is not None:
            own = given.truth == k
            interval = share_interval(given.right[own], groups[own])
        score = ClassScore(
            name=name,
            images=int(images),
            recall=float(right / images),
            interval=interval,
            precision=precision,
            f1=float(2 * right / (images + answered)),
            taken_for=mistakes.get(name, ""),
        )
        scores.append(score)
    return scores


def most_confused(given: Answers) -> list[Confused]:
    """All pairs of classes that were confused, the most frequent first."""
    wrong = ~given.right
    pairs = zip(given.truth[wrong].tolist(), given.predicted[wrong].tolist(), strict=True)
    images = np.bincount(given.truth)
    confused = []
    for (true, predicted), count in Counter(sorted(pairs)).most_common():
        names = (given.labels[true], given.labels[predicted])
        confused.append(Confused(*names, count, int(images[true])))
    return confused


def confusion_matrix(given: Answers) -> np.ndarray:
    """The number of images for each true class and answer: int64 (C, C + 1).

    Rows are the true classes, columns the answers; the last column is for answers outside of the
    classes that occur among the images.
    """
    truth, predicted = among_present(given)
    count = len(given.present)
    cells = truth * (count + 1) + predicted
    return np.bincount(cells, minlength=count * (count + 1)).reshape(count, count + 1)


def among_present(given: Answers) -> tuple[np.ndarray, np.ndarray]:
    """The true class and the answer, (N,) each, as indices of the C classes that occur among the
    images; C is any other answer."""
    present = given.present
    number = np.full(len(given.labels), len(present))
    number[present] = np.arange(len(present))
    return number[given.truth], number[given.predicted]


def counts_of(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(N,), (N,) from `among_present` -> for each class the numbers of its images, of images predicted
    as it, and of those that are right: int64 (C, 3)."""
    images = np.bincount(truth, minlength=classes)
    answered = np.bincount(predicted, minlength=classes + 1)[:classes]
    right = np.bincount(truth[truth == predicted], minlength=classes)
    return np.stack([images, answered, right], axis=1)


def unbalanced(counts: np.ndarray) -> bool:
    """Whether one class has at least UNBALANCED times as many images as another; (K,) images of each."""
    return bool(counts.max() >= UNBALANCED * counts.min())


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    """The number of images of each class, (K,) -> the weight of an image of the class, float64
    (K,): all classes with images have equal weight, and the mean weight of an image is 1."""
    present = np.count_nonzero(counts)
    return counts.sum() / (np.maximum(counts, 1) * max(present, 1))


def balanced_accuracy(counts: np.ndarray) -> float:
    """The mean recall of the classes that have images, from `counts_of`."""
    images, _, right = counts[counts[:, 0] > 0].T
    return float((right / images).mean())


def macro_f1(counts: np.ndarray) -> float:
    """The mean F1 of the classes that have images, from `counts_of`."""
    images, answered, right = counts[counts[:, 0] > 0].T
    return float((2 * right / (images + answered)).mean())
