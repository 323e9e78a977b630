"""Regularised least squares in closed form (Section 4.1): every l2 from one decomposition, and examples
added and taken away exactly.

Numbers are float64: a small l2 is added to sums over all examples. Targets are those of the paper:
1 for an example's class, -1 for the others.

Legend: N examples, D width, K classes, R the smaller of N and D.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = 4_096  # columns of features that are float64 at a time


class Ridge(NamedTuple):
    """The weights W = (XᵀX + l2 I)⁻¹ XᵀY for every l2."""

    basis: Tensor
    """(D, R)"""
    eigenvalues: Tensor
    """Of XᵀX, those that may differ from 0: (R,)."""
    projected: Tensor
    """(R, K), so that W = basis (projected / (eigenvalues + l2))."""

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

    Those of float32 are LAPACK's ssyevd, which the official few-shot code has on a CPU: its last
    digits decide images whose two best classes are close.
    """
    if symmetric.dtype != torch.float32:
        return torch.linalg.eigh(symmetric)
    from scipy.linalg import eigh as lapack

    eigenvalues, vectors = lapack(symmetric.numpy(), driver="evd")
    return torch.from_numpy(eigenvalues), torch.from_numpy(vectors)


@dataclass(frozen=True, eq=False)
class Centred:
    """Least squares with an intercept, which is not regularised: scores = x W + b."""

    ridge: Ridge
    """Of centred features and targets."""
    mean: Tensor
    """Of the features, (D,)."""
    target_mean: Tensor
    """(K,)"""

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,)."""
        weights = self.ridge.weights(l2)
        return weights.mT, self.target_mean - self.mean @ weights

    @cached_property
    def scale(self) -> float:
        """The mean eigenvalue: an l2 of this size halves what an average direction says. 1 if all
        features are the same."""
        return self.ridge.eigenvalues.mean().item() or 1.0


def centred_ridge(x: Tensor, y: Tensor, weights: Tensor) -> Centred:
    """The fit of float64 features (N, D), each of which counts its weight (N,), to y (N, K)."""
    total = weights.sum()
    mean = weights @ x / total
    target_mean = weights @ y / total
    root = weights.sqrt()[:, None]
    return Centred(ridge(root * (x - mean), root * (y - target_mean)), mean, target_mean)


def row_products(x: Tensor) -> Tensor:
    """The products of each two rows of features (N, D), around their mean: float64 (N, N)."""
    total = np.zeros((len(x), len(x)))
    for columns in x.split(COLUMNS, 1):
        columns = columns.double()
        centred = (columns - columns.mean(0)).numpy()
        total += centred @ centred.T  # of which NumPy computes one half
    return torch.from_numpy(total)


@dataclass(frozen=True, eq=False)
class Moments:
    """All that least squares must know of examples: sums over them, float64.

    Those of more examples are added, those of examples to forget are subtracted; what is fitted
    then is what a fit from the beginning would give, up to rounding.
    """

    counts: Tensor
    """Examples of each class, (K,)."""
    sums: Tensor
    """Sum of the features of each class, (K, D)."""
    products: Tensor
    """XᵀX, (D, D)."""

    @classmethod
    def of(cls, x: Tensor, classes: Tensor, count: int) -> "Moments":
        """Features (N, D) and classes (N,) of `count` classes in all."""
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
        # The targets are 2 [the class is k] - 1, and the ones fall away: centred X sums to 0
        xy = 2 * (self.sums.mT - mean[:, None] * self.counts)  # (D, K)
        return Centred(from_products(xx, xy), mean, target_mean)


def targets(classes: Tensor, count: int) -> Tensor:
    """Classes (N,) -> 1 for an example's class and -1 for the others, float64 (N, count)."""
    y = torch.full((len(classes), count), -1.0, dtype=torch.float64)
    return y.scatter_(1, classes[:, None], 1.0)
