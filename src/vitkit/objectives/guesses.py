"""How well a learner guesses the hidden parts of held-out images, beside the best answer that does
not look.

Legend: B batch, C channels, M hidden patches of an image, V values of each: one or more classes, or
numbers; K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Target
from vitkit.evaluate.collect import collect, summed
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.metric import COUNT, NATS, SHARE, SQUARED_ERROR, Metric


def cross_entropies(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·K) and int64 (B, M) or (B, M, V) -> the cross-entropy of each, in the targets'
    shape."""
    logits = by_class(predicted, targets).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def guesses(predicted: Tensor, targets: Tensor) -> Tensor:
    """The likeliest classes, in the targets' shape."""
    return by_class(predicted, targets).argmax(-1)


def by_class(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·K) -> (*targets.shape, K)."""
    return predicted.unflatten(-1, (*targets.shape[2:], -1))


@dataclass(frozen=True)
class Reconstruction:
    """How well the hidden parts of images are guessed, the same parts every time. It measures
    learners while they train."""

    def judges(self, target: Target) -> bool:
        """Whatever is known of the images: it looks at them alone."""
        return True

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the loss, its `baseline`, the accuracy (of classes), and `seen`, the number of
        images.

        The learner has `predictions_and_targets` and `losses`. The baseline is the loss of the best
        answer that is always the same: the entropy of the classes that were to be guessed, or the
        variance of the numbers; where V are guessed at once, their mean. Raises ValueError for a
        finished model, whose predictions are gone, and when there is no image.
        """
        learner = subject.learner
        if learner is None:
            raise ValueError("what a model makes of hidden patches can be measured while it trains")
        normalise = subject.classifier.preprocessing.normalise
        of_classes = False

        def read(batch: Batch) -> tuple[Tensor, ...]:
            nonlocal of_classes
            predicted, targets = learner.predictions_and_targets(
                normalise(batch.images), batch.indices
            )
            losses = learner.losses(predicted, targets)
            of_classes = not targets.is_floating_point()
            if of_classes:
                right = guesses(predicted, targets) == targets
                marginal = class_counts(targets, predicted)
            else:
                right = torch.zeros_like(losses)
                marginal = moments(targets)
            return mean_of(losses), mean_of(right), marginal

        passed = collect(learner, part.batches, read, subject.classifier.device)
        (loss, right, marginal), seen = summed(passed)
        if of_classes:
            yield Metric("loss", loss.item() / seen, NATS)
            yield Metric("baseline", entropy(marginal), NATS)
            yield Metric("accuracy", right.item() / seen, SHARE)
        else:
            yield Metric("loss", loss.item() / seen, SQUARED_ERROR)
            yield Metric("baseline", variance(marginal), SQUARED_ERROR)
        yield Metric("seen", seen, COUNT)


def mean_of(values: Tensor) -> Tensor:
    """(B, ...) -> float32 (B,), over all of an image's values."""
    return values.float().flatten(1).mean(1)


def moments(targets: Tensor) -> Tensor:
    """(B, M, V) -> (B, 3, V): count, sum and sum of squares over an image's patches."""
    return torch.stack([torch.ones_like(targets), targets, targets * targets], 1).sum(2)


def variance(marginal: Tensor) -> float:
    """Sums of `moments`, (3, V) -> the variance of the targets, mean over V."""
    first, second = marginal[1:] / marginal[0]
    return (second - first**2).mean().item()


def class_counts(targets: Tensor, predicted: Tensor) -> Tensor:
    """(B, M) or (B, M, V) -> float32 (B, V, K): how often an image has each class at each place."""
    if targets.ndim == 2:
        targets = targets[..., None]
    places = targets.shape[2]
    classes = predicted.shape[-1] // places
    counts = torch.zeros(len(targets), places, classes, device=targets.device)
    ones = torch.ones(targets.mT.shape, device=targets.device)
    return counts.scatter_add_(2, targets.mT, ones)


def entropy(marginal: Tensor) -> float:
    """Sums of `class_counts`, (V, K) -> the entropy of the classes in nats, mean over V."""
    shares = marginal / marginal.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).mean().item()
