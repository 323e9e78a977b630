"""Intervals of 95 % confidence by resampling, for numbers that are no shares of images.

Legend: N images, R resamples, M numbers that are computed of each.
"""

from collections.abc import Callable

import numpy as np

from vitkit.system.console.progress import bar, silent
from vitkit.system.processes.ranks import on_rank_0

RESAMPLES = 1000
SAME = 1e-12  # resampled values that differ by rounding alone


def resampled(
    statistic: Callable[[np.ndarray], np.ndarray], count: int, resamples: int = RESAMPLES
) -> np.ndarray:
    """What a statistic is of other images of the same kind (Efron's bootstrap): float64 (R, M).

    `statistic` gets the indices of `count` images, int64 (N,), drawn with replacement, and returns
    M numbers. The draws are always the same.
    """
    random = np.random.Generator(np.random.PCG64(0))
    show = silent
    if on_rank_0():
        show = bar("resampling for the intervals")
    rows = []
    for _ in show(range(resamples), resamples):
        rows.append(statistic(random.integers(0, count, count)))
    return np.stack(rows)


def interval_of(values: np.ndarray) -> tuple[float, float] | None:
    """The interval of R resampled values; None if all are the same, as those of a single image or of
    answers that are all right: then they say nothing about other images. None, too, if any is no
    number, as the R² of equal targets."""
    if not np.isfinite(values).all() or np.ptp(values) < SAME:
        return None
    return percentiles(values)


def percentiles(values: np.ndarray) -> tuple[float, float]:
    """The interval in which the middle 95 % of R resampled values lie."""
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def turned_percentiles(value: float, values: np.ndarray) -> tuple[float, float]:
    """The interval around `value` that the resampled values' distances from it give, turned round
    (the "basic" bootstrap), and at least 0.

    For a number that resampling makes larger, as it does the calibration error: the values lie
    beyond the number as far as the number lies beyond the truth.
    """
    low, high = percentiles(values)
    return max(2 * value - high, 0.0), max(2 * value - low, 0.0)
