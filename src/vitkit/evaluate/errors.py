"""Errors of predicted numbers: how far they are from the targets.

Legend: B batch, N images.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.metric import CORRELATION, COUNT, ERROR, Metric


@dataclass(frozen=True)
class Errors:
    """How far a model's numbers are from the targets, and how much of the targets' variance they
    explain."""

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
                f"the model has {len(classifier.labels)} outputs, and a number is one; train one "
                "on numbers, with --objective.loss squared"
            )

        def read(batch: Batch) -> tuple[Tensor, Tensor]:
            return classifier.logits(batch.images)[:, 0], batch.targets

        rows = collect(classifier.model, part.batches, read, classifier.device)
        predicted, targets = (values.double() for values in concatenated(rows))  # (N,) each
        yield Metric("mae", (predicted - targets).abs().mean().item(), ERROR)
        yield Metric("r2", explained(predicted, targets), CORRELATION)
        yield Metric("pearson", correlation(predicted, targets), CORRELATION)
        yield Metric("seen", len(targets), COUNT)


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
