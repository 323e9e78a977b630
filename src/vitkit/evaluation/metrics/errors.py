"""Errors of predicted numbers: how far they are from the targets.

Legend: B batch, N images.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluation.collecting import collect, concatenated
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.intervals import interval_of, resampled
from vitkit.evaluation.metrics.metric import CORRELATION, COUNT, ERROR, Metric


@dataclass(frozen=True)
class Errors:
    """How far a model's numbers are from the targets, and how much of the targets' variance they
    explain."""

    figures: ClassVar = ("mae", "r2", "pearson")
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has a number."""
        return target_kind == "number"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields mae, the mean absolute error; r2, the share of the variance that is explained;
        pearson, the linear correlation; and `seen`, the number of images.

        Raises ValueError for a model that does not give one number for each image, and if there is
        no image.
        """
        classifier = subject.classifier
        if len(classifier.labels) != 1:
            raise ValueError(
                f"the model has {len(classifier.labels)} outputs, and a number is one; vitkit "
                "probe or finetune MODEL DATA makes one of numbers"
            )

        def read(batch: Batch) -> tuple[Tensor, Tensor]:
            return classifier.logits(batch.images)[:, 0], batch.targets

        rows = collect(classifier.model, part.batches, read, classifier.device)
        predicted, targets = concatenated(rows)  # (N,) each
        yield from errors(predicted, targets)
        yield Metric("seen", len(targets), COUNT)


def errors(predicted: Tensor, targets: Tensor) -> list[Metric]:
    """mae, r2 and pearson of predicted numbers and targets, (N,) each; with intervals. NaN if a
    prediction is not finite."""
    predicted = predicted.double()
    targets = targets.double()

    def figures(rows: np.ndarray) -> np.ndarray:
        some = torch.from_numpy(rows)
        x, y = predicted[some], targets[some]
        error = (x - y).abs().mean().item()
        return np.array([error, explained(x, y), correlation(x, y)])

    values = figures(np.arange(len(targets))).tolist()
    intervals: list = [None] * len(values)
    if predicted.isfinite().all():
        others = resampled(figures, len(targets))
        intervals = [interval_of(column) for column in others.T]
    units = {"mae": ERROR, "r2": CORRELATION, "pearson": CORRELATION}
    metrics = []
    for (name, unit), value, interval in zip(units.items(), values, intervals, strict=True):
        metrics.append(Metric(name, value, unit, interval))
    return metrics


def explained(predicted: Tensor, targets: Tensor) -> float:
    """R² of (N,) and (N,): 1 is perfect, 0 as good as always predicting the mean; NaN if all
    targets are equal."""
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
