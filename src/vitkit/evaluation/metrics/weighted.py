"""Weighted shares of right answers, such as the balanced accuracy, with their intervals.

Legend: N answers.
"""

import numpy as np

from vitkit.evaluation.metrics.metric import wilson


def share_of_answers(
    right: np.ndarray,
    classes: np.ndarray,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    fewer: float = 1,
) -> tuple[float, tuple[float, float]]:
    """The weighted share of answers that are right, bool (N,), and its 95 % interval: Wilson's, for the
    effective number of answers, with Student's quantile for their degrees of freedom.

    classes: the true class of each answer, (N,).
    weights: the weight of each answer, (N,); None for equal weights.
    groups: answers with the same number, (N,), are not independent.
    fewer: factor by which the effective number of answers is reduced.
    """
    from scipy.stats import t

    if weights is None:
        weights = np.ones(len(right))
    share = weights @ right / weights.sum()
    seen, freedom = _independent(right, classes, weights)
    if groups is not None:
        errors = weights * (right - share)
        of_groups = np.bincount(np.unique(groups, return_inverse=True)[1], errors)
        alone = np.square(errors).sum()
        together = len(of_groups) / len(right)
        if alone > 0:
            together = alone / max(np.square(of_groups).sum(), alone)
        seen *= together
        freedom *= together
    seen /= fewer
    z = float(t.ppf(0.975, max(freedom, 1)))
    return float(share), wilson(share * seen, seen, z)


def _independent(
    right: np.ndarray, classes: np.ndarray, weights: np.ndarray
) -> tuple[float, float]:
    """The effective number of answers: that of equally weighted ones with the same variance of their mean;
    and the degrees of freedom of this variance."""
    _, number, counts = np.unique(classes, return_inverse=True, return_counts=True)
    seen = weights.sum() ** 2 / np.square(weights).sum()

    # With unequal classes, rare ones contribute most of the variance. Each class's share is shrunk towards a
    # half by two pseudo-answers (Agresti and Coull), so that its variance is never 0
    of_class = np.bincount(number, weights) / weights.sum()
    shares = (np.bincount(number, right) + 1) / (counts + 2)
    variances = of_class**2 * shares * (1 - shares) / counts
    mean = of_class @ shares
    freedom = variances.sum() ** 2 / (variances**2 / np.maximum(counts - 1, 1)).sum()
    return min(seen, mean * (1 - mean) / variances.sum()), freedom
