"""Images of one class each: how often the most likely class is the right one, all other numbers that answers
are judged by, and which classes are taken for which.

Only classes that any of the images has are judged. An answer outside of them is wrong.

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

# Smallest number of classes for which top5 is measured: of fewer, five answers are most of them
TOP5_FROM = 10
UNBALANCED = 3  # times as many images in the largest class as in the smallest
# The figures whose intervals are made by resampling, in the order of `figures_of`
RESAMPLED = {
    "balanced_accuracy": SHARE,
    "macro_f1": SHARE,
    "calibration_error": MISFIT,
    "loss": NATS,
}


@dataclass(frozen=True)
class Accuracy:
    """How often the most likely class is the right one (top1), and how often one of the five
    most likely is (top5, if there are ten classes or more); and if the classes are of unequal size,
    the mean of their own accuracies."""

    figures: ClassVar = ("top1", "top5", "balanced_accuracy", "loss")
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields top1, top5, balanced_accuracy if a class has many times the images of another, the
        softmax loss, and `seen`, the number of images. The data's classes are found among the model's
        by their names.

        The loss is the softmax's for a model of yes-or-no questions (sigmoid) too: it says how well
        the logits choose one class. If several classes have the same logit, the first comes first.
        If any logit is not finite, top1 and top5 are NaN.

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
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `classification`. Raises VitkitError as Accuracy does."""
        yield from classification(answers(subject.classifier, part))


def classification(given: Answers) -> list[Metric]:
    """top1; top5 if there are ten classes or more; top1_of_data, the accuracy if only classes
    that the images have could be answered, if there are others; balanced_accuracy; macro_f1;
    calibration_error; the loss; and `seen`.

    If any logit is not finite, all but the last are NaN.
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
        intervals = [interval_of(column, independent) for column in others.T]
        intervals[0] = balanced(given).interval
        if intervals[2] is not None:
            sure = (given.confidence, given.right)
            intervals[2] = calibration_interval(*sure, others[:, 2], given.groups)
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


# Which classes are taken for which


class ClassScore(NamedTuple):
    """The scores of one class."""

    name: str
    images: int
    """How many images have it."""
    recall: float
    """The share of its images that were recognised, from 0 to 1."""
    interval: tuple[float, float]
    """The recall's interval of 95 % confidence."""
    precision: float | None
    """The share of the answers with its name that were right; None if no image got that answer."""
    f1: float
    """The harmonic mean of recall and precision."""
    taken_for: str
    """The class that its other images were taken for most often; empty if there are none."""


def weakest(scores: Sequence[ClassScore]) -> str | None:
    """A sentence about the class that fared worst, by the upper end of its recall's interval: a class of
    one image is not the worst because of it. None if every answer is right."""
    missed = [score for score in scores if score.recall < 1]
    if not missed:
        return None
    worst = min(missed, key=lambda score: score.interval[1])
    share = min(round(100 * worst.recall), 99)  # of 1,000 images with one mistake not 100 %
    return (
        f"weakest class: {worst.name}, {share} % of {worst.images:,} right; most often taken for "
        f"{worst.taken_for}"
    )


@dataclass(frozen=True)
class Confused:
    """Images of one class that were classified as another."""

    true: str
    predicted: str
    count: int
    images: int
    """How many images have the true class."""


def class_scores(given: Answers) -> list[ClassScore]:
    """A row for each class that any of the images has, in the model's order."""
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
    """All pairs that were ever confused, the most frequent first."""
    wrong = ~given.right
    pairs = zip(given.truth[wrong].tolist(), given.predicted[wrong].tolist(), strict=True)
    images = np.bincount(given.truth)
    confused = []
    for (true, predicted), count in Counter(sorted(pairs)).most_common():
        names = (given.labels[true], given.labels[predicted])
        confused.append(Confused(*names, count, int(images[true])))
    return confused


def confusion_matrix(given: Answers) -> np.ndarray:
    """How many images of each class got which answer: int64 (C, C + 1).

    Rows are the true classes, columns the answers; the last column is for answers outside of the
    classes that any of the images has.
    """
    truth, predicted = among_present(given)
    count = len(given.present)
    cells = truth * (count + 1) + predicted
    return np.bincount(cells, minlength=count * (count + 1)).reshape(count, count + 1)


def among_present(given: Answers) -> tuple[np.ndarray, np.ndarray]:
    """The true class and the answer, (N,) each, as numbers among the C classes that any of the
    images has; C is any other answer."""
    present = given.present
    number = np.full(len(given.labels), len(present))
    number[present] = np.arange(len(present))
    return number[given.truth], number[given.predicted]


def counts_of(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(N,), (N,) from `among_present` -> for each class its images, the answers with its name, and
    how many of those are right: int64 (C, 3)."""
    images = np.bincount(truth, minlength=classes)
    answered = np.bincount(predicted, minlength=classes + 1)[:classes]
    right = np.bincount(truth[truth == predicted], minlength=classes)
    return np.stack([images, answered, right], axis=1)


def unbalanced(counts: np.ndarray) -> bool:
    """Whether a class has many times the images of another, by how many each has, (K,)."""
    return bool(counts.max() >= UNBALANCED * counts.min())


def balanced_weights(counts: np.ndarray) -> np.ndarray:
    """The number of images of each class, (K,) -> the weight of an image of the class, float64
    (K,): all classes with images have equal weight, and the mean weight of an image is 1."""
    present = np.count_nonzero(counts)
    return counts.sum() / (np.maximum(counts, 1) * max(present, 1))


def balanced_accuracy(counts: np.ndarray) -> float:
    """The mean recall of the classes that have images. From `counts_of`."""
    images, _, right = counts[counts[:, 0] > 0].T
    return float((right / images).mean())


def macro_f1(counts: np.ndarray) -> float:
    """The mean of the classes' F1. From `counts_of`; classes without an image are left out."""
    images, answered, right = counts[counts[:, 0] > 0].T
    return float((2 * right / (images + answered)).mean())
