"""From where on an image is unknown to a classifier, and which classes an answer leaves open: limits
fitted to what each image is answered by a fit without it.

An image is unknown if the sum of two measures is large, each in its own standard deviations: how far
its features lie from the nearest class, and how low its highest logit is. The first finds images of
another kind, the second those that resemble several classes (docs/teach.md has the comparison).

Legend: N images, D width of the features, K classes.
"""

import math

import torch
from torch import Tensor

from vitkit.weights import Unknown

STRENGTH = 0.3  # of the covariance's regularisation, in mean eigenvalues
REJECTED = 0.05  # share of images of known classes that may be called unknown
COVERAGE = 0.95  # how often the right class is to be among those that are left open


def fit_unknown(
    x: Tensor,
    classes: Tensor,
    left_out: Tensor,
    rejected: float = REJECTED,
    coverage: float = COVERAGE,
) -> Unknown:
    """Limits from features (N, D), classes (N,), and the logits of each image by a fit without it,
    (N, K).

    The classes that are left open are a conformal set, to which the likeliest is added if it is
    empty: the right one is among them for at least `coverage` of new images of the known classes,
    whatever the model is worth, up to the difference that one image more makes to the fit (Vovk and
    others, 2005; by leaving one out, Barber and others, 2021). If there are too few images to tell,
    nothing is unknown, and all classes are left open.
    """
    x = x.double()
    left_out = left_out.double()
    means, whitening = whitened_classes(x, classes, left_out.shape[1])

    # How strange each image was to the others
    distance = left_out_distances(x @ whitening, means, classes).sqrt()
    highest = left_out.amax(1)
    inside = distance.isfinite()  # not so if it is the only image of all
    far = 1 / (_deviation(distance[inside]) or 1.0)
    sure = 1 / (_deviation(highest) or 1.0)
    strangeness = far * distance - sure * highest

    # How probable the right class of each was
    own = left_out.softmax(1).gather(1, classes[:, None])[:, 0]
    return Unknown(
        means=means.float(),
        whitening=whitening.float(),
        far=far,
        sure=sure,
        limit=conformal_limit(strangeness, 1 - rejected),
        least=max(-conformal_limit(-own, coverage), 0.0),
        rejected=rejected,
        coverage=coverage,
    )


def whitened_classes(x: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The means of the classes, whitened, (K, D), and what whitens: W (D, D), so that W Wᵀ is the
    inverse of the scatter within classes."""
    examples = torch.bincount(classes, minlength=count)
    sums = torch.zeros(count, x.shape[1], dtype=x.dtype).index_add_(0, classes, x)
    means = sums / examples[:, None]
    centred = x - means[classes]
    scatter = centred.mT @ centred
    mean_eigenvalue = scatter.diagonal().mean().item() or 1.0
    identity = torch.eye(len(scatter), dtype=x.dtype)
    lower = torch.linalg.cholesky(scatter + STRENGTH * mean_eigenvalue * identity)
    whitening = torch.linalg.solve_triangular(lower, identity, upper=False).mT
    return means @ whitening, whitening


def left_out_distances(rows: Tensor, means: Tensor, classes: Tensor) -> Tensor:
    """The squared distance of each image to the nearest class, by means and scatter without it: rows
    (N, D) and means (K, D), both whitened -> (N,).

    Without an image, the mean of its n moves away by 1 / (n - 1) of its distance d, and the scatter
    loses n / (n - 1) d dᵀ: Sherman and Morrison's formula inverts that.
    """
    examples = torch.bincount(classes, minlength=len(means)).double()[classes]  # (N,)
    shrinks = examples / (examples - 1).clamp(min=1)  # n / (n - 1)
    own = rows - means[classes]  # (N, D)
    squared = own.square().sum(1)  # (N,)
    lost = shrinks / (1 - shrinks * squared)

    # To the other classes, whose means stay: |v|² + lost (v · own)²
    across = torch.cdist(
        rows, means, compute_mode="donot_use_mm_for_euclid_dist"
    ).square()  # (N, K)
    along = (rows * own).sum(1, keepdim=True) - own @ means.mT
    distances = across + lost[:, None] * along.square()

    # To its own, which without it may have no image left
    to_own = shrinks.square() * squared / (1 - shrinks * squared)
    to_own = torch.where(examples > 1, to_own, torch.inf)
    return distances.scatter(1, classes[:, None], to_own[:, None]).amin(1)


def _deviation(values: Tensor) -> float:
    """The standard deviation; 0 if there are no values."""
    if not len(values):
        return 0.0
    return values.std(correction=0).item()


def conformal_limit(values: Tensor, share: float) -> float:
    """What a further value does not exceed with this probability, if it is drawn as the N values
    were: the ceil((N + 1) share)-th of them; infinite if that is more than there are."""
    rank = math.ceil((len(values) + 1) * share - 1e-9)
    if rank > len(values):
        return math.inf
    return values.sort().values[rank - 1].item()
