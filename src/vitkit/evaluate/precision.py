"""Mean average precision: how well the images of each class are ranked before the others, where an
image has several.

Legend: B batch, N images, K classes of the data.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Target
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import COUNT, NATS, SHARE, Metric


@dataclass(frozen=True)
class MeanAveragePrecision:
    """The average precision of each class, as scikit-learn defines it; its mean over the classes
    that any image has."""

    def judges(self, target: Target) -> bool:
        """Whether an image may have several classes."""
        return target == "classes"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields map, the sigmoid loss (a sum over the classes), and `seen`, the number of images.
        Classes meet by name.

        Raises ValueError for a model without a head, for classes that it does not know, and when
        there is no image.
        """
        classifier = subject.classifier
        if not classifier.labels:
            raise ValueError(
                "the model has no classification head, so it names no classes; give it one with "
                "vitkit finetune"
            )
        numbers = align(part.source.labels, classifier.labels).to(classifier.device)

        def read(batch: Batch) -> tuple[Tensor, ...]:
            logits = classifier.logits(batch.images)[:, numbers]  # (B, K)
            losses = F.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none")
            return logits, batch.targets, losses.sum(-1)

        passed = collect(classifier.model, part.batches, read, classifier.device)
        logits, targets, losses = concatenated(passed)
        yield Metric("map", mean_average_precision(logits, targets), SHARE)
        yield Metric("loss", losses.double().mean().item(), NATS)
        yield Metric("seen", len(losses), COUNT)


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Scores and ones or zeros, (N, K) each -> the mean over the classes with a one; NaN without
    any, and for NaN scores."""
    from sklearn.metrics import average_precision_score

    there = targets.any(0)
    if not there.any() or scores.isnan().any():
        return math.nan
    return float(average_precision_score(targets[:, there], scores[:, there], average="macro"))
