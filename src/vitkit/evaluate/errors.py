"""Errors of predicted numbers.

Legend: B batch, N images.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data import Batch, Target
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.metric import CORRELATION, COUNT, ERROR, Metric


@dataclass(frozen=True)
class Errors:
    """How far a model's numbers are from the targets, and how much of the targets' variation they
    explain."""

    def judges(self, target: Target) -> bool:
        """Whether an image's target is a number."""
        return target == "number"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields mae, the mean absolute error; r2, the share of the variance that is explained;
        pearson, the linear correlation; and `seen`, the number of images.

        Raises ValueError for a model that does not give one number an image, and when there is no
        image.
        """
        classifier = subject.classifier
        if len(classifier.labels) != 1:
            raise ValueError(
                f"the model has {len(classifier.labels)} outputs, and a number is one; train one "
                "on numbers, "
                f"with --objective.loss squared"
            )

        def read(batch: Batch) -> tuple[Tensor, Tensor]:
            return classifier.logits(batch.images)[:, 0], batch.targets

        passed = collect(classifier.model, part.batches, read, classifier.device)
        predicted, targets = (values.double() for values in concatenated(passed))  # (N,) each
        yield Metric("mae", (predicted - targets).abs().mean().item(), ERROR)
        yield Metric("r2", explained(predicted, targets), CORRELATION)
        yield Metric("pearson", correlation(predicted, targets), CORRELATION)
        yield Metric("seen", len(targets), COUNT)


def explained(predicted: Tensor, targets: Tensor) -> float:
    """R², (N,) each: 1 is perfect, 0 as good as always their mean; NaN where all targets are
    equal."""
    spread = (targets - targets.mean()).square().sum().item()
    if spread == 0:
        return math.nan
    return 1 - (predicted - targets).square().sum().item() / spread


def correlation(predicted: Tensor, targets: Tensor) -> float:
    """Pearson's coefficient, (N,) each; NaN where all of either are equal."""
    x = predicted - predicted.mean()
    y = targets - targets.mean()
    norms = (torch.linalg.norm(x) * torch.linalg.norm(y)).item()
    if norms == 0:
        return math.nan
    return (x @ y).item() / norms
