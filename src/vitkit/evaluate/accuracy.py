"""Accuracy: how often the likeliest class is the right one.

Legend: B batch, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Target
from vitkit.evaluate.collect import collect, summed
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.labels import align
from vitkit.evaluate.metric import COUNT, NATS, SHARE, Metric, wilson


@dataclass(frozen=True)
class Accuracy:
    """How often the likeliest class is the right one (top1), or one of the five likeliest (top5, of
    more than five)."""

    def judges(self, target: Target) -> bool:
        """Whether every image has one class."""
        return target == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields top1, top5, the softmax loss, and `seen`, the number of images. Classes meet by
        name.

        A model of independent yes-or-no questions (sigmoid) has the softmax loss too: how well its
        logits choose one class. Raises ValueError for a model without a head, for one whose outputs
        are no classes, for classes that it does not know, and when there is no image.
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
                "has no accuracy on images with classes; measure it on images with numbers, or what "
                "its features are worth with --evals neighbours"
            )
        numbers = align(part.source.labels, classifier.labels).to(classifier.device)

        def read(batch: Batch) -> tuple[Tensor, ...]:
            targets = numbers[batch.targets]
            logits = classifier.logits(batch.images)  # (B, K)
            likeliest = logits.topk(min(5, logits.shape[-1])).indices
            right = likeliest == targets[:, None]
            loss = F.cross_entropy(logits, targets, reduction="none")
            return right[:, 0], right.any(1), loss

        passed = collect(classifier.model, part.batches, read, classifier.device)
        sums, seen = summed(passed)
        top1, top5, loss = (value.item() for value in sums)
        yield Metric("top1", top1 / seen, SHARE, wilson(top1, seen))
        if len(classifier.labels) > 5:
            yield Metric("top5", top5 / seen, SHARE, wilson(top5, seen))
        yield Metric("loss", loss / seen, NATS)
        yield Metric("seen", seen, COUNT)
