"""Which classes are taken for which: recall, precision and F1 of each class, and the pairs that are
confused most often.

Only classes that any of the images has are judged. An answer outside of them is wrong.

Legend: N images, C classes that any of them has.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import wilson

UNBALANCED = 5  # times as many images in the largest class as in the smallest


class ClassScore(NamedTuple):
    """How one class fared."""

    name: str
    images: int
    """How many images have it."""
    recall: float
    """The share of its images that were recognised, from 0 to 1."""
    interval: tuple[float, float]
    """The recall's interval of 95 % confidence."""
    precision: float | None
    """The share of the answers with its name that were right; None if nobody got that answer."""
    f1: float
    """The harmonic mean of recall and precision."""
    taken_for: str
    """The class that its other images were taken for most often; empty if there are none."""


class Confused(NamedTuple):
    """Images of one class that were taken for another."""

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
    for k, images, answered, right in zip(given.present, *counts.T, strict=True):
        precision = None
        if answered:
            precision = float(right / answered)
        name = given.labels[k]
        score = ClassScore(
            name=name,
            images=int(images),
            recall=float(right / images),
            interval=wilson(right, images),
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


def balanced_accuracy(counts: np.ndarray) -> float:
    """The mean of the classes' recalls, so that each class counts as much as any other. From
    `counts_of`; classes without an image are left out."""
    images, _, right = counts[counts[:, 0] > 0].T
    return float((right / images).mean())


def macro_f1(counts: np.ndarray) -> float:
    """The mean of the classes' F1. From `counts_of`; classes without an image are left out."""
    images, answered, right = counts[counts[:, 0] > 0].T
    return float((2 * right / (images + answered)).mean())
