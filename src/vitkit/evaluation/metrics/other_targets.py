"""Metrics for images of several classes each: how well a model ranks the images of a class before the others
(mean average precision), and how well it decides about each class (F1). Metrics for images with a number: the
distance of predicted numbers from the targets.

Legend: B batch, N images, K classes of the data.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Source, TargetKind
from vitkit.evaluation.benchmarks.labels import align
from vitkit.evaluation.evaluator import Part, Subject, collect, concatenated
from vitkit.evaluation.metrics.answers import check_classes
from vitkit.evaluation.metrics.metric import (
    CORRELATION,
    COUNT,
    ERROR,
    NATS,
    SHARE,
    Metric,
    with_intervals,
)
from vitkit.system.errors import BadData

YES = 0.5  # a class with a probability above this is predicted as present
FIGURES = {"map": SHARE, "macro_f1": SHARE, "micro_f1": SHARE}


@dataclass(frozen=True)
class MeanAveragePrecision:
    """The mean, over the classes that any image has, of the average precision as scikit-learn defines
    it; and F1 of the classes with a probability above one half."""

    figures: ClassVar = (*FIGURES, "loss")
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether an image may have several classes."""
        return target_kind == "classes"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the metrics of `several`, the sigmoid loss (summed over the classes), and `seen`,
        the number of images. The data's classes are matched with the model's by their names.

        Raises VitkitError for a model without a head, for one whose outputs are not classes, for
        classes that it does not know, and if there is no image.
        """
        classifier = subject.classifier
        check_classes(classifier)
        classes = align(part.source.labels, classifier.labels).classes.to(classifier.device)

        def read(batch: Batch) -> tuple[Tensor, ...]:
            logits = classifier.logits(batch.images)  # (B, classes of the model)
            probabilities = classifier.probabilities(logits)[:, classes]  # (B, K)
            logits = logits[:, classes]
            losses = losses_of_known(logits, batch.targets)
            return logits, probabilities, batch.targets, losses, batch.indices

        rows = collect(classifier.model, part.batches, read, classifier.device)
        logits, probabilities, targets, losses, indices = concatenated(rows)
        groups = _groups_of(part.source, indices)
        yield from several(logits, probabilities > YES, targets, groups)
        yield Metric("loss", losses.double().mean().item(), NATS)
        yield Metric("seen", len(losses), COUNT)


def losses_of_known(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits, and targets that are ones, zeros, or NaN where unknown, (N, K) each -> the sigmoid's
    cross-entropy of each image, summed over its known targets: (N,)."""
    losses = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(0), reduction="none")
    return (losses * ~targets.isnan()).sum(1)


def _groups_of(source: Source, indices: Tensor) -> np.ndarray | None:
    """The number of the group of each of a source's images, (N,); None if all are alone."""
    if source.groups is None:
        return None
    return source.groups[indices.numpy()]


def several(
    scores: Tensor,
    yes: Tensor,
    targets: Tensor,
    groups: np.ndarray | None = None,
    fewer: float = 1.0,
) -> list[Metric]:
    """map, the mean over classes of the average precision; macro_f1, the mean over classes of F1; micro_f1,
    F1 over all pairs of an image and a class; with intervals. NaN if no image has a class, or a score
    is not finite. Means are over the classes that any image has; the pairs are those of all classes.

    scores: score of each class for each image, (N, K).
    yes: whether each class is predicted as present, (N, K).
    targets: ones, zeros, or NaN where unknown, (N, K). An image takes no part in the figures of a class
        whose target is unknown.
    groups, fewer: as for `with_intervals`.
    """
    if not (targets > 0).any() or not scores.isfinite().all():
        return [Metric(name, math.nan, unit) for name, unit in FIGURES.items()]
    figures = _figures(scores.double().numpy(), yes.double().numpy(), targets.double().numpy())
    return with_intervals(FIGURES, figures, len(targets), groups=groups, fewer=fewer)


