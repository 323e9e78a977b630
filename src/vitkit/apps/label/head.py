"""The head of a labelling session, fitted after every answer: class-balanced least squares in
closed form.

Screens give many labels of one class together, so all classes get equal weight: otherwise a class
that was just confirmed would absorb similar ones. The regularisation is fixed, because at first
there are too few labels for choosing it; the saved model is fitted as by `vitkit teach`.

Legend: L labelled images, N any images, D width of the features, K classes that have a label.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation import fit_temperature

L2 = 1.0  # ridge penalty in mean eigenvalues: it halves the weight of an average direction
COLDEST = 0.05  # bounds of the temperature, in case there are too few labels for fitting it
HOTTEST = 2.0


@dataclass(frozen=True, eq=False)
class Head:
    """A head, and its leave-one-out scores for the images that it was fitted to."""

    classes: np.ndarray
    """The number of each of the K classes, (K,)."""
    weight: Tensor
    """float32 (D, K)"""
    bias: Tensor
    """float32 (K,)"""
    left_out: Tensor
    """Leave-one-out scores, float32 (L, K)."""
    temperature: float
    """Divisor of the scores that makes their softmax a calibrated probability."""

    def scores(self, features: np.ndarray) -> Tensor:
        """Features (N, D), of any precision -> float32 (N, K)."""
        return torch.from_numpy(np.asarray(features, np.float32)) @ self.weight + self.bias

    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores (N, K) -> (N, K)"""
        return (scores / self.temperature).softmax(1)


def unsureness(scores: Tensor) -> Tensor:
    """The uncertainty of scores (N, K): 1 if the two highest classes are equally likely, 0 if one
    is certain. Returns (N,).

    Scores of least squares lie between -1 and 1, and close to each other while there are few
    labels. So all images are about equally uncertain at first, as they should be; calibrated
    probabilities would need more labels. few labels to say so.
    """
    best = scores.topk(2).values
    return (1 - (best[:, 0] - best[:, 1]) / 2).clamp(0, 1)


def solve(features: np.ndarray, labels: np.ndarray, chosen: np.ndarray | None = None) -> Head:
    """Fit the head to labelled images: features (L, D), class numbers of two classes or more (L,).

    chosen: bool (L,), the images that were confirmed because the model was certain about them. They
    are not representative of its certainty, so the temperature is not fitted to them.
    """
    classes, rows = np.unique(labels, return_inverse=True)
    members = torch.from_numpy(rows)
    x = torch.from_numpy(np.asarray(features, np.float64))
    y = -torch.ones(len(x), len(classes), dtype=torch.float64)
    y[torch.arange(len(x)), members] = 1

    # Each class has equal weight; the weights sum to the number of images
    counts = torch.bincount(members).double()
    weights = len(x) / len(classes) / counts[members]
    centre = weights @ x / len(x)
    mean = weights @ y / len(x)
    roots = weights.sqrt()[:, None]
    x = roots * (x - centre)
    targets = roots * (y - mean)

    # Least squares through the smaller of XXᵀ and XᵀX, and the leverage of each image
    if len(x) < x.shape[1]:
        inverse, l2 = _inverse(x @ x.mT)
        weight = x.mT @ (inverse @ targets)
        own = 1 - l2 * inverse.diagonal()
    else:
        inverse, l2 = _inverse(x.mT @ x)
        weight = inverse @ (x.mT @ targets)
        own = ((x @ inverse) * x).sum(1)
    own = (own + weights / len(x))[:, None]

    # Leave-one-out residuals from the leverages
    scores = mean + (x @ weight) / roots
    left_out = scores + (scores - y) * own / (1 - own).clamp(min=1e-6)
    by_itself = torch.ones(len(x), dtype=torch.bool)
    if chosen is not None and not chosen.all():
        by_itself = torch.from_numpy(~chosen)
    temperature = fit_temperature(left_out[by_itself], members[by_itself])
    return Head(
        classes,
        weight.float(),
        (mean - centre @ weight).float(),
        left_out.float(),
        min(max(temperature, COLDEST), HOTTEST),
    )


def _inverse(products: Tensor) -> tuple[Tensor, float]:
    """(A + l2 I)⁻¹ of a symmetric A, and l2."""
    l2 = L2 * (products.diagonal().mean().item() or 1.0)
    products.diagonal().add_(l2)
    return torch.cholesky_inverse(torch.linalg.cholesky(products)), l2
