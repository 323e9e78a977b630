"""From where on an image is unknown to a classifier, and which classes an answer leaves open: limits
fitted to what each image is answered by a fit without it.

An image is strange to a class if the sum of two measures is large, each in its own standard deviations:
how far its features lie from the mean of the class, and, at half weight, by how much the class's logit is
below a typical one. It is unknown if it is strange to the class to which it is least strange. The first
measure finds images of another kind, the second those that resemble several classes (benchmarks/unknown.py
compares them, and docs/teach.md has the figures).

Features are compared by their direction (Mueller and Hein, 2025) and length. They are those of the last
block: a block in the middle finds more, but its features say how an image looks, so that an image of a known
class that was only made smaller is unknown two or three times as often.

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

STRENGTH = 0.3  # of the covariance's regularisation, in mean eigenvalues
REJECTED = 0.05  # share of images of known classes that may be called unknown
SURE = 0.5  # weight of the logit beside the distance
COVERAGE = 0.95  # how often the right class is to be among those that are left open
# Images of a class from which such a share can be told: of 20 one may be beyond the others
ENOUGH = 19


# Numbers in memory of distances that are left out together
MOST = 2**24


def fit_unknown(
    x: Tensor,
    classes: Tensor,
    left_out: Tensor,
    groups: np.ndarray | None = None,
    told_by: tuple[int, int] | None = None,
) -> Unknown:
    """Limits from features (N, F), classes (N,), and the logits of each image by a fit without it,
    (N, K). Images of one group, by its number (N,), are strange to each other.

    told_by: which of the features tell how far away an image is, the first and how many: `last_token`,
    if a head reads more; None for all of them.

    At most REJECTED of all images, and of those of each class, are called unknown, whatever the model
    is worth, up to the difference that one image more makes to the fit (conformal prediction: Vovk and
    others, 2005; by leaving one out, Barber and others, 2021). One limit for all classes finds the
    most; it is raised for classes of which it would reject more.

    The classes that are left open are a conformal set by class, to which the likeliest is added if it
    is empty: of the images of every class, the right one is among them for at least COVERAGE. A class of
    fewer than ENOUGH images is always left open, and has the limit of all images; of fewer in all,
    nothing is unknown.
    """
    first, width = (0, x.shape[1]) if told_by is None else told_by
    x = direction_and_length(x[:, first : first + width].double())  # (N, D)
    left_out = left_out.double()
    count = left_out.shape[1]
    means, whitening, centre = whitened_classes(x, classes, count)

    # How strange each image was to each class
    rows = (x - centre) @ whitening
    distances = left_out_distances(rows, means, classes, groups).sqrt()  # (N, K)
    distance = distances.gather(1, classes[:, None])[:, 0]
    logit = left_out.gather(1, classes[:, None])[:, 0]
    inside = distance.isfinite()  # not so if it is the only image, or group, of its class
    far = 1 / (_deviation(distance[inside]) or 1.0)
    sure = SURE / (_deviation(logit) or 1.0)
    typical = logit.mean().item()
    strangeness = far * distances - sure * left_out.clamp(max=typical)

    # From where on a class is left open
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
        limit=fit_limits(strangeness[inside], classes[inside]),
        least=least,
        rejected=REJECTED,
        coverage=COVERAGE,
    )


def fit_limits(strangeness: Tensor, classes: Tensor) -> Tensor:
    """The limit of each class, (K,), from how strange left-out images are to each class, (N, K), and
    their classes, (N,): of the class to which an image is least strange, it decides.

    It is one limit, which REJECTED of all images exceed. Where more of a class do, the limits that the
    least strange of these exceed are raised to them: mostly that of the class itself, or of one that
    it is mistaken for.
    """
    least, nearest = strangeness.min(1)
    count = strangeness.shape[1]
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
    """For features of several states: the position of the class token of the last block, for
    `fit_unknown`; None if the features are one state."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or config.pooled_width == config.width:
        return None
    blocks = config.read_blocks
    return config.pooled_width // blocks * (blocks - 1), config.width


def open_classes(labels: Sequence[str], counts: Sequence[int]) -> str | None:
    """A sentence about classes with this many images, (K,), that every answer leaves open; None
    if there is none."""
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
    """The means of the classes, whitened, (K, D); what whitens, W (D, D), so that W Wᵀ is the inverse of
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
    """The squared distance of each image to each class, by means and scatter without its group: rows
    (N, D) and means (K, D), both whitened -> (N, K); to its own class infinite if there is no other group
    of it.

    Without r of a class's n images, whose distances from its mean are C and c on average, the mean moves
    away by r / (n - r) c, and the scatter loses CᵀC and r² / (n - r) c cᵀ: Woodbury's formula inverts
    that.
    """
    if groups is None:
        groups = np.arange(len(rows))
    examples = torch.bincount(classes, minlength=len(means))
    distances = torch.empty(len(rows), len(means), dtype=rows.dtype)
    own = rows - means[classes]  # (N, D)

    # The groups of each class, those of one size at once
    _, groups = np.unique(np.stack([classes.numpy(), groups]), axis=1, return_inverse=True)
    groups = groups.reshape(-1)  # NumPy 2.0 gives it another axis
    sizes = np.bincount(groups)
    order = np.argsort(groups, kind="stable")
    for size in np.unique(sizes).tolist():
        of_size = torch.from_numpy(order[sizes[groups[order]] == size]).reshape(-1, size)  # (G, r)
        together = max(MOST // (size * (size + 1) * (len(means) + rows.shape[1])), 1)
        for members in of_size.split(together):
            others = examples[classes[members[:, 0]]] - size  # (G,)
            is_alone = others == 0
            others = others.clamp(min=1).double()[:, None, None]  # of one that is alone, c is 0
            gone = own[members]  # (G, r, D)
            mean = gone.mean(1, keepdim=True)  # (G, 1, D)
            lost = torch.cat([gone, size / others.sqrt() * mean], 1)  # (G, r + 1, D)
            one = torch.eye(size + 1, dtype=rows.dtype)
            kept = one - lost @ lost.mT  # (G, r + 1, r + 1)

            # To every class, whose mean stays; then to their own, whose mean moves
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
    """What a further value does not exceed with this probability, if it is drawn as the N values
    were: the ceil((N + 1) share)-th of them; infinite if that is more than there are."""
    rank = conformal_rank(len(values), share)
    if rank > len(values):
        return math.inf
    return values.sort().values[rank - 1].item()


def conformal_rank(count: int, share: float) -> int:
    """The rank, from 1 for the smallest, of the value among `count` that a further one does not exceed with
    probability `share`; above `count` if there is none."""
    return math.ceil((count + 1) * share - 1e-9)
