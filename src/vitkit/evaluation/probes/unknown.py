"""Out-of-distribution detection and conformal prediction: rejection thresholds, above which an image is unknown
to a classifier, and thresholds for the classes that an answer leaves open. Both are fitted to cross-validated
predictions.

An image's out-of-distribution score for a class is the sum of two measures, each in standard deviations: the
distance of its features from the class mean, and, with half the weight, the class's logit below a typical one.
An image is unknown if its lowest score exceeds the threshold of that class. The first measure finds images of
other kinds, the second those that resemble several classes (benchmarks/unknown.py compares them, and
docs/teach.md has the figures).

Features are compared by their direction (Mueller and Hein, 2025) and length. They are those of the last
block. A block in the middle finds more, but its features depend on the appearance of an image: it rejects
downscaled images of known classes two or three times as often.

Legend: N images, F width of the features, D numbers that are compared, K classes, G groups of r images
each.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.system.console.text import some
from vitkit.weights import Classifier, Unknown, direction_and_length

STRENGTH = 0.3  # shrinkage of the covariance, in mean eigenvalues
REJECTED = 0.05  # largest share of images of known classes that are rejected as unknown
SURE = 0.5  # weight of the logit relative to the distance
COVERAGE = 0.95  # probability that the right class is among those that are left open
# Smallest number of images of a class for thresholds of its own: REJECTED is then 1 of 20, with the new image
ENOUGH = 19


# Numbers in the arrays of a batch of left-out distances
MOST = 2**24


def fit_unknown(
    x: Tensor,
    classes: Tensor,
    left_out: Tensor,
    groups: np.ndarray | None = None,
    told_by: tuple[int, int] | None = None,
) -> Unknown:
    """Fit the thresholds to features (N, F), classes (N,), and cross-validated logits (N, K).

    groups: images with the same number, (N,), are left out together.
    told_by: first index and number of the features that distances are computed from, from `last_token`;
        None for all of them.

    At most REJECTED of all new images, and of those of each class, are rejected as unknown, however good the
    model is, up to the effect of a single image on the fit (conformal prediction: Vovk and others, 2005; with
    leave-one-out, Barber and others, 2021). A common threshold for all classes detects the most; it is raised
    for classes of which it would reject more.

    The classes that are left open are a class-conditional conformal set, plus the most likely class if the
    set is empty: for at least COVERAGE of the images of every class, the right one is among them. A class with
    fewer than ENOUGH images is always left open, and has the common threshold; with fewer in all, no image is
    rejected.
    """
    first, width = (0, x.shape[1]) if told_by is None else told_by
    x = direction_and_length(x[:, first : first + width].double())  # (N, D)
    left_out = left_out.double()
    count = left_out.shape[1]
    means, whitening, centre = whitened_classes(x, classes, count)

    # The out-of-distribution score of each image for each class, by a fit without its group
    rows = (x - centre) @ whitening
    distances = left_out_distances(rows, means, classes, groups).sqrt()  # (N, K)
    distance = distances.gather(1, classes[:, None])[:, 0]
    logit = left_out.gather(1, classes[:, None])[:, 0]
    inside = distance.isfinite()  # infinite for the only image, or group, of a class
    far = 1 / (_deviation(distance[inside]) or 1.0)
    sure = SURE / (_deviation(logit) or 1.0)
    typical = logit.mean().item()
    scores = far * distances - sure * left_out.clamp(max=typical)

    # The smallest probability of a class that is left open
    own = left_out.softmax(1).gather(1, classes[:, None])[:, 0]
    least = torch.zeros(count, dtype=torch.float64)
    for k in range(count):
        members = classes == k
        if members.sum() >= ENOUGH:
            least[k] = max(-conformal_limit(-own[members], COVERAGE), 0.0)
    return Unknown(
        means=means.float(),
        whitening=whitening.float(),
        centre=centre.float(),
        first=first,
        far=far,
        sure=sure,
        typical=typical,
        limit=fit_limits(scores[inside], classes[inside]),
        least=least,
        rejected=REJECTED,
        coverage=COVERAGE,
    )


def fit_limits(scores: Tensor, classes: Tensor) -> Tensor:
    """The rejection threshold of each class, (K,), from cross-validated out-of-distribution scores (N, K), and
    classes, (N,). An image is compared with the threshold of the class with its lowest score.

    It is a common threshold, which REJECTED of all images exceed. If more images of a class exceed it, the
    thresholds that too many of them exceed are raised to the lowest of their scores: mostly the threshold of
    the class itself, or of one that it is confused with.
    """
    least, nearest = scores.min(1)
    count = scores.shape[1]
    limit = torch.full((count,), conformal_limit(least, 1 - REJECTED), dtype=torch.float64)
    for k in range(count):
        members = torch.where(classes == k)[0]
        if len(members) < ENOUGH:
            continue
        excess = least[members] - limit[nearest[members]]
        by_excess = members[excess.argsort(stable=True)]
        to_be_known = by_excess[: conformal_rank(len(members), 1 - REJECTED)]
        for i in to_be_known[least[to_be_known] > limit[nearest[to_be_known]]].tolist():
            limit[nearest[i]] = torch.maximum(limit[nearest[i]], least[i])
    return limit


def last_token(classifier: Classifier) -> tuple[int, int] | None:
    """For features of several states, the first index and the width of the last block's class token, for
    `fit_unknown`; None if the features are one state."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or config.pooled_width == config.width:
        return None
    blocks = config.read_blocks
    return config.pooled_width // blocks * (blocks - 1), config.width


