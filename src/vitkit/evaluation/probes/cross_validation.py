"""Cross-validated predictions of least squares (`ridge.py`): exactly those of fits without each example, and
without fitting again.

An example is left out together with its fold (`folds.py`), and the l2 of its prediction is chosen by the
predictions of other folds.

Legend: N examples, V views of each, D width, K classes or outputs, R the directions in which features
vary, M folds, B the most examples of one, L strengths of l2.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation.probes.folds import Folds, folds_of
from vitkit.evaluation.probes.ridge import COLUMNS, Centred, centred_ridge, eigh, row_products

STRENGTHS = tuple(2.0**exponent for exponent in range(-16, 9, 2))  # of l2, in mean eigenvalues
STRENGTHS_OF_DISTILLED = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
EMPTY = 1e-12  # of the largest eigenvalue: along such directions nothing varies
AT_ONCE = 1 << 22  # numbers of the rows that are left out at once
TOGETHER = 1 << 16  # numbers of the rows of all l2 that are computed together; a cache holds them
FEW = 500  # examples, up to which l2 is chosen without those that are answered by it,
LEAST_KNOWN = 2  # folds with a target for an output, that a fit may be without one
PARTS = 5  # a fifth of the folds at a time


class _Directions(NamedTuple):
    """Weighted examples by the directions in which they vary."""

    eigenvalues: Tensor
    """(R,)"""
    projected: Tensor
    """XᵀY by direction, (R, K)."""
    rows: Tensor
    """Centred features times the root of their weight, (N, V, R)."""
    targets: Tensor
    """Centred targets times the same, (N, V, K)."""
    roots: Tensor
    """Of the weights, (N, V)."""
    asked: Tensor
    """Centred features of what is asked about, (N, R)."""
    target_mean: Tensor
    """(K,)"""


class LeaveOut:
    """A fit, and the exact answers to examples by fits without their folds.

    If there are more features than rows, it is computed from the products of the rows, which no fit
    of some of them, or of other weights, needs to compute again.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        folds: Folds | None = None,
        weights: Tensor | None = None,
        asked: Tensor | None = None,
        products: Tensor | None = None,
    ):
        """Features (N, D), or V views of each example (N, V, D), and what each output should be, (N, K):
        `targets` makes that of classes.

        folds: None leaves out each example alone.
        weights: what each example counts, (N,); None for all alike.
        asked: another view of each example, (N, D), which is answered in its place.
        products: of each two rows, those of `asked` last, around any point, as `row_products` has them;
            None computes them if they are needed.
        """
        self.x = x
        if x.ndim == 2:
            self.x = x[:, None]
        self.asked = asked
        self.targets = y.double()
        if folds is None:
            folds = folds_of(np.arange(len(x)))
        if weights is None:
            weights = torch.ones(len(x), dtype=torch.float64)
        self.folds = folds
        self.weights = weights
        if products is not None:
            self.products = products

    @cached_property
    def products(self) -> Tensor:
        """The products of each two rows: of the views of all examples, then of the images to
        classify."""
        rows = self.x.flatten(0, 1)
        if self.asked is not None:
            rows = torch.cat([rows, self.asked.to(rows)])
        return row_products(rows)

    @property
    def _is_wide(self) -> bool:
        """Whether there are more features than rows."""
        count, views, width = self.x.shape
        return count * views < width

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,) of the fit to all."""
        if not self._is_wide:
            return self._fit(self.weights).head(l2)
        products, roots = self._centred_products(self.weights)
        of_rows = products[: len(roots)] * roots[:, None] * roots
        of_rows.diagonal().add_(l2)
        targets, target_mean = self._centred_targets(self.weights)

        # W = Xᵀ (XXᵀ + l2 I)⁻¹ Y, with rows and targets times the roots of their weights
        factor = torch.linalg.cholesky(of_rows)
        y = targets.flatten(0, 1) * roots[:, None]
        shares = roots[:, None] * torch.cholesky_solve(y, factor)  # (N V, K)
        share_of_mean = roots.square() / roots.square().sum()
        weights = []
        bias = target_mean
        for columns in self.x.flatten(0, 1).split(COLUMNS, 1):
            columns = columns.double()
            mean = share_of_mean @ columns
            weights.append(shares.mT @ (columns - mean))
            bias = bias - weights[-1] @ mean
        return torch.cat(weights, 1), bias

    @cached_property
    def scale(self) -> float:
        """The mean eigenvalue of the fit, which can be computed without a fit."""
        count, views, width = self.x.shape
        if self._is_wide:
            products, roots = self._centred_products(self.weights)
            squares = (products.diagonal() * roots.square()).sum().item()
        else:
            x = self.x.double()
            weights = self.weights[:, None, None].expand(count, views, 1)
            mean = (weights * x).sum((0, 1)) / weights.sum()
            squares = (weights * (x - mean).square()).sum().item()
        return squares / min(count * views, width) or 1.0

    def scores(self, l2: float) -> Tensor:
        """The scores of each example by the fit without its fold: (N, K)."""
        return self._scores(torch.tensor([l2], dtype=torch.float64))[0]

    def scores_by(self, l2s: Sequence[float]) -> Iterator[Tensor]:
        """Yields the cross-validated scores, (N, K), for each l2. With few examples, many values of l2
        are computed in one batch, which takes hardly longer than one value."""
        d = self._directions
        numbers = max(d.rows.numel(), d.targets.numel())
        for some in torch.tensor(l2s, dtype=torch.float64).split(max(1, TOGETHER // numbers)):
            yield from self._scores(some)

    def _scores(self, l2s: Tensor) -> Tensor:
        """The scores of each example by the fits without its fold: (L,) -> (L, N, K).

        With H the part of the hat matrix of the examples of a fold, and h its rows of what is asked,
        they are the fitted ones less h (1 - H)⁻¹ (y - fitted) (for one example Allen 1974).
        """
        d = self._directions
        views = d.rows.shape[1]
        total = d.roots.square().sum()
        shrunk = 1 / (d.eigenvalues + l2s[:, None])  # (L, R)
        weights = d.projected * shrunk[..., None]  # (L, R, K)
        residuals = d.targets - d.rows @ weights[:, None]  # (L, N, V, K)
        fitted = d.asked @ weights + d.target_mean  # (L, N, K)
        scores = torch.empty_like(fitted)
        all_rows = d.rows * shrunk.sqrt()[:, None, None]
        all_asked = d.asked * shrunk.sqrt()[:, None]

        longest = self.folds.members.shape[1] * views
        step = max(1, AT_ONCE // (len(l2s) * longest * max(shrunk.shape[1], longest)))
        for start in range(0, len(self.folds.members), step):
            members = self.folds.members[start : start + step]  # (m, B)
            is_there = (members >= 0).double()
            rows = all_rows[:, members].flatten(2, 3)  # (L, m, B V, R)
            roots = (d.roots[members] * is_there[..., None]).flatten(1)  # (m, B V)
            there = is_there.repeat_interleave(views, 1)

            # y - fitted by the fit without them
            hat = (rows @ rows.mT) * there[:, :, None] * there[:, None]
            hat = hat + roots[:, :, None] * roots[:, None] / total
            one = torch.eye(hat.shape[-1], dtype=hat.dtype)
            left = residuals[:, members].flatten(2, 3) * there[..., None]
            change = torch.linalg.solve(one - hat, left)  # (L, m, B V, K)

            # What is asked about
            towards = (all_asked[:, members] @ rows.mT) * there[:, None]  # (L, m, B, B V)
            towards = towards + roots[:, None] / total
            answers = fitted[:, members] - towards @ change
            answered = self.folds.answered[start : start + step]
            scores[:, members[answered]] = answers[:, answered]
        return scores

    def of(self, examples: Tensor) -> "LeaveOut":
        """The fits restricted to some of the examples, (n,), which must be whole folds."""
        asked = None if self.asked is None else self.asked[examples]
        folds = self.folds.of(examples)
        x, y, weights = self.x[examples], self.targets[examples], self.weights[examples]
        products = None
        if self._is_wide:
            count, views, _ = self.x.shape
            rows = (views * examples[:, None] + torch.arange(views)).flatten()
            if asked is not None:
                rows = torch.cat([rows, views * count + examples])
            products = self.products[rows[:, None], rows]
        return LeaveOut(x, y, folds, weights, asked, products)

    def _fit(self, weights: Tensor) -> Centred:
        """The fit to all views, by the weights of their examples."""
        views = self.x.shape[1]
        targets = self.targets.repeat_interleave(views, 0)
        return centred_ridge(
            self.x.double().flatten(0, 1), targets, weights.repeat_interleave(views)
        )

    def _centred_products(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The products of all rows, and of what is asked about, with the rows, around the weighted mean:
        (N V, N V) or (N V + N, N V). And the roots of the rows' weights, (N V,)."""
        rows = weights.repeat_interleave(self.x.shape[1])
        share = rows / rows.sum()
        products = self.products[:, : len(rows)]
        with_mean = products @ share  # (N V,) or (N V + N,)
        mean_square = share @ with_mean[: len(rows)]
        return products - with_mean[:, None] - with_mean[: len(rows)] + mean_square, rows.sqrt()

    def _centred_targets(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The targets of all views around their mean, (N, V, K), and the mean, (K,)."""
        mean = weights @ self.targets / weights.sum()
        targets = (self.targets - mean)[:, None].expand(-1, self.x.shape[1], -1)
        return targets, mean

    @cached_property
    def _directions(self) -> _Directions:
        """Of a fit in which, without a fold, each class counts for as much as with it."""
        weights = self.weights * self.folds.more
        if self._is_wide:
            eigenvalues, rows, asked = self._by_products(weights)
        else:
            eigenvalues, rows, asked = self._by_features(weights)
        targets, target_mean = self._centred_targets(weights)
        roots = weights.sqrt()[:, None].expand(self.x.shape[:2])
        rows = rows * roots[..., None]
        targets = targets * roots[..., None]
        projected = rows.flatten(0, 1).mT @ targets.flatten(0, 1)
        return _Directions(eigenvalues, projected, rows, targets, roots, asked, target_mean)

    def _by_features(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The eigenvalues of XᵀX, those that are not 0, and by these directions all rows, (N, V, R), and
        what is asked about, (N, R)."""
        fit = self._fit(weights)
        eigenvalues = fit.ridge.eigenvalues
        varies = eigenvalues > EMPTY * eigenvalues.max()
        basis = fit.ridge.basis[:, varies]
        rows = (self.x.double() - fit.mean) @ basis
        asked = rows[:, 0]
        if self.asked is not None:
            asked = (self.asked.double() - fit.mean) @ basis
        return eigenvalues[varies], rows, asked

    def _by_products(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Principal directions from XXᵀ = U diag(e) Uᵀ: they are XᵀU / √e."""
        products, roots = self._centred_products(weights)
        count = len(roots)
        eigenvalues, u = eigh(products[:count] * roots[:, None] * roots)
        varies = eigenvalues > EMPTY * eigenvalues.max()
        eigenvalues = eigenvalues[varies]
        by_direction = products @ (roots[:, None] * u[:, varies] / eigenvalues.sqrt())
        rows = by_direction[:count].unflatten(0, self.x.shape[:2])
        asked = rows[:, 0]
        if self.asked is not None:
            asked = by_direction[count:]
        return eigenvalues, rows, asked


class LeaveOutKnown:
    """The fits of several outputs, each to the examples whose target is known for it, as one LeaveOut.

    Outputs that are known for the same examples have a fit together, in which the others weigh nothing.
    """

    def __init__(self, fits: Sequence[tuple[Tensor, LeaveOut]], targets: Tensor, folds: Folds):
        """fits: the outputs of each, (k,), and the fit. targets: (N, K). folds: of all examples."""
        self.fits = fits
        self.targets = targets
        self.folds = folds

    @classmethod
    def of_targets(
        cls, x: Tensor, targets: Tensor, folds: Folds, products: Tensor | None = None
    ) -> "LeaveOutKnown":
        """Features (N, D), and targets (N, K), NaN where unknown. The other arguments are those of
        LeaveOut."""
        patterns, pattern_of = targets.isnan().mT.unique(dim=0, return_inverse=True)
        targets = targets.nan_to_num(0)
        fits = []
        for number, unknown in enumerate(patterns):
            outputs = torch.where(pattern_of == number)[0]
            fit = LeaveOut(x, targets[:, outputs], folds, (~unknown).double(), products=products)
            if fit._is_wide:
                products = fit.products  # computed once for all
            fits.append((outputs, fit))
        return cls(fits, targets, folds)

    @property
    def scale(self) -> float:
        """The mean of the fits' scales."""
        return sum(fit.scale for _, fit in self.fits) / len(self.fits)

    def scores_by(self, l2s: Sequence[float]) -> Iterator[Tensor]:
        """The scores of each example by the fits without its fold, (N, K), by each l2 in turn."""
        for scores in zip(*(fit.scores_by(l2s) for _, fit in self.fits), strict=True):
            together = torch.empty_like(self.targets)
            for (outputs, _), some in zip(self.fits, scores, strict=True):
                together[:, outputs] = some
            yield together

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,) of the fits to all that is known."""
        heads = [fit.head(l2) for _, fit in self.fits]
        order = torch.cat([outputs for outputs, _ in self.fits]).argsort()
        weights = torch.cat([weight for weight, _ in heads])
        biases = torch.cat([bias for _, bias in heads])
        return weights[order], biases[order]

    def of(self, examples: Tensor) -> "LeaveOutKnown":
        """The fits restricted to some examples, (n,), whole folds. An output that hardly any of them has a
        target for is answered with what is there for it: nothing."""
        fits = []
        for outputs, fit in self.fits:
            some = fit.of(examples)
            if len(some.folds.fold[some.weights > 0].unique()) < LEAST_KNOWN:
                some.weights = torch.ones_like(some.weights)
            fits.append((outputs, some))
        return LeaveOutKnown(fits, self.targets[examples], self.folds.of(examples))


# The l2 whose left-out predictions are the best


Scale = TypeVar("Scale")


class Scored(NamedTuple, Generic[Scale]):
    """Leave-one-out predictions, scaled to logits or to the unit of the targets."""

    losses: Tensor
    """Of each example, (N,)."""
    predictions: Tensor
    """(N, K)"""
    scale: Scale
    """What brought them there: a temperature, a line; None for scores that stay as they are."""


Judge = Callable[[Tensor, Tensor], Scored[Scale]]
"""Judges left-out scores (n, K) of the examples with these numbers (n,)."""


def best_left_out(
    fit: LeaveOut | LeaveOutKnown, judge: Judge[Scale]
) -> tuple[float, Scored[Scale]]:
    """The l2 whose leave-one-out predictions have the lowest loss; and these answers, judged.

    No answer has a say in the l2 that it is given by, or it would be too good: of few examples, those of
    a fifth of the folds are by the l2 that all others choose among themselves; of many, where it hardly
    matters, those of a fold by the one that the answers of all other folds choose.
    """
    everything = torch.arange(len(fit.targets))
    losses, scales = _losses(fit, judge, everything)
    chosen = int(losses.sum(1).argmin())
    folds = fit.folds.fold
    if len(folds) <= FEW and len(fit.folds.members) > 2:
        choices = torch.empty_like(folds)
        for part in range(PARTS):
            own = folds % PARTS == part
            if own.any():
                inside = torch.where(~own)[0]
                others, _ = _losses(fit.of(inside), judge, inside)
                choices[own] = others.sum(1).argmin()
    else:
        of_folds = torch.zeros(len(STRENGTHS), len(fit.folds.members), dtype=losses.dtype)
        of_folds.index_add_(1, folds, losses)
        choices = (losses.sum(1, keepdim=True) - of_folds).argmin(0)[folds]

    predictions = torch.empty_like(fit.targets)
    own_losses = torch.empty_like(losses[0])
    numbers = choices.unique().tolist()
    for number, scores in zip(numbers, _scores_by(fit, numbers), strict=True):
        found = judge(scores, everything)
        own = choices == number
        predictions[own] = found.predictions[own]
        own_losses[own] = found.losses[own]
    return STRENGTHS[chosen] * fit.scale, Scored(own_losses, predictions, scales[chosen])


def _losses(
    fit: LeaveOut | LeaveOutKnown, judge: Judge[Scale], examples: Tensor
) -> tuple[Tensor, list[Scale]]:
    """The loss of each left-out answer by each l2, (L, N), and what brought the scores there."""
    losses = []
    scales = []
    for scores in _scores_by(fit, range(len(STRENGTHS))):
        judged = judge(scores, examples)
        losses.append(judged.losses)
        scales.append(judged.scale)
    return torch.stack(losses), scales


def _scores_by(fit: LeaveOut | LeaveOutKnown, numbers: Iterable[int]) -> Iterator[Tensor]:
    """The scores (N, K) by each of the l2 with these numbers."""
    return fit.scores_by([STRENGTHS[number] * fit.scale for number in numbers])


def distilled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The linear map of features (N, D) that is nearest to numbers (N, K), as another model's answers:
    weights (K, D) and biases (K,). Of a few strengths of its regularisation, it has the one whose fits
    without an example come nearest."""
    fit = LeaveOut(x, y)
    strengths = [strength * fit.scale for strength in STRENGTHS_OF_DISTILLED]
    errors = [(scores - y).square().mean().item() for scores in fit.scores_by(strengths)]
    return fit.head(strengths[int(np.argmin(errors))])
