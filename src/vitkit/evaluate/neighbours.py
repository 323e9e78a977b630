"""Nearest neighbours: what features are worth before any head is trained on them.

Legend: B batch, N images, D width, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Batch, Target
from vitkit.evaluate.collect import collect, concatenated
from vitkit.evaluate.evaluator import Part, Subject
from vitkit.evaluate.metric import COUNT, SHARE, Metric, wilson

ROWS = 1024  # images that are compared with all others at once


@dataclass(frozen=True)
class Neighbours:
    """Every image takes the class that most of its nearest others have, by the cosine of their
    features."""

    k: int = 20
    """Neighbours that vote, each by its similarity."""

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k is {self.k}; it is a number of neighbours, at least 1")

    def judges(self, target: Target) -> bool:
        """Whether every image has one class."""
        return target == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields neighbours/top1, how often that is the image's own class, and `seen`, the number
        of images.

        The model gives one vector an image. Of classes with equal votes the smallest wins. Raises
        ValueError when there are fewer than two images.
        """
        classifier = subject.classifier

        def read(batch: Batch) -> tuple[Tensor, Tensor]:
            features = classifier.features(batch.images)  # (B, D)
            return F.normalize(features, dim=-1), batch.targets

        passed = collect(classifier.model, part.batches, read, classifier.device)
        rows = concatenated(passed)
        x, y = (values.to(classifier.device) for values in rows)  # (N, D), (N,)
        if len(y) < 2:
            raise ValueError("an image needs others to be its neighbours; there are fewer than two")
        right = 0
        with torch.autocast(x.device.type, enabled=False):  # cosines near 1 need more than bfloat16
            for start in range(0, len(x), ROWS):
                right += int(count_right(x, y, start, self.k))
        yield Metric("neighbours/top1", right / len(x), SHARE, wilson(right, len(x)))
        yield Metric("neighbours/seen", len(x), COUNT)


def count_right(x: Tensor, y: Tensor, start: int, k: int) -> Tensor:
    """How many of the ROWS images from `start` on have the class that their k nearest of all, (N,
    D) and (N,), vote for."""
    similarity = x[start : start + ROWS] @ x.mT
    similarity[:, start:].fill_diagonal_(-2)  # no image is its own neighbour
    near, which = similarity.topk(min(k, len(x) - 1))
    votes = torch.zeros(len(near), int(y.max()) + 1, device=x.device)  # (B, K)
    votes.scatter_add_(1, y[which], near + 1)
    return (votes.argmax(-1) == y[start : start + ROWS]).sum()