def open_classes(labels: Sequence[str], counts: Sequence[int]) -> str | None:
    """A sentence about the classes that every answer leaves open, because of their numbers of images, (K,);
    None if there are none."""
    few = [label for label, count in zip(labels, counts, strict=True) if count < ENOUGH]
    if not few:
        return None
    names = some(few)
    if len(few) == len(labels):
        names = "every class"
    return (
        f"fewer than {ENOUGH} images of {names} to learn from: too few to rule a class out, so these "
        "stay among the possible classes of every answer"
    )


def whitened_classes(x: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The whitened means of the classes, (K, D); the whitening matrix W (D, D), so that W Wᵀ is the inverse of
    the scatter within classes; and the mean of all images, (D,), which is subtracted first."""
    centre = x.mean(0)
    x = x - centre
    examples = torch.bincount(classes, minlength=count)
    sums = torch.zeros(count, x.shape[1], dtype=x.dtype).index_add_(0, classes, x)
    means = sums / examples[:, None]
    centred = x - means[classes]
    scatter = centred.mT @ centred
    mean_eigenvalue = scatter.diagonal().mean().item() or 1.0
    identity = torch.eye(len(scatter), dtype=x.dtype)
    lower = torch.linalg.cholesky(scatter + STRENGTH * mean_eigenvalue * identity)
    whitening = torch.linalg.solve_triangular(lower, identity, upper=False).mT
    return means @ whitening, whitening, centre


def left_out_distances(
    rows: Tensor, means: Tensor, classes: Tensor, groups: np.ndarray | None = None
) -> Tensor:
    """The squared Mahalanobis distance of each image to each class, with means and scatter computed without its
    group: whitened rows (N, D) and means (K, D) -> (N, K). It is infinite for the image's own class if that
    has no other group.

    Leaving out r of a class's n images, with deviations C from its mean and their average c, moves the mean
    by -r / (n - r) c, and subtracts CᵀC and r² / (n - r) c cᵀ from the scatter, which Woodbury's formula
    inverts.
    """
    if groups is None:
        groups = np.arange(len(rows))
    examples = torch.bincount(classes, minlength=len(means))
    distances = torch.empty(len(rows), len(means), dtype=rows.dtype)
    own = rows - means[classes]  # (N, D)

    # The groups of each class, in batches of one group size
    _, groups = np.unique(np.stack([classes.numpy(), groups]), axis=1, return_inverse=True)
    groups = groups.reshape(-1)  # NumPy 2.0 returns another shape
    sizes = np.bincount(groups)
    order = np.argsort(groups, kind="stable")
    for size in np.unique(sizes).tolist():
        of_size = torch.from_numpy(order[sizes[groups[order]] == size]).reshape(-1, size)  # (G, r)
        together = max(MOST // (size * (size + 1) * (len(means) + rows.shape[1])), 1)
        for members in of_size.split(together):
            others = examples[classes[members[:, 0]]] - size  # (G,)
            is_alone = others == 0
            others = others.clamp(min=1).double()[:, None, None]  # c is 0 for a group that is alone
            gone = own[members]  # (G, r, D)
            mean = gone.mean(1, keepdim=True)  # (G, 1, D)
            lost = torch.cat([gone, size / others.sqrt() * mean], 1)  # (G, r + 1, D)
            one = torch.eye(size + 1, dtype=rows.dtype)
            kept = one - lost @ lost.mT  # (G, r + 1, r + 1)

            # Distances to every class, whose mean stays; then to their own class, whose mean moves
            far = (
                torch.cdist(rows[members].flatten(0, 1), means).square().unflatten(0, members.shape)
            )
            across = (lost @ rows[members].mT)[..., None] - (lost @ means.mT)[:, :, None]
            lies = across.flatten(2)  # (G, r + 1, r K)
            far += (lies * torch.linalg.solve(kept, lies)).sum(1).unflatten(1, far.shape[1:])
            away = gone + size / others * mean  # (G, r, D)
            across = lost @ away.mT  # (G, r + 1, r)
            to_own = away.square().sum(2) + (across * torch.linalg.solve(kept, across)).sum(1)
            to_own[is_alone] = math.inf
            far.scatter_(2, classes[members][..., None], to_own[..., None])
            distances[members] = far
    return distances


def _deviation(values: Tensor) -> float:
    """The standard deviation; 0 if there are no values."""
    if not len(values):
        return 0.0
    return values.std(correction=0).item()


def conformal_limit(values: Tensor, share: float) -> float:
    """The conformal quantile: a bound that a new exchangeable value does not exceed with probability
    `share`. It is the ceil((N + 1) share)-th smallest of the N values, or infinite if that is beyond N."""
    rank = conformal_rank(len(values), share)
    if rank > len(values):
        return math.inf
    return values.sort().values[rank - 1].item()


def conformal_rank(count: int, share: float) -> int:
    """The rank, from 1 for the smallest, of the conformal quantile among `count` values; above `count` if
    there are too few of them."""
    return math.ceil((count + 1) * share - 1e-9)
