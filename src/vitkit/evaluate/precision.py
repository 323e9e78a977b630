"""Mean average precision, for images of several classes: how well the model ranks the images that
have a class before those that have not.

Legend: B batch, N images, K classes of the data.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import COUNT, NATS, SHARE, Metric


@dataclass(frozen=True)
class MeanAveragePrecision:
    """The mean, over the classes that any image has, of each class's average precision as
    scikit-learn defines it."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether an image may have several classes."""
        return target_kind == "classes"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields map, the sigmoid loss (summed over the classes), and `seen`, the number of images.
        The data's classes are found among the model's by their names.

        Raises ValueError for a model without a head, for classes that it does not know, and if
        there is no image.
        """
        classifier = subject.classifier
        if not classifier.labels:
            raise ValueError(
                "the model has no classification head, so it names no classes; give it one with "
                "vitkit finetune"
            )
        classes = align(part.source.labels, classifier.labels).classes.to(classifier.device)

        def read(batch: Batch) -> tuple[Tensor, ...]:
            logits = classifier.logits(batch.images)[:, classes]  # (B, K)
            losses = F.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none")
            return logits, batch.targets, losses.sum(-1)

        rows = collect(classifier.model, part.batches, read, classifier.device)
        logits, targets, losses = concatenated(rows)
        yield Metric("map", mean_average_precision(logits, targets), SHARE)
        yield Metric("loss", losses.double().mean().item(), NATS)
        yield Metric("seen", len(losses), COUNT)


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Scores, and targets that are ones or zeros, (N, K) each -> the mean over the classes that an
    image has; NaN if there are none, or a score is not finite."""
    from sklearn.metrics import average_precision_score

    present = targets.any(0)  # (K,)
    if not present.any() or not scores.isfinite().all():
        return math.nan
    precision = average_precision_score(targets[:, present], scores[:, present], average="macro")
    return float(precision)
