"""A memory bank of the patches of good images, and how far good images are from it if they have no part
in it: from that follows the threshold of the anomaly score.

Legend: I images, N patches of each, R patches of all, M patches in memory, D numbers of a patch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation.probes.unknown import conformal_rank
from vitkit.models.head import distances_to, worst_count
from vitkit.system.console.progress import bar

MOST = 8_192  # largest number of patches in memory
EVERY = 8  # of so many patches in memory one bounds the distances to all
EXACT = 32  # patches of an image whose distances to all patches are computed together
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

    means = torch.stack([own.float().mean(0) for own in patches])  # (I, D)
    means = torch.nn.functional.normalize(means, dim=1)
    first, second = (means @ means.mT > 1 - COPIED).nonzero(as_tuple=True)
    is_later = first < second
    pairs = []
    for i, j in zip(first[is_later].tolist(), second[is_later].tolist(), strict=True):
        # float16 has changed their length
        similar = torch.cosine_similarity(patches[i].float(), patches[j].float())  # (N,)
        if similar.min() > 1 - COPIED:
            pairs.append((i, j))
    if not pairs:
        return groups, 0

    # Images are linked to those of their group, and to their copies
    numbers = np.unique(groups, return_index=True, return_inverse=True)
    links = np.array([*pairs, *zip(range(len(groups)), numbers[1][numbers[2]], strict=True)])
    graph = coo_array((np.ones(len(links)), links.T), (len(groups), len(groups)))
    joined = connected_components(graph, directed=False)[1]
    return joined, len({j for _, j in pairs})


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
