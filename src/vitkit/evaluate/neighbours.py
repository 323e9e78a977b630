"""Nearest neighbours: how good features are before any head is trained on them.

The neighbours of an image are the other images of the part that is measured (leave one out). DINO's
figure, whose neighbours are training images, is another number.

Legend: B batch (in `count_right`: images compared at a time), N images, D width, K classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, TargetKind
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.metric import COUNT, Metric, share_right

ROWS = 1024  # images that are compared with all others at a time


@dataclass(frozen=True)
class Neighbours:
    """How often the nearest neighbours of an image, by the cosine of features, vote for its
    class."""

    k: int = 20
    """Neighbours that vote, each with the weight of its similarity."""

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k is {self.k}; it is a number of neighbours, at least 1")

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields neighbours/top1, how often the vote is right, and neighbours/seen, the number of
        images.

        Of classes with equal votes the one with the smallest number wins. If any feature is not
        finite, neighbours/top1 is NaN. Raises ValueError if there are fewer than two images.
        """
        classifier = subject.classifier

        def read(batch: Batch) -> tuple[Tensor, Tensor]:
            features = classifier.features(batch.images)  # (B, D)
            return F.normalize(features, dim=-1), batch.targets

        rows = collect(classifier.model, part.batches, read, classifier.device)
        features, classes = (values.to(classifier.device) for values in concatenated(rows))
        if len(classes) < 2:
            raise ValueError("an image needs others to be its neighbours; there are fewer than two")

        # Without autocast: cosines near 1 need more digits than bfloat16 has
        right = 0
        with torch.autocast(features.device.type, enabled=False):
            for start in range(0, len(features), ROWS):
                right += int(count_right(features, classes, start, self.k))
        if not features.isfinite().all():  # such features are near to nothing
            right = math.nan
        yield share_right("neighbours/top1", right, len(features))
        yield Metric("neighbours/seen", len(features), COUNT)


def count_right(features: Tensor, classes: Tensor, start: int, k: int) -> Tensor:
    """(N, D) normalised, (N,) -> for how many of the ROWS images from `start` on the vote is right,
    ()."""
    # The k nearest of all images, but not the image itself: cosines are at least -1
    rows = slice(start, start + ROWS)
    similarity = features[rows] @ features.mT  # (B, N)
    similarity[:, start:].fill_diagonal_(-2)
    nearest, neighbours = similarity.topk(min(k, len(features) - 1))  # (B, k) each

    # Each votes for its class, with a weight from 0 to 2
    votes = torch.zeros(len(nearest), int(classes.max()) + 1, device=features.device)  # (B, K)
    votes.scatter_add_(1, classes[neighbours], nearest + 1)
    return (votes.argmax(-1) == classes[rows]).sum()
