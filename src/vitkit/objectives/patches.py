"""The common part of objectives that hide some patches of an image: functions for patches, a learner that predicts
the hidden ones, and an evaluator that compares its loss with that of the best constant prediction.

Legend: B batch, C channels, (h, w) grid, N = h·w patches, M hidden patches, P pixels along a patch's side, which
may differ in height and width, V values of each patch (classes or numbers), K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Preprocessing, TargetKind
from vitkit.evaluation import COUNT, NATS, SHARE, Metric, Part, Subject, collect, summed
from vitkit.evaluation.metrics.metric import SQUARED_ERROR
from vitkit.models import Grid, Model, VisionTransformer, as_pair
from vitkit.objectives.objective import Learner, Objective
from vitkit.system.errors import Unsupported

# Patches of images


def patchify(images: Tensor, size: Grid | int) -> Tensor:
    """(B, C, h·P, w·P) -> (B, N, P·P·C), in raster order, channels last within a patch. `size` is a
    patch's height and width, or the side of a square."""
    b, c, height, width = images.shape
    down, across = as_pair(size)
    x = images.view(b, c, height // down, down, width // across, across)  # (B, C, h, P, w, P)
    x = x.permute(0, 2, 4, 3, 5, 1)  # (B, h, w, P, P, C)
    return x.flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: Grid, size: Grid | int) -> Tensor:
    """(B, N, P·P·C) -> (B, C, h·P, w·P): the inverse of `patchify`."""
    x = patches.unflatten(2, (*as_pair(size), -1)).unflatten(1, grid)  # (B, h, w, P, P, C)
    x = x.permute(0, 5, 1, 3, 2, 4)  # (B, C, h, P, w, P)
    return x.flatten(4).flatten(2, 3)


def gather_patches(x: Tensor, which: Tensor) -> Tensor:
    """The patches at some indices: (B, N, ...), (B, M) -> (B, M, ...)."""
    return x.gather(1, _index(which, x))


def scatter_patches(x: Tensor, which: Tensor, values: Tensor) -> Tensor:
    """A copy with the patches at some indices replaced: (B, N, ...), indices (B, M), values (B, M, ...) ->
    (B, N, ...)."""
    return x.scatter(1, _index(which, x), values)


def _index(which: Tensor, x: Tensor) -> Tensor:
    """Indices for gather and scatter: (B, M) -> (B, M, ...), repeated along the axes of x after its patches."""
    ones = [1] * (x.ndim - 2)
    return which.view(*which.shape, *ones).expand(-1, -1, *x.shape[2:])


