"""The head that a sitting solves after every answer: least squares in closed form, classes alike.

Screens give many labels of one class at once, so classes count alike whatever their number of labels: else a
class that was just confirmed swallows its neighbours. The regularisation is fixed, for there is too little
to choose it by at first; what the person takes home is solved as `vitkit teach` solves it.

Legend: L labelled photographs, N any, D width of the features, K classes that have a label.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation import fit_temperature

L2 = 1.0  # in mean eigenvalues: halves what an average direction says
COLDEST = 0.05  # bounds of the temperature, for labels that are too few to fit one
HOTTEST = 2.0


@dataclass(frozen=True, eq=False)
class Head:
    """A head, and its answers to the photographs that it was solved from."""

    classes: np.ndarray
    """The number of each of the K classes."""
    weight: Tensor
    """float32 (D, K)"""
    bias: Tensor
    """float32 (K,)"""
    left_out: Tensor
    """The scores of each photograph by a fit without it, float32 (L, K)."""
    temperature: float
    """What scores are divided by, so that their softmax is a probability."""

    def scores(self, features: np.ndarray) -> Tensor:
        """Features (N, D), of any precision -> float32 (N, K)."""
        return torch.from_numpy(np.asarray(features, np.float32)) @ self.weight + self.bias

    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores (N, K) -> (N, K)"""
        return (scores / self.temperature).softmax(1)


def unsureness(scores: Tensor) -> Tensor:
    """How unsure a head is, of its scores (N, K): 1 if two classes are as likely, 0 if one is certain.
    (N,)

    Scores of least squares lie between -1 and 1, and near each other until there is much to learn from. So
    while little is known everything is as unsure, as it should be; probabilities would be calibrated on too
    few labels to say so.
    """
    best = scores.topk(2).values
    return (1 - (best[:, 0] - best[:, 1]) / 2).clamp(0, 1)


def solve(features: np.ndarray, labels: np.ndarray, chosen: np.ndarray | None = None) -> Head:
    """The head of labelled photographs: features (L, D), numbers of two classes or more (L,).

    chosen: bool (L,), those that were confirmed because the model was sure of them. They say nothing about
    how sure it is of others, so the temperature is not fitted to them.
    """
    classes, rows = np.unique(labels, return_inverse=True)
    members = torch.from_numpy(rows)
    x = torch.from_numpy(np.asarray(features, np.float64))
    y = -torch.ones(len(x), len(classes), dtype=torch.float64)
    y[torch.arange(len(x)), members] = 1

    # Each class counts alike, all together as many as there are photographs
    counts = torch.bincount(members).double()
    weights = len(x) / len(classes) / counts[members]
    centre = weights @ x / len(x)
    mean = weights @ y / len(x)
    roots = weights.sqrt()[:, None]
    x = roots * (x - centre)
    targets = roots * (y - mean)

    # Least squares through the smaller of XXᵀ and XᵀX, and how much each photograph decides its own answer
    if len(x) < x.shape[1]:
        inverse, l2 = _inverse(x @ x.mT)
        weight = x.mT @ (inverse @ targets)
        own = 1 - l2 * inverse.diagonal()
    else:
        inverse, l2 = _inverse(x.mT @ x)
        weight = inverse @ (x.mT @ targets)
        own = ((x @ inverse) * x).sum(1)
    own = (own + weights / len(x))[:, None]

    # Without it the error is larger by what it decides
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
