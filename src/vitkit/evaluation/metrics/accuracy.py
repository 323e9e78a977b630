"""Accuracy: how often the likeliest class is the right one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vitkit.data import TargetKind
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.answers import Answers, answers
from vitkit.evaluation.metrics.confusion import (
    among_present,
    balanced_accuracy,
    counts_of,
    unbalanced,
)
from vitkit.evaluation.metrics.metric import COUNT, NATS, SHARE, Metric, share_right


@dataclass(frozen=True)
class Accuracy:
    """How often the likeliest class is the right one (top1), and how often one of the five
    likeliest is (top5, if there are more than five classes); and if the classes are of unequal size,
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
        the logits choose one class. Of several classes with the same logit the first comes first.
        If any logit is not finite, top1 and top5 are NaN.

        Raises ValueError for a model without a head, for one whose outputs are not classes, for
        classes that it does not know, and if there is no image.
        """
        given = answers(subject.classifier, part)
        yield from accuracy(given)
        if unbalanced(np.bincount(given.truth)[given.present]):
            yield balanced(given)
        yield Metric("loss", float(given.loss.mean()), NATS)
        yield Metric("seen", len(given), COUNT)


def balanced(given: Answers) -> Metric:
    """The balanced accuracy of the classes that any of the images has; NaN if any logit is not
    finite."""
    value = math.nan
    if given.finite.all():
        truth, predicted = among_present(given)
        value = balanced_accuracy(counts_of(truth, predicted, len(given.present)))
    return Metric("balanced_accuracy", value, SHARE)


def accuracy(given: Answers) -> Iterator[Metric]:
    """top1, and top5 if there are more than five classes; NaN if any logit is not finite, for the
    order of such logits means nothing."""
    tops = [1]
    if len(given.labels) > 5:
        tops.append(5)
    for top in tops:
        right = float((given.rank < top).sum())
        if not given.finite.all():
            right = math.nan
        yield share_right(f"top{top}", right, len(given))