def _figures(
    scores: np.ndarray, yes: np.ndarray, targets: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """A function that computes the FIGURES of some of the images, from their indices; (N, K) each."""
    count = len(targets)
    known = ~np.isnan(targets)
    targets = np.where(known, targets, 0)
    yes = yes * known
    ranking = Ranking(scores, targets, known)
    right = yes * targets

    def figures(rows: np.ndarray) -> np.ndarray:
        times = np.bincount(rows, minlength=count).astype(np.float64)  # (N,)
        precisions = ranking.average_precisions(times)
        # F1 = 2 right / (answered + true): of each class, and of all pairs
        hits = 2 * (times @ right)
        pairs = times @ (yes + targets)
        there = times @ targets > 0  # leave out classes without an image in these rows
        if not there.any():
            return np.full(len(FIGURES), np.nan)
        f1 = hits / np.maximum(pairs, 1)
        return np.array([precisions[there].mean(), f1[there].mean(), hits.sum() / pairs.sum()])

    return figures


class Ranking:
    """Images sorted once by their scores for each class, to compute the average precision of any multiset."""

    def __init__(self, scores: np.ndarray, targets: np.ndarray, known: np.ndarray):
        """Scores, targets that are ones or zeros, and whether these are known, (N, K) each."""
        self.order = np.argsort(-scores, axis=0, kind="stable")  # (N, K)
        self.targets = np.take_along_axis(targets, self.order, 0)
        self.known = np.take_along_axis(known, self.order, 0)
        ordered = np.take_along_axis(scores, self.order, 0)
        # Equal scores are one threshold, so find the end of each run of equal scores
        last = np.ones(scores.shape, dtype=bool)
        last[:-1] = ordered[:-1] != ordered[1:]
        rows = np.where(last, np.arange(len(scores))[:, None], len(scores))
        self.run_end = np.minimum.accumulate(rows[::-1], 0)[::-1]  # (N, K)

    def average_precisions(self, times: np.ndarray) -> np.ndarray:
        """The average precision of each class, (K,), if each image occurs `times` times, (N,); 0 for a
        class without images.

        As in scikit-learn, it is the sum over thresholds of the precision times the increase of recall:
        each image of the class adds the precision at the end of its run of equal scores.
        """
        weights = times[self.order] * self.known  # (N, K)
        of_class = weights * self.targets
        found = np.cumsum(of_class, 0)
        precision = found / np.maximum(np.cumsum(weights, 0), 1)
        at_threshold = np.take_along_axis(precision, self.run_end, 0)
        return (of_class * at_threshold).sum(0) / np.maximum(found[-1], 1)


# Numbers


@dataclass(frozen=True)
class Errors:
    """The distance of predicted numbers from the targets, and the variance that they explain."""

    figures: ClassVar = ("mae", "r2", "pearson")
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has a number."""
        return target_kind == "number"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields mae, the mean absolute error; r2, the share of the variance that is explained;
        pearson, the linear correlation; and `seen`, the number of images. Raises VitkitError for a
        model that does not give one number for each image, and if there is no image."""
        classifier = subject.classifier
        if len(classifier.labels) != 1:
            raise BadData(
                f"the model has {len(classifier.labels)} outputs, and a number is one; vitkit "
                "probe or finetune MODEL DATA makes one of numbers"
            )

        def read(batch: Batch) -> tuple[Tensor, ...]:
            return classifier.logits(batch.images)[:, 0], batch.targets, batch.indices

        rows = collect(classifier.model, part.batches, read, classifier.device)
        predicted, targets, indices = concatenated(rows)  # (N,) each
        yield from errors(predicted, targets, _groups_of(part.source, indices))
        yield Metric("seen", len(targets), COUNT)


def errors(
    predicted: Tensor,
    targets: Tensor,
    groups: np.ndarray | None = None,
    fewer: float = 1.0,
    means: Tensor | None = None,
) -> list[Metric]:
    """mae, r2 and pearson of predicted numbers and targets, (N,) each; with intervals. NaN if a
    prediction is not finite.

    groups, fewer: as for `with_intervals`.
    means: for cross-validated predictions, the mean of the targets that each one's model was fitted to,
        (N,). It is lower the larger the left-out target is. So r2 compares with this mean (the predictive
        R², or Q²), and pearson correlates the distance from it; otherwise both would be too low.
    """
    predicted = predicted.double()
    targets = targets.double()
    moved = predicted
    if means is not None:
        moved = predicted - means

    def figures(rows: np.ndarray) -> np.ndarray:
        some = torch.from_numpy(rows)
        x = predicted[some]
        y = targets[some]
        error = (x - y).abs().mean().item()
        if means is None:
            r2 = explained(x, y)
        else:
            r2 = 1 - ((x - y).square().sum() / (y - means[some]).square().sum()).item()
        return np.array([error, r2, correlation(moved[some], y)])

    units = {"mae": ERROR, "r2": CORRELATION, "pearson": CORRELATION}
    finite = bool(predicted.isfinite().all())
    mae, r2, pearson = with_intervals(units, figures, len(targets), finite, groups, fewer)
    if pearson.interval is not None:
        low, high = pearson.interval
        pearson = replace(pearson, interval=(max(low, -1.0), high))
    return [mae, r2, pearson]


def explained(predicted: Tensor, targets: Tensor) -> float:
    """R² of (N,) and (N,): 1 is perfect; NaN if all targets are equal."""
    spread = (targets - targets.mean()).square().sum().item()
    if spread == 0:
        return math.nan
    return 1 - (predicted - targets).square().sum().item() / spread


def correlation(predicted: Tensor, targets: Tensor) -> float:
    """Pearson's coefficient of (N,) and (N,); NaN if all values of one are equal."""
    x = predicted - predicted.mean()
    y = targets - targets.mean()
    norms = (torch.linalg.norm(x) * torch.linalg.norm(y)).item()
    if norms == 0:
        return math.nan
    return (x @ y).item() / norms
