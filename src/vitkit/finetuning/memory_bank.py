"""A memory bank of the patches of good images, and how far good images are from it if they have no part
in it: from that follows the threshold of the anomaly score.

Legend: I images, N patches of each, R patches of all, M patches in memory, D numbers of a patch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.models.head import distances_to, worst_count
from vitkit.system.console.progress import bar

MOST = 8_192  # largest number of patches in memory
EVERY = 8
"""Every eighth patch in memory is compared first, which bounds the distance to the nearest."""
EXACT = 16  # patches of an image whose distances to all patches are computed together
LOOKED_AT = 16
"""Patches of two images that are compared first, at least: all others are compared only if these are alike."""
COPIED = 1e-4  # largest distance of two patches of an image and its copy
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
    """Number of independent good images, or groups of images, that it was fitted to."""
    rejected: float
    """Expected share of other good images above it."""
    interval: tuple[float, float]
    """Interval of 95 % confidence of that share, for these images as they happened to be drawn."""


def fit_threshold(scores: np.ndarray, groups: np.ndarray | None = None) -> Threshold:
    """The threshold that at most REJECTED of other good images exceed, from the scores of good images that
    are left out, (I,): a conformal quantile (Vovk et al. 2005). Of fewer than 19 images the largest score
    is the threshold, which one in I + 1 exceeds.

    groups: images of one group, (I,), are not independent. Each group counts as one image, whose score is that of
    one of its images, drawn at random (Lee, Barber and Willett 2023, "Distribution-free inference with hierarchical
    data"). So what is expected is a share of images, as `vitkit predict` sees them, not of groups.

    The share of other images above the threshold follows a beta distribution, from which the interval is
    (Vovk 2012, "Conditional validity of inductive conformal predictors"). With groups it is the widest that there can
    be: that of groups whose images all have one score.
    """
    from scipy.stats import beta

    numbers = np.arange(len(scores))
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(numbers)
    count = len(sizes)
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(1 / sizes[numbers[order]])  # groups, of those with this score or a lower one
    place = int(np.searchsorted(below, (1 - REJECTED) * (count + 1) - 1e-9))
    place = min(place, len(scores) - 1)
    value = float(scores[order[place]])
    medians = [float(np.median(scores[numbers == k])) for k in range(count)]
    scale = max((value - float(np.median(medians))) / CERTAIN, 1e-4)
    above = count + 1 - float(below[place])
    low, high = beta.ppf((0.025, 0.975), above, count + 1 - above)
    return Threshold(value, scale, count, above / (count + 1), (float(low), float(high)))


class MemoryBank(NamedTuple):
    """Patches of good images."""

    patches: Tensor
    """float32 (M, D), each of length 1."""
    images: np.ndarray
    """The number of the image that each is of, (M,)."""


def memory_bank(patches: Tensor, most: int = MOST) -> MemoryBank:
    """The patches of good images, (I, N, D); of more than `most` those of each image that cover it best, at
    least one. Which ones are kept of an image does not depend on the others, so that it can be left out."""
    count, each, _ = patches.shape
    kept = max(most // count, 1)
    if kept >= each:
        return MemoryBank(patches.flatten(0, 1).float(), np.repeat(np.arange(count), each))
    chosen = [own[covering(own.float(), kept)].float() for own in patches]
    return MemoryBank(torch.cat(chosen), np.repeat(np.arange(count), kept))


def covering(rows: Tensor, count: int) -> Tensor:
    """`count` of N rows of length 1, so that none is far from its nearest of these: the greedy k-centre
    algorithm of PatchCore, which begins with the most unusual one. (N, D) -> indices, (count,)."""
    similar = rows @ rows.mT  # (N, N)
    chosen = torch.zeros(count, dtype=torch.int64)
    chosen[0] = (rows @ rows.mean(0)).argmin()
    nearest = similar[chosen[0]].clone()  # of each row, among those that are chosen
    for k in range(1, count):
        chosen[k] = nearest.argmin()
        nearest = torch.maximum(nearest, similar[chosen[k]])
    return chosen


def with_copies(patches: Tensor, groups: np.ndarray) -> tuple[np.ndarray, int]:
    """The groups of images, (I,), with copies of an image in its group, and the number of copies: a copy that is
    left out would be in memory by the other. patches: of length 1, (I, N, D)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Patch by patch, until few pairs of images are left
    count, each, _ = patches.shape
    is_alike = torch.ones(count, count, dtype=torch.bool).triu(1)  # i < j
    looked_at = 0
    for number in torch.randperm(each, generator=torch.Generator().manual_seed(0)).tolist():
        rows = torch.nn.functional.normalize(patches[:, number].float(), dim=1)  # (I, D)
        is_alike &= rows @ rows.mT > 1 - COPIED
        looked_at += 1
        if is_alike.sum() <= count:
            break
    pairs = is_alike.nonzero().tolist()
    if looked_at < each:
        pairs = [(i, j) for i, j in pairs if is_copy(patches[i], patches[j])]
    if not pairs:
        return groups, 0

    # Images are linked to those of their group, and to their copies
    numbers = np.unique(groups, return_index=True, return_inverse=True)
    links = np.array([*pairs, *zip(range(len(groups)), numbers[1][numbers[2]], strict=True)])
    graph = coo_array((np.ones(len(links)), links.T), (count, count))
    joined = connected_components(graph, directed=False)[1]
    return joined, len({j for _, j in pairs})


def is_copy(patches: Tensor, others: Tensor) -> bool:
    """Whether two images have the same patches, (N, D) each."""
    similar = torch.cosine_similarity(patches.float(), others.float())  # (N,)
    return bool(similar.min() > 1 - COPIED)


def left_out_scores(patches: Tensor, groups: np.ndarray, memory: MemoryBank) -> np.ndarray:
    """The anomaly score of each good image by the memory bank without the patches of its group: float64
    (I,). patches: of length 1, (I, N, D). groups: group numbers, (I,)."""
    few = MemoryBank(memory.patches[::EVERY].contiguous(), memory.images[::EVERY])
    scores = np.zeros(len(patches))
    for i in bar("leaving good images out")(range(len(patches)), len(patches)):
        of_few = torch.from_numpy(groups[few.images] == groups[i])
        of_all = torch.from_numpy(groups[memory.images] == groups[i])
        own = patches[i].float()  # (N, D)
        count = worst_count(len(own))
        # Only the largest distances count. The distance to a few patches bounds that to all from above
        bounds = distances_without(own, few.patches, of_few)
        exact = torch.empty(0)
        for rows in bounds.argsort(descending=True).split(EXACT):
            if len(exact) >= count and exact.topk(count).values[-1] >= bounds[rows[0]]:
                break
            found = distances_without(own[rows], memory.patches, of_all)
            exact = torch.cat([exact, found])
        scores[i] = float(exact.topk(count).values.mean())
    return scores


def distances_without(patches: Tensor, memory: Tensor, is_left_out: Tensor) -> Tensor:
    """The distance of each patch to the nearest in memory of those that are not left out, 2 at most: (N, D),
    (M, D) and bool (M,) -> (N,)."""
    similar = patches @ memory.mT  # (N, M)
    return 1 - similar.masked_fill(is_left_out, -1).amax(1)


def anomaly_score(patches: Tensor, memory: Tensor) -> float:
    """The anomaly score of one image, as the pooling "memory" computes it: (N, D) and (M, D)."""
    distances = distances_to(patches[None].float(), memory)[0]
    return float(distances.topk(worst_count(len(distances))).values.mean())
