"""k-nearest-neighbour accuracy: the quality of features before any head is trained on them.

The neighbours of an image are the other images of the measured part (leave-one-out). DINO's k-NN accuracy,
whose neighbours are training images, differs from this.

Legend: B images compared at a time, N images, D width, K classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import TargetKind
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.metric import COUNT, Metric, share_right
from vitkit.evaluation.probes.features import compute_features
from vitkit.system.errors import BadData, BadSettings

ROWS = 1024  # number of images that are compared with all others at a time


@dataclass(frozen=True)
class Neighbours:
    """The accuracy of the vote of an image's nearest neighbours, by the cosine of their features."""

    figures: ClassVar = ("neighbours/top1",)
    """The metrics that it may compute, so that a wrong `best` of a run is noticed before the run."""

    k: int = 20
    """Neighbours that vote, each with the weight of its similarity."""

    def __post_init__(self):
        if self.k < 1:
            raise BadSettings(f"k is {self.k}; it is a number of neighbours, at least 1")

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields neighbours/top1, the share of images with a right vote, and neighbours/seen, the number of
        images. Images of one group, such as a burst, do not vote for each other.

        Of classes with equal votes, the first wins. If any feature is not finite, neighbours/top1 is NaN.
        Raises VitkitError if there are fewer than two images.
        """
        classifier = subject.classifier
        is_finished = subject.learner is None
        x, y = compute_features(classifier, part.source, part.batches, cached=is_finished)
        if len(y) < 2:
            raise BadData("an image needs others to be its neighbours; there are fewer than two")
        rows = torch.tensor(x, device=classifier.device)  # (N, D)
        classes = torch.tensor(y, device=classifier.device)
        groups = part.source.groups
        number = None
        if groups is not None:
            number = torch.tensor(groups, device=classifier.device)
        right = (voted(rows, classes, self.k, groups=number) == classes).cpu().numpy()
        if not rows.isfinite().all():  # such features have no nearest neighbours
            right = np.full(len(rows), math.nan)
        yield share_right("neighbours/top1", right, groups)
        yield Metric("neighbours/seen", len(rows), COUNT)


def voted(
    rows: Tensor,
    classes: Tensor,
    k: int,
    queries: Tensor | None = None,
    groups: Tensor | None = None,
) -> Tensor:
    """The class that the k nearest of features (N, D), with classes (N,), vote for, for each of `queries`,
    (M, D): int64 (M,). Without queries, the features themselves are the queries, and an image does not
    vote for itself or, with `groups`, (N,), for an image of its group: int64 (N,)."""
    leave_out = queries is None
    rows = F.normalize(rows, dim=-1)
    if queries is None:
        queries = rows
    else:
        queries = F.normalize(queries, dim=-1)
    count = int(classes.max()) + 1
    answers = []
    # Without autocast: cosines near 1 need more digits than bfloat16 has
    with torch.autocast(rows.device.type, enabled=False):
        for start in range(0, len(queries), ROWS):
            similarity = queries[start : start + ROWS] @ rows.mT  # (B, N)
            most = k
            if leave_out:  # exclude the image itself: cosines are at least -1
                similarity[:, start:].fill_diagonal_(-2)
                most = min(k, len(rows) - 1)
                if groups is not None:
                    similarity[groups[start : start + ROWS, None] == groups] = -2
            nearest, neighbours = similarity.topk(min(most, len(rows)))  # (B, k) each

            # Each votes for its class with a weight from 0 to 2; excluded images have the weight 0
            votes = torch.zeros(len(nearest), count, device=rows.device)  # (B, K)
            votes.scatter_add_(1, classes[neighbours], (nearest + 1).clamp(min=0))
            answers.append(votes.argmax(-1))
    return torch.cat(answers)
