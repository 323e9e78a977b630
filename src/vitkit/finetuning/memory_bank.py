"""A memory bank of the patches of good images, and how far good images are from it if they have no part
in it: from that follows the threshold of the anomaly score.

Legend: I images, N patches of each, R patches of all, M patches in memory, D numbers of a patch.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation.probes.unknown import conformal_rank
from vitkit.models.head import distances_to, worst_count
from vitkit.system.console.progress import bar

MOST = 8_192  # largest number of patches in memory
DRAWN = 65_536  # largest number of patches from which those in memory are chosen
PROJECTED = 64  # numbers of a patch by which they are chosen
FOLDS = 5  # of images that are left out together if each image alone would take too long
REJECTED = 0.05  # share of good images whose score may exceed the threshold
CERTAIN = (
    3.0  # logit of a good image of median score, by which "good" is likelier than the other class
)


@dataclass(frozen=True)
class Threshold:
    """The anomaly score from which on an image is unlike the good ones."""

    value: float
    scale: float
    """Difference in score that changes the logit by 1."""
    images: int
    """Number of independent good images that it was fitted to."""
    rejected: float
    """Expected share of other good images above it."""
    interval: tuple[float, float]
    """Interval of 95 % confidence of that share, for these images as they happened to be drawn."""


def fit_threshold(scores: np.ndarray, groups: np.ndarray | None = None) -> Threshold:
    """The threshold that at most REJECTED of other good images exceed, from the scores of good images that
    are left out, (I,): a conformal quantile (Vovk et al. 2005). Of fewer than 19 images the largest score
    is the threshold, which one in I + 1 exceeds.

    groups: images of one group, (I,), are not independent: the largest score of each group counts.

    The share of other images above the threshold follows a beta distribution, from which the interval is
    (Vovk 2012, "Conditional validity of inductive conformal predictors").
    """
    from scipy.stats import beta

    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        scores = np.array([scores[numbers == k].max() for k in range(numbers.max() + 1)])
    count = len(scores)
    rank = min(conformal_rank(count, 1 - REJECTED), count)
    value = float(np.sort(scores)[rank - 1])
    scale = max((value - float(np.median(scores))) / CERTAIN, 1e-4)
    above = count + 1 - rank
    low, high = beta.ppf((0.025, 0.975), above, rank)
    return Threshold(value, scale, count, above / (count + 1), (float(low), float(high)))


def left_out_scores(patches: Tensor, groups: np.ndarray) -> np.ndarray:
    """The anomaly score of each good image by a memory bank without the images of its group: float64 (I,).

    patches: of length 1, (I, N, D). groups: group numbers, (I,). If all patches fit into a memory bank,
    each group is left out alone; else one of FOLDS parts of the images at a time.
    """
    numbers = np.unique(groups, return_inverse=True)[1]
    if patches.shape[0] * patches.shape[1] > MOST:
        numbers = numbers % FOLDS
    scores = np.zeros(len(patches))
    folds = range(numbers.max() + 1)
    for fold in bar("leaving good images out")(folds, len(folds)):
        is_out = numbers == fold
        memory = memory_bank(patches[torch.from_numpy(~is_out)])
        for i in np.flatnonzero(is_out):
            scores[i] = anomaly_score(patches[i], memory)
    return scores


def anomaly_score(patches: Tensor, memory: Tensor) -> float:
    """The anomaly score of one image, as the pooling "memory" computes it: (N, D) and (M, D)."""
    distances = distances_to(patches[None].float(), memory)[0]
    return float(distances.topk(worst_count(len(distances))).values.mean())


def memory_bank(patches: Tensor, most: int = MOST) -> Tensor:
    """The patches of good images, (I, N, D), or a coreset of `most` of them that covers all: float32 (M,
    D)."""
    rows = patches.flatten(0, 1)
    if len(rows) <= most:
        return rows.float()
    generator = torch.Generator().manual_seed(0)
    if len(rows) > DRAWN:
        rows = rows[torch.randperm(len(rows), generator=generator)[:DRAWN].sort().values]
    return rows[coreset(rows, most, generator)].float()


def coreset(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` of R rows, so that none is far from its nearest: the greedy k-centre algorithm of PatchCore,
    on a random projection, which keeps distances but for a few percent. Returns indices, (count,)."""
    width = rows.shape[1]
    axes = torch.randn(width, min(PROJECTED, width), generator=generator) / math.sqrt(PROJECTED)
    points = rows.float() @ axes  # (R, P)
    squares = points.square().sum(1)
    nearest = torch.full((len(points),), torch.inf)
    chosen = torch.zeros(count, dtype=torch.int64)
    for k in range(1, count):
        last = points[chosen[k - 1]]
        nearest = torch.minimum(nearest, squares - 2 * (points @ last) + last.square().sum())
        chosen[k] = nearest.argmax()
    return chosen
