"""How well a learner predicts the hidden parts of held-out images, beside the best answer that does
not look at the image.

Legend: B batch, M hidden patches of an image, V values of each patch (classes or numbers), K
classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluation import (
    COUNT,
    NATS,
    SHARE,
    SQUARED_ERROR,
    Metric,
    Part,
    Subject,
    collect,
    summed,
)


def cross_entropies(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·K) logits, int64 (B, M) or (B, M, V) classes -> the cross-entropy of each value, in
    the targets' shape."""
    logits = by_class(predicted, targets).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def guesses(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·K) logits -> the likeliest classes, in the targets' shape."""
    return by_class(predicted, targets).argmax(-1)


def by_class(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·K) -> the shape of the targets, and K."""
    return predicted.unflatten(-1, (*targets.shape[2:], -1))


@dataclass(frozen=True)
class Reconstruction:
    """How well the hidden parts of images are predicted. An image's index is its key, so the same
    parts are hidden every time. It measures learners while they train."""

    figures: ClassVar = ("loss", "baseline", "accuracy")
    """What it may measure, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Always: labels are not used."""
        return True

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the loss, its `baseline`, the accuracy (if classes are predicted), and `seen`, the
        number of images.

        The baseline is the loss of the best answer that is the same for every image: the entropy of
        the classes, or the variance of the numbers; the mean of those if V are predicted. The
        learner must have the methods `predictions_and_targets` and `losses`. Raises ValueError for
        a finished model, which has them no more, and when there is no image.
        """
        learner = subject.learner
        if learner is None:
            raise ValueError("what a model makes of hidden patches can be measured while it trains")
        normalise = subject.classifier.preprocessing.normalise
        of_classes = False

        def read(batch: Batch) -> tuple[Tensor, ...]:
            nonlocal of_classes
            images = normalise(batch.images)
            predicted, targets = learner.predictions_and_targets(images, batch.indices)
            losses = learner.losses(predicted, targets)
            of_classes = not targets.is_floating_point()
            if of_classes:
                right = guesses(predicted, targets) == targets
                statistics = class_counts(targets, predicted)
            else:
                right = torch.zeros_like(losses)
                statistics = moments(targets)
            return mean_of(losses), mean_of(right), statistics

        rows = collect(learner, part.batches, read, subject.classifier.device)
        (loss, right, statistics), seen = summed(rows)
        if of_classes:
            yield Metric("loss", loss.item() / seen, NATS)
            yield Metric("baseline", entropy(statistics), NATS)
            yield Metric("accuracy", right.item() / seen, SHARE)
        else:
            yield Metric("loss", loss.item() / seen, SQUARED_ERROR)
            yield Metric("baseline", variance(statistics), SQUARED_ERROR)
        yield Metric("seen", seen, COUNT)


def mean_of(values: Tensor) -> Tensor:
    """(B, ...) -> float32 (B,), the mean over all of an image's values."""
    return values.float().flatten(1).mean(1)


def moments(targets: Tensor) -> Tensor:
    """(B, M, V) numbers -> (B, 3, V): count, sum and sum of squares over an image's patches."""
    return torch.stack([torch.ones_like(targets), targets, targets * targets], 1).sum(2)


def variance(moment_sums: Tensor) -> float:
    """Sums of `moments` over images, (3, V) -> the variance of the targets, mean over V."""
    count, first, second = moment_sums
    return (second / count - (first / count) ** 2).mean().item()


def class_counts(targets: Tensor, predicted: Tensor) -> Tensor:
    """(B, M) or (B, M, V) classes -> float32 (B, V, K): how often each class is there in an image,
    for each of the V values."""
    if targets.ndim == 2:
        targets = targets[..., None]
    values = targets.shape[2]
    classes = predicted.shape[-1] // values
    counts = torch.zeros(len(targets), values, classes, device=targets.device)
    by_value = targets.mT  # (B, V, M)
    ones = torch.ones(by_value.shape, device=targets.device)
    return counts.scatter_add_(2, by_value, ones)


def entropy(counts: Tensor) -> float:
    """Sums of `class_counts` over images, (V, K) -> the entropy of the classes in nats, mean over
    V."""
    shares = counts / counts.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).mean().item()
