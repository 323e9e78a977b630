"""Regularised least squares in closed form (Section 4.1): every l2 from one decomposition, the exact
answer to each example by a fit without it, and examples added and taken away exactly.

Numbers are float64: a small l2 is added to sums over all examples. Targets are those of the paper:
1 for an example's class, -1 for the others.

Legend: N examples, D width, K classes, R the smaller of N and D.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.evaluation.metrics.calibration import fit_temperature

STRENGTHS = tuple(2.0**exponent for exponent in range(-16, 9, 2))  # of l2, in mean eigenvalues
Outcome = TypeVar("Outcome")


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
    """The fit by XᵀX, (D, D), and XᵀY, (D, K)."""
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

    def centred(self) -> "Centred":
        """The fit with an intercept, which is not regularised."""
        count = self.counts.sum()
        mean = self.sums.sum(0) / count  # (D,)
        target_mean = 2 * self.counts / count - 1  # (K,)
        xx = self.products - count * torch.outer(mean, mean)
        # The targets are 2 [the class is k] - 1, and the ones fall away: centred X sums to 0
        xy = 2 * (self.sums.mT - mean[:, None] * self.counts)  # (D, K)
        return Centred(from_products(xx, xy), mean, target_mean)


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


# Left-out answers


class LeaveOneOut:
    """The examples of a fit, and the exact answer to each by a fit of all others."""

    def __init__(self, x: Tensor, y: Tensor):
        """Features (N, D), and what each output should be (N, K): `targets` makes it of classes."""
        x = x.double()
        mean = x.mean(0)
        x = x - mean
        self.targets = y.double()  # (N, K)
        target_mean = self.targets.mean(0)
        self.fit = Centred(ridge(x, self.targets - target_mean), mean, target_mean)
        self.rows = x @ self.fit.ridge.basis  # (N, R)
        # Of the hat matrix's diagonal, x_i (XᵀX + l2 I)⁻¹ x_iᵀ, each direction's part of it times
        # (eigenvalue + l2). If N < D, rows = U diag(e), and U² e is rows² / e
        self.parts = self.rows.square()
        if len(x) < x.shape[1]:
            e = self.fit.ridge.eigenvalues
            self.parts = torch.where(e > 0, self.parts / e.clamp(min=1e-300), 0)

    @property
    def scale(self) -> float:
        """The mean eigenvalue."""
        return self.fit.scale

    def scores(self, l2: float) -> Tensor:
        """The scores of each example by the fit without it: (N, K).

        With h its leverage, they are y - (y - fitted) / (1 - h): nothing is fitted again (Allen
        1974).
        """
        fitted = self.rows @ self.fit.ridge.coordinates(l2) + self.fit.target_mean
        leverage = self.parts @ (1 / (self.fit.ridge.eigenvalues + l2)) + 1 / len(self.rows)
        return self.targets - (self.targets - fitted) / (1 - leverage)[:, None]


class LeaveImagesOut:
    """A fit of several views of each image, and the exact answer to another view of it by a fit of
    all other images.

    Legend here: N images, V views of each that are learned from.
    """

    def __init__(self, x: Tensor, y: Tensor, asked: Tensor):
        """Learned views (N, V, D), the outputs for each image (N, K), and asked features (N, D)."""
        images, views, width = x.shape
        rows = x.double().reshape(-1, width)
        mean = rows.mean(0)
        y = y.double()
        self.target_mean = y.mean(0)  # (K,)
        self.targets = y[:, None].expand(-1, views, -1)  # (N, V, K)

        # XᵀX = Q diag(e) Qᵀ, without directions in which nothing varies
        each = (self.targets - self.target_mean).reshape(len(rows), -1)
        fit = ridge(rows - mean, each)
        varies = fit.eigenvalues > 1e-12 * fit.eigenvalues.max()
        basis = fit.basis[:, varies]
        basis = basis / basis.norm(dim=0)  # of fewer rows than columns it is Xᵀ U
        self.eigenvalues = fit.eigenvalues[varies]  # (R,)
        self.scale = 1.0
        if len(self.eigenvalues):
            self.scale = self.eigenvalues.mean().item()
        self.rows = (rows - mean) @ basis  # (N V, R)
        self.projected = self.rows.mT @ each  # QᵀXᵀY, (R, K)
        self.rows = self.rows.reshape(images, views, -1)
        self.asked = (asked.double() - mean) @ basis  # (N, R)

    def scores(self, l2: float) -> Tensor:
        """The scores of what is asked about, each by the fit without its image: (N, K).

        With H the part of the hat matrix of an image's own views, and h its row of what is asked,
        they are the fitted ones less h (1 - H)⁻¹ (y - fitted): nothing is fitted again.
        """
        images, views, _ = self.rows.shape
        shrunk = 1 / (self.eigenvalues + l2)  # (R,)
        intercept = 1 / (images * views)
        weighted = self.rows * shrunk  # (N, V, R)
        coordinates = self.projected * shrunk[:, None]  # (R, K)
        residuals = self.targets - self.rows @ coordinates - self.target_mean  # (N, V, K)
        own = weighted @ self.rows.mT + intercept  # (N, V, V)
        towards = (weighted @ self.asked[:, :, None])[..., 0] + intercept  # (N, V)
        one = torch.eye(views, dtype=own.dtype)
        change = torch.linalg.solve(one - own, residuals)  # (N, V, K)
        fitted = self.asked @ coordinates + self.target_mean
        return fitted - (towards[:, None] @ change)[:, 0]


def best_left_out(
    fit: LeaveOneOut | LeaveImagesOut, judge: Callable[[Tensor], tuple[float, Outcome]]
) -> tuple[float, Outcome]:
    """The l2 whose left-out answers have the least loss, and what `judge` has made of them: from left-out
    scores (N, K), it returns their loss and whatever else is wanted of the best."""
    chosen = None
    least = torch.inf
    for strength in STRENGTHS:
        l2 = strength * fit.scale
        loss, outcome = judge(fit.scores(l2))
        if loss < least:
            least = loss
            chosen = (l2, outcome)
    return chosen


def best_for_classes(
    fit: LeaveOneOut | LeaveImagesOut, classes: Tensor
) -> tuple[float, float, Tensor]:
    """For one class each, (N,): the l2 whose left-out answers have the least cross-entropy, each l2 at
    its best temperature; that temperature, and the logits (N, K)."""
    temperature = None

    def judge(scores: Tensor) -> tuple[float, tuple[float, Tensor]]:
        nonlocal temperature  # that of the l2 before is near
        scores = with_whole_classes(scores, classes)
        temperature = fit_temperature(scores, classes, temperature)
        logits = scores / temperature
        return F.cross_entropy(logits, classes).item(), (temperature, logits)

    l2, (temperature, logits) = best_left_out(fit, judge)
    return l2, temperature, logits


def with_whole_classes(scores: Tensor, classes: Tensor) -> Tensor:
    """Left-out scores (N, K) of least squares, whose targets are 1 for an example's class and -1 for
    the others, as if the other examples of its class counted for as much as the whole class.

    Where one of four is left out, its class has lost a quarter of its weight and the others nothing,
    so the example would be given to another class more often than a new one is. In its own column
    each of the n - 1 others counts n / (n - 1) times: least squares are linear in their targets, so
    the score, counted from 0, is that many times as large. The only example of a class keeps its
    score.
    """
    counts = classes.bincount(minlength=scores.shape[1]).double()  # (K,)
    n = counts[classes]  # (N,)
    more = torch.where(n > 1, n / (n - 1).clamp(min=1), 1)
    scores = (scores + 1) / 2  # for targets of 1 and 0
    own = scores.gather(1, classes[:, None])
    scores = scores.scatter(1, classes[:, None], more[:, None] * own)

    # The mean score of a class is now its n of N - 1; with the example it is n of N
    count = len(classes)
    scores = scores - counts / (count * (count - 1))
    return 2 * scores - 1


def targets(classes: Tensor, count: int) -> Tensor:
    """Classes (N,) -> 1 for an example's class and -1 for the others, float64 (N, count)."""
    y = torch.full((len(classes), count), -1.0, dtype=torch.float64)
    return y.scatter_(1, classes[:, None], 1.0)
