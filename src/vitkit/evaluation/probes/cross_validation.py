"""Exact cross-validated predictions of ridge regression (`ridge.py`), in closed form instead of by refitting.

An example is left out together with its fold (`folds.py`), and the l2 of its prediction is chosen by the
predictions of other folds.

Legend: N examples, V views of each, D width, K classes or outputs, R principal directions of the features,
M folds, B examples of the largest fold, L values of l2.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation.probes.folds import Folds, folds_of
from vitkit.evaluation.probes.ridge import COLUMNS, Centred, centred_ridge, eigh, row_products

# Values of l2, in mean eigenvalues
STRENGTHS = tuple(2.0**exponent for exponent in range(-16, 9, 2))
STRENGTHS_OF_DISTILLED = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
EMPTY = 1e-12  # directions with a smaller share of the largest eigenvalue are dropped
AT_ONCE = 1 << 22  # numbers in the rows of the folds that are computed in one batch
# Numbers in the rows of the l2 that are computed in one batch; they fit into a cache
TOGETHER = 1 << 16
FEW = 500  # number of examples up to which the choice of l2 is cross-validated in PARTS parts
PARTS = 5
# Smallest number of folds with a target for an output, so that each can be left out
LEAST_KNOWN = 2


class _Directions(NamedTuple):
    """Weighted examples in the basis of their principal directions."""

    eigenvalues: Tensor
    """Eigenvalues of XᵀX, (R,)."""
    projected: Tensor
    """XᵀY in this basis, (R, K)."""
    rows: Tensor
    """Centred features times the roots of their weights, (N, V, R)."""
    targets: Tensor
    """Centred targets times the roots of their weights, (N, V, K)."""
    roots: Tensor
    """Square roots of the weights, (N, V)."""
    queries: Tensor
    """Centred features of the views to predict, (N, R)."""
    target_mean: Tensor
    """Weighted mean of the targets, (K,)."""


class LeaveOut:
    """A ridge regression, and the exact predictions for each example by a fit without its fold.

    If there are more features than rows, both are computed from the Gram matrix of the rows, which is
    computed once for all subsets and weights.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        folds: Folds | None = None,
        weights: Tensor | None = None,
        queries: Tensor | None = None,
        products: Tensor | None = None,
    ):
        """
        x: features (N, D), or those of V views of each example (N, V, D).
        y: target of each output, (N, K); `targets` makes them from classes.
        folds: None leaves out each example alone.
        weights: weight of each example, (N,); None for equal weights.
        queries: another view of each example, (N, D), which is predicted instead of the first one.
        products: Gram matrix of all rows of `x`, then of `queries`, as `row_products` returns it; None
            computes it if it is needed.
        """
        self.x = x
        if x.ndim == 2:
            self.x = x[:, None]
        self.queries = queries
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
        """The Gram matrix of the views of all examples, then of the queries."""
        rows = self.x.flatten(0, 1)
        if self.queries is not None:
            rows = torch.cat([rows, self.queries.to(rows)])
        return row_products(rows)

    @property
    def _is_wide(self) -> bool:
        """Whether there are more features than rows."""
        count, views, width = self.x.shape
        return count * views < width

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,) of the fit to all examples."""
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
        """The mean eigenvalue, from the trace: no fit is needed."""
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

        With H the block of the hat matrix of a fold's examples, and h the hat matrix's rows of the queries,
        they are the fitted scores minus h (1 - H)⁻¹ (y - fitted) (Allen 1974 for single examples).
        """
        d = self._directions
        views = d.rows.shape[1]
        total = d.roots.square().sum()
        shrunk = 1 / (d.eigenvalues + l2s[:, None])  # (L, R)
        weights = d.projected * shrunk[..., None]  # (L, R, K)
        residuals = d.targets - d.rows @ weights[:, None]  # (L, N, V, K)
        fitted = d.queries @ weights + d.target_mean  # (L, N, K)
        scores = torch.empty_like(fitted)
        all_rows = d.rows * shrunk.sqrt()[:, None, None]
        all_queries = d.queries * shrunk.sqrt()[:, None]

        longest = self.folds.members.shape[1] * views
        step = max(1, AT_ONCE // (len(l2s) * longest * max(shrunk.shape[1], longest)))
        for start in range(0, len(self.folds.members), step):
            members = self.folds.members[start : start + step]  # (m, B)
            is_there = (members >= 0).double()
            rows = all_rows[:, members].flatten(2, 3)  # (L, m, B V, R)
            roots = (d.roots[members] * is_there[..., None]).flatten(1)  # (m, B V)
            there = is_there.repeat_interleave(views, 1)

            # y - fitted, by the fit without the fold
            hat = (rows @ rows.mT) * there[:, :, None] * there[:, None]
            hat = hat + roots[:, :, None] * roots[:, None] / total
            one = torch.eye(hat.shape[-1], dtype=hat.dtype)
            left = residuals[:, members].flatten(2, 3) * there[..., None]
            change = torch.linalg.solve(one - hat, left)  # (L, m, B V, K)

            # The queries' scores
            towards = (all_queries[:, members] @ rows.mT) * there[:, None]  # (L, m, B, B V)
            towards = towards + roots[:, None] / total
            answers = fitted[:, members] - towards @ change
            answered = self.folds.answered[start : start + step]
            scores[:, members[answered]] = answers[:, answered]
        return scores

    def of(self, examples: Tensor) -> "LeaveOut":
        """The fit restricted to some of the examples, (n,), which must be whole folds."""
        queries = None if self.queries is None else self.queries[examples]
        folds = self.folds.of(examples)
        x, y, weights = self.x[examples], self.targets[examples], self.weights[examples]
        products = None
        if self._is_wide:
            count, views, _ = self.x.shape
            rows = (views * examples[:, None] + torch.arange(views)).flatten()
            if queries is not None:
                rows = torch.cat([rows, views * count + examples])
            products = self.products[rows[:, None], rows]
        return LeaveOut(x, y, folds, weights, queries, products)

    def _fit(self, weights: Tensor) -> Centred:
        """The fit to all views, with these weights of their examples."""
        views = self.x.shape[1]
        targets = self.targets.repeat_interleave(views, 0)
        return centred_ridge(
            self.x.double().flatten(0, 1), targets, weights.repeat_interleave(views)
        )

    def _centred_products(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The Gram matrix of all rows, and of the queries with the rows, centred at the weighted mean:
        (N V, N V) or (N V + N, N V); and the square roots of the rows' weights, (N V,)."""
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
        """The directions of a fit in which leaving out a fold does not change the weights of the classes."""
        weights = self.weights * self.folds.more
        if self._is_wide:
            eigenvalues, rows, queries = self._by_products(weights)
        else:
            eigenvalues, rows, queries = self._by_features(weights)
        targets, target_mean = self._centred_targets(weights)
        roots = weights.sqrt()[:, None].expand(self.x.shape[:2])
        rows = rows * roots[..., None]
        targets = targets * roots[..., None]
        projected = rows.flatten(0, 1).mT @ targets.flatten(0, 1)
        return _Directions(eigenvalues, projected, rows, targets, roots, queries, target_mean)

    def _by_features(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The eigenvalues of XᵀX that are not 0, and the rows, (N, V, R), and queries, (N, R), in the basis
        of their eigenvectors."""
        fit = self._fit(weights)
        eigenvalues = fit.ridge.eigenvalues
        varies = eigenvalues > EMPTY * eigenvalues.max()
        basis = fit.ridge.basis[:, varies]
        rows = (self.x.double() - fit.mean) @ basis
        queries = rows[:, 0]
        if self.queries is not None:
            queries = (self.queries.double() - fit.mean) @ basis
        return eigenvalues[varies], rows, queries

    def _by_products(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result of `_by_features`, computed from XXᵀ = U diag(e) Uᵀ: the eigenvectors of XᵀX are XᵀU / √e."""
        products, roots = self._centred_products(weights)
        count = len(roots)
        eigenvalues, u = eigh(products[:count] * roots[:, None] * roots)
        varies = eigenvalues > EMPTY * eigenvalues.max()
        eigenvalues = eigenvalues[varies]
        by_direction = products @ (roots[:, None] * u[:, varies] / eigenvalues.sqrt())
        rows = by_direction[:count].unflatten(0, self.x.shape[:2])
        queries = rows[:, 0]
        if self.queries is not None:
            queries = by_direction[count:]
        return eigenvalues, rows, queries


class LeaveOutKnown:
    """The interface of LeaveOut for targets that are partly unknown: each output is fitted to the examples
    whose target is known.

    Outputs with the same known examples share a fit, in which other examples have the weight 0.
    """

    def __init__(self, fits: Sequence[tuple[Tensor, LeaveOut]], targets: Tensor, folds: Folds):
        """fits: the indices of the outputs of each fit, (k,), and the fit. targets: (N, K). folds: of all
        examples."""
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
        """Yields the cross-validated scores, (N, K), for each l2."""
        for scores in zip(*(fit.scores_by(l2s) for _, fit in self.fits), strict=True):
            together = torch.empty_like(self.targets)
            for (outputs, _), some in zip(self.fits, scores, strict=True):
                together[:, outputs] = some
            yield together

    def head(self, l2: float) -> tuple[Tensor, Tensor]:
        """The weights (K, D) and the bias (K,) of the fits to all known targets."""
        heads = [fit.head(l2) for _, fit in self.fits]
        order = torch.cat([outputs for outputs, _ in self.fits]).argsort()
        weights = torch.cat([weight for weight, _ in heads])
        biases = torch.cat([bias for _, bias in heads])
        return weights[order], biases[order]

    def of(self, examples: Tensor) -> "LeaveOutKnown":
        """The fits restricted to some examples, (n,), which must be whole folds. For an output with too few
        known targets among them, unknown targets count as 0."""
        fits = []
        for outputs, fit in self.fits:
            some = fit.of(examples)
            if len(some.folds.fold[some.weights > 0].unique()) < LEAST_KNOWN:
                some.weights = torch.ones_like(some.weights)
            fits.append((outputs, some))
        return LeaveOutKnown(fits, self.targets[examples], self.folds.of(examples))


# The choice of l2, by the loss of the cross-validated predictions


Scale = TypeVar("Scale")


class Calibrated(NamedTuple, Generic[Scale]):
    """Cross-validated predictions, scaled to logits or to the unit of the targets."""

    losses: Tensor
    """Loss of each example, (N,)."""
    predictions: Tensor
    """Scaled predictions, (N, K)."""
    scale: Scale
    """The fitted scale, a temperature or a `Platt`; None for scores that are not scaled."""


Calibrator = Callable[[Tensor, Tensor], Calibrated[Scale]]
"""Scales the cross-validated scores (n, K) of the examples with these indices (n,), and computes their loss."""


def best_left_out(
    fit: LeaveOut | LeaveOutKnown, calibrator: Calibrator[Scale]
) -> tuple[float, Calibrated[Scale]]:
    """The l2 whose cross-validated predictions have the lowest loss; and calibrated predictions.

    The l2 for a prediction is chosen without the example, otherwise the prediction would be too good. With
    few examples (FEW) this is nested cross-validation in PARTS parts: the other parts choose the l2 with fits
    to themselves alone. With many, where it hardly matters, the l2 for a fold is chosen by the predictions of
    all other folds, though these were fitted with it.
    """
    all_examples = torch.arange(len(fit.targets))
    losses, scales = _losses(fit, calibrator, all_examples)
    chosen = int(losses.sum(1).argmin())
    folds = fit.folds.fold
    if len(folds) <= FEW and len(fit.folds.members) > 2:
        choices = torch.empty_like(folds)
        for part in range(PARTS):
            own = folds % PARTS == part
            if own.any():
                inside = torch.where(~own)[0]
                others, _ = _losses(fit.of(inside), calibrator, inside)
                choices[own] = others.sum(1).argmin()
    else:
        of_folds = torch.zeros(len(STRENGTHS), len(fit.folds.members), dtype=losses.dtype)
        of_folds.index_add_(1, folds, losses)
        choices = (losses.sum(1, keepdim=True) - of_folds).argmin(0)[folds]

    predictions = torch.empty_like(fit.targets)
    own_losses = torch.empty_like(losses[0])
    numbers = choices.unique().tolist()
    for number, scores in zip(numbers, _scores_by(fit, numbers), strict=True):
        found = calibrator(scores, all_examples)
        own = choices == number
        predictions[own] = found.predictions[own]
        own_losses[own] = found.losses[own]
    return STRENGTHS[chosen] * fit.scale, Calibrated(own_losses, predictions, scales[chosen])


def _losses(
    fit: LeaveOut | LeaveOutKnown, calibrator: Calibrator[Scale], examples: Tensor
) -> tuple[Tensor, list[Scale]]:
    """The loss of each cross-validated prediction for each l2, (L, N), and the scale for each l2."""
    losses = []
    scales = []
    for scores in _scores_by(fit, range(len(STRENGTHS))):
        calibrated = calibrator(scores, examples)
        losses.append(calibrated.losses)
        scales.append(calibrated.scale)
    return torch.stack(losses), scales


def _scores_by(fit: LeaveOut | LeaveOutKnown, numbers: Iterable[int]) -> Iterator[Tensor]:
    """Yields the scores (N, K) for each l2, given by its index in STRENGTHS."""
    return fit.scores_by([STRENGTHS[number] * fit.scale for number in numbers])


def distilled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The linear map from features (N, D) to the outputs of another model (N, K) with the least squared
    error: weights (K, D) and biases (K,). l2 is the one of a few with the best leave-one-out error."""
    fit = LeaveOut(x, y)
    strengths = [strength * fit.scale for strength in STRENGTHS_OF_DISTILLED]
    errors = [(scores - y).square().mean().item() for scores in fit.scores_by(strengths)]
    return fit.head(strengths[int(np.argmin(errors))])