def mean_colours(levels: Tensor, size: Grid | int, bins: int) -> Tensor:
    """uint8 (B, C, h·P, w·P) -> int64 (B, h, w): the mean colour of every part of this size as one
    of bins^C classes.

    The mean m of a channel, from 0 to 1, falls into bin floor(bins · m), the last one if m is 1.
    The bins are the digits of the class, red's the highest.
    """
    b, c, height, width = levels.shape
    down, across = as_pair(size)
    parts = levels.long().view(b, c, height // down, down, width // across, across)
    sums = parts.sum((3, 5))  # (B, C, h, w), from 0 to 255·P·P

    # In integers, because means often fall on the edge between two bins
    digits = (sums * bins // (255 * down * across)).clamp(max=bins - 1)
    return sum(digits[:, i] * bins ** (c - 1 - i) for i in range(c))


def colour_levels(colours: Tensor, channels: int, bins: int) -> Tensor:
    """Classes of `mean_colours`, in any shape (...) -> (..., C), the middle of each channel's bin,
    from 0 to 255."""
    digits = [colours // bins ** (channels - 1 - i) % bins for i in range(channels)]
    return (torch.stack(digits, -1) + 0.5) * (255 / bins)


# Learning


class PatchLearner(Learner):
    """Base of learners that predict hidden patches. Subclasses define `predictions_and_targets`."""

    model: VisionTransformer
    objective: Objective

    def __init__(self, model: Model, objective: Objective, preprocessing: Preprocessing):
        """Raises VitkitError for a model without several patches, and for one whose patches overlap, so that
        visible ones show parts of hidden ones."""
        super().__init__()
        if not isinstance(model, VisionTransformer):
            raise Unsupported(
                f"a {type(model).__name__} has no patch embeddings to hide; choose a Vision "
                "Transformer"
            )
        if model.config.grid == (1, 1):
            raise Unsupported(
                "an image of one patch has no other patches to predict it from; choose a smaller "
                "patch"
            )
        if model.config.tiling.overlaps:
            raise Unsupported(
                f"a hidden patch can be seen in its neighbours, as patches overlap (stride "
                f"{model.config.stride}); to hide some, leave out `model.stride`, and give the "
                "stride to the fine-tuning"
            )
        self.model = model
        self.objective = objective
        self.preprocessing = preprocessing
        self.size = model.config.tiling.size
        """Height and width of a patch in pixels."""

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """images (B, C, H, W) normalised, targets unused, keys (B,) -> the mean loss of hidden
        patches, ()."""
        predicted, hidden = self.predictions_and_targets(images, keys)
        return self.losses(predicted, hidden).mean()

    def predictions_and_targets(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> predictions of the hidden patches (B, M, ...), and their targets:
        int64 classes or float numbers, (B, M) or (B, M, V)."""
        raise NotImplementedError

    def losses(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """Predictions and targets -> cross-entropies of classes, or squared errors of numbers, in
        the targets' shape."""
        if targets.is_floating_point():
            return (predicted - targets) ** 2
        logits = by_class(predicted, targets).flatten(0, -2)
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return losses.view(targets.shape)


def by_class(predicted: Tensor, targets: Tensor) -> Tensor:
    """Logits (B, M, V·K) -> (*shape of the targets, K)."""
    return predicted.unflatten(-1, (*targets.shape[2:], -1))


# Measuring


@dataclass(frozen=True)
class Reconstruction:
    """The loss and accuracy of predictions of hidden patches, for learners during training. An image's index is
    its key, so the same patches are hidden every time."""

    figures: ClassVar = ("loss", "baseline", "accuracy")
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Always True, because labels are not used."""
        return True

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the loss, its `baseline`, the accuracy (if classes are predicted), and `seen`, the
        number of images.

        The baseline is the loss of the best constant prediction: the entropy of the classes, or the variance
        of the numbers, averaged over the V values. Raises VitkitError for a finished model, for a learner
        that does not predict patches, and if there is no image.
        """
        learner = subject.learner
        if not isinstance(learner, PatchLearner):
            raise Unsupported(
                "Reconstruction measures predictions of hidden patches, which only models in pre-training make"
            )
        normalise = subject.classifier.preprocessing.normalise
        of_classes = False

        def read(batch: Batch) -> tuple[Tensor, ...]:
            nonlocal of_classes
            images = normalise(batch.images)
            predicted, targets = learner.predictions_and_targets(images, batch.indices)
            losses = learner.losses(predicted, targets)
            of_classes = not targets.is_floating_point()
            if of_classes:
                right = by_class(predicted, targets).argmax(-1) == targets
                statistics = class_counts(targets, predicted)
            else:
                right = torch.zeros_like(losses)
                statistics = moments(targets)
            losses = losses.float().flatten(1).mean(1)  # (B,)
            right = right.float().flatten(1).mean(1)  # (B,)
            return losses, right, statistics

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


def moments(targets: Tensor) -> Tensor:
    """(B, M, V) numbers -> (B, 3, V): count, sum and sum of squares over an image's patches."""
    return torch.stack([torch.ones_like(targets), targets, targets * targets], 1).sum(2)


def variance(moment_sums: Tensor) -> float:
    """Sums of `moments` over images, (3, V) -> the variance of the targets, mean over V."""
    count, first, second = moment_sums
    return (second / count - (first / count) ** 2).mean().item()


def class_counts(targets: Tensor, predicted: Tensor) -> Tensor:
    """The number of patches of each class in an image, for each of the V values: classes (B, M) or (B, M, V) ->
    float32 (B, V, K)."""
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
