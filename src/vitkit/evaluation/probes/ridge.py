"""Ridge regression in closed form (Section 4.1): every l2 from one decomposition, and exact addition and
removal of examples.

Numbers are float64, because a small l2 is added to sums over all examples. Targets are those of the paper:
1 for an example's class, -1 for the others.

Legend: N examples, D width, K classes, R the smaller of N and D.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = 4_096  # columns of features that are converted to float64 at a time


class Ridge(NamedTuple):
    """The weights W = (XᵀX + l2 I)⁻¹ XᵀY for every l2."""

    basis: Tensor
    """Eigenvectors of XᵀX, or multiples of them, (D, R)."""
    eigenvalues: Tensor
    """Eigenvalues of XᵀX that may differ from 0, (R,)."""
    projected: Tensor
    """Projection of XᵀY, (R, K), so that W = basis (projected / (eigenvalues + l2))."""

    def weights(self, l2: float) -> Tensor:
        """W, (D, K)."""
        return (self.basis / (self.eigenvalues + l2)) @ self.projected

    def coordinates(self, l2: float) -> Tensor:
        """W in the basis, (R, K)."""
        return self.projected / (self.eigenvalues + l2)[:, None]


def ridge(x: Tensor, y: Tensor) -> Ridge:
    """The fit of X, (N, D), to Y, (N, K), through the smaller of XᵀX and XXᵀ."""
    if len(x) >= x.shape[1]:
        return from_products(x.mT @ x, x.mT @ y)
    # W = Xᵀ (XXᵀ + l2 I)⁻¹ Y, XXᵀ = U diag(e) Uᵀ
    eigenvalues, u = eigh(x @ x.mT)
    return Ridge(x.mT @ u, eigenvalues.clamp(min=0), u.mT @ y)


def from_products(xx: Tensor, xy: Tensor) -> Ridge:
    """The fit from XᵀX, (D, D), and XᵀY, (D, K)."""
    eigenvalues, q = eigh(xx)
    return Ridge(q, eigenvalues.clamp(min=0), q.mT @ xy)


def eigh(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors of a symmetric matrix.

    In float32 they are computed by LAPACK's ssyevd, as in the official few-shot code on a CPU: its last
    digits decide between classes with close scores.
    """
    if symmetric.dtype != torch.float32:
        return torch.linalg.eigh(symmetric)
    from scipy.linalg import eigh as lapack

    eigenvalues, vectors = lapack(symmetric.numpy(), driver="evd")
    return torch.from_numpy(eigenvalues), torch.from_numpy(vectors)


@dataclass(frozen=True, eq=False)
class Centred:
    """Ridge regression with an intercept, which is not regularised: scores = x W + b."""

    ridge: Ridge
    """The fit of centred targets to centred features."""
    mean: Tensor
    """Mean of the features, (D,)."""
    target_mean: Tensor
    """Mean of the targets, (K,)."""

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,)."""
        weights = self.ridge.weights(l2)
        return weights.mT, self.target_mean - self.mean @ weights

    @cached_property
    def scale(self) -> float:
        """The mean eigenvalue: an l2 of this size halves the coefficient of an average direction. 1 if all
        features are equal."""
        return self.ridge.eigenvalues.mean().item() or 1.0


def centred_ridge(x: Tensor, y: Tensor, weights: Tensor) -> Centred:
    """The weighted fit of y (N, K) to features (N, D), with weights (N,), all float64."""
    total = weights.sum()
    mean = weights @ x / total
    target_mean = weights @ y / total
    root = weights.sqrt()[:, None]
    return Centred(ridge(root * (x - mean), root * (y - target_mean)), mean, target_mean)


def row_products(x: Tensor) -> Tensor:
    """The Gram matrix of the centred rows of features (N, D): float64 (N, N)."""
    total = np.zeros((len(x), len(x)))
    for columns in x.split(COLUMNS, 1):
        columns = columns.double()
        centred = (columns - columns.mean(0)).numpy()
        total += centred @ centred.T  # NumPy computes one half of this symmetric product
    return torch.from_numpy(total)


@dataclass(frozen=True, eq=False)
class Moments:
    """The sufficient statistics of examples for least squares: sums over them, float64.

    Moments of further examples can be added, and of examples to remove subtracted; the fit equals a fit
    from scratch, up to rounding.
    """

    counts: Tensor
    """Number of examples of each class, (K,)."""
    sums: Tensor
    """Sum of the features of each class, (K, D)."""
    products: Tensor
    """XᵀX, (D, D)."""

    @classmethod
    def of(cls, x: Tensor, classes: Tensor, count: int) -> "Moments":
        """The moments of features (N, D) with classes (N,) of `count` in all."""
        x = x.double()
        sums = torch.zeros(count, x.shape[1], dtype=torch.float64).index_add_(0, classes, x)
        return cls(torch.bincount(classes, minlength=count).double(), sums, x.mT @ x)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts + other.counts, self.sums + other.sums, self.products + other.products
        )

    def __sub__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts - other.counts, self.sums - other.sums, self.products - other.products
        )

    def centred(self) -> Centred:
        """The fit with an intercept, which is not regularised."""
        count = self.counts.sum()
        mean = self.sums.sum(0) / count  # (D,)
        target_mean = 2 * self.counts / count - 1  # (K,)
        xx = self.products - count * torch.outer(mean, mean)
        # The targets are 2 [the class is k] - 1; the -1 drops out, because centred X sums to 0
        xy = 2 * (self.sums.mT - mean[:, None] * self.counts)  # (D, K)
        return Centred(from_products(xx, xy), mean, target_mean)


def targets(classes: Tensor, count: int) -> Tensor:
    """Classes (N,) -> 1 for an example's class and -1 for the others, float64 (N, count)."""
    y = torch.full((len(classes), count), -1.0, dtype=torch.float64)
    return y.scatter_(1, classes[:, None], 1.0)
