"""Shares of answers that do not all count alike, such as the balanced accuracy, with one interval wherever
they are printed.

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
    """The share of answers that are right, bool (N,), and its interval: Wilson's, for as many answers as
    equally weighted, independent ones would tell the same, with Student's quantile where a rare class
    decides.

    weights: what each answer counts, (N,). groups: answers with the same number are not independent.
    fewer: by this many times fewer answers are counted.
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
    """How many equally weighted answers vary as much as these, and the degrees of freedom of that."""
    _, number, counts = np.unique(classes, return_inverse=True, return_counts=True)
    seen = weights.sum() ** 2 / np.square(weights).sum()

    # Where classes are unequal, a rare one that is seldom right varies most. Each share is drawn to a half
    # by two answers more (Agresti and Coull), so that none has no variance
    of_class = np.bincount(number, weights) / weights.sum()
    shares = (np.bincount(number, right) + 1) / (counts + 2)
    variances = of_class**2 * shares * (1 - shares) / counts
    mean = of_class @ shares
    freedom = variances.sum() ** 2 / (variances**2 / np.maximum(counts - 1, 1)).sum()
    return min(seen, mean * (1 - mean) / variances.sum()), freedom
