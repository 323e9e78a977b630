"""Accuracy: how often the likeliest class is the right one.

Legend: B batch, K classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluate.collect import collect, summed
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import COUNT, NATS, Metric, share_right


@dataclass(frozen=True)
class Accuracy:
    """How often the likeliest class is the right one (top1), and how often one of the five
    likeliest is (top5, if there are more than five classes)."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields top1, top5, the softmax loss, and `seen`, the number of images. The data's classes
        are found among the model's by their names.

        The loss is the softmax's for a model of yes-or-no questions (sigmoid) too: it says how well
        the logits choose one class. Raises ValueError for a model without a head, for one whose
        outputs are not classes, for classes that it does not know, and if there is no image.

        If any logit is not finite, top1 and top5 are NaN. Which of several classes with the same
        logit is the likeliest is not defined.
        """
        classifier = subject.classifier
        if not classifier.labels:
            raise ValueError(
                "the model has no classification head, so it names no classes; give it one with "
                "vitkit finetune, or measure what its features are worth with --evals neighbours"
            )
        if classifier.activation == "none":
            raise ValueError(
                "the model's outputs are numbers, not classes (its activation is none), so it "
                "has no accuracy on images with classes; measure it on images with numbers, or "
                "what its features are worth with --evals neighbours"
            )
        model_class = align(part.source.labels, classifier.labels).to(classifier.device)

        def read(batch: Batch) -> tuple[Tensor, ...]:
            targets = model_class[batch.targets]  # (B,)
            logits = classifier.logits(batch.images)  # (B, K)
            likeliest = logits.topk(min(5, logits.shape[-1])).indices
            right = likeliest == targets[:, None]  # (B, 5)
            loss = F.cross_entropy(logits, targets, reduction="none")
            finite = logits.isfinite().all(-1)
            return right[:, 0], right.any(1), loss, finite

        rows = collect(classifier.model, part.batches, read, classifier.device)
        sums, seen = summed(rows)
        top1, top5, loss, finite = (value.item() for value in sums)
        if finite < seen:  # the order of such logits means nothing
            top1 = top5 = math.nan
        yield share_right("top1", top1, seen)
        if len(classifier.labels) > 5:
            yield share_right("top5", top5, seen)
        yield Metric("loss", loss / seen, NATS)
        yield Metric("seen", seen, COUNT)
