"""Classification: all numbers that a model's answers to images with one class each are judged by.

Legend: N images.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vitkit.data import TargetKind
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.accuracy import accuracy
from vitkit.evaluation.metrics.answers import Answers, answers
from vitkit.evaluation.metrics.calibration import calibration_error, calibration_interval
from vitkit.evaluation.metrics.confusion import (
    among_present,
    balanced_accuracy,
    counts_of,
    macro_f1,
)
from vitkit.evaluation.metrics.intervals import interval_of, resampled
from vitkit.evaluation.metrics.metric import COUNT, MISFIT, NATS, SHARE, Metric, share_right

# The figures whose intervals are made by resampling, in the order of `figures_of`
RESAMPLED = {
    "balanced_accuracy": SHARE,
    "macro_f1": SHARE,
    "calibration_error": MISFIT,
    "loss": NATS,
}


@dataclass(frozen=True)
class Classification:
    """What `Accuracy` measures, and balanced accuracy, macro F1 and the calibration error; all with
    intervals."""

    figures: ClassVar = ("top1", "top5", "top1_of_data", *RESAMPLED)
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `classification`. Raises ValueError as Accuracy does."""
        yield from classification(answers(subject.classifier, part))


def classification(given: Answers) -> list[Metric]:
    """top1; top5 if there are more than five classes; top1_of_data, the accuracy if only classes
    that the images have could be answered, if there are others; balanced_accuracy; macro_f1;
    calibration_error; the loss; and `seen`.

    If any logit is not finite, all but the last are NaN.
    """
    metrics = list(accuracy(given))
    finite = bool(given.finite.all())
    if len(given.present) < len(given.labels):
        right = float((given.rank_in_data == 0).sum())
        if not finite:
            right = math.nan
        metrics.append(share_right("top1_of_data", right, len(given)))

    values = [math.nan] * len(RESAMPLED)
    intervals: list = [None] * len(RESAMPLED)
    if finite:
        figures = figures_of(given)
        values = figures(np.arange(len(given))).tolist()
        others = resampled(figures, len(given))
        intervals = [interval_of(column) for column in others.T]
        if intervals[2] is not None:
            intervals[2] = calibration_interval(given.confidence, given.right, others[:, 2])
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
