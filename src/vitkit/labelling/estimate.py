"""How many of the photographs that nobody has labelled the model would get right.

The photographs that a person is asked about are chosen, typical ones and doubtful ones, so how often the
model is right on those says nothing. Some are drawn at random instead, and the model's answer to each by a
fit without it counts. What is left to label differs from what was there at first, for screens take away
what the model is surest of: so answers are weighed by how sure the model is of what is left, in a few
strata.

Legend: R random photographs, U unlabelled ones, S strata.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import wilson

LEAST = 10  # random photographs below which nothing is said
PER_STRATUM = 12  # random photographs for each stratum
STRATA = 4  # at most
TO_GAIN = 30  # random photographs below which nothing is said of what more labels would gain


class Estimate(NamedTuple):
    """A share of right answers."""

    share: float
    low: float
    high: float
    """Its interval of 95 % confidence."""
    photographs: int
    """Random photographs that it comes from."""


def share_right(right: np.ndarray, sure: np.ndarray, left: np.ndarray) -> Estimate | None:
    """How many of the photographs that are left the model would get right; None if too few were drawn.

    right: whether it is right on each random photograph, bool (R,). sure, left: how sure it is of each of
    those, (R,), and of each that is left, (U,).
    """
    if len(right) < LEAST or not len(left):
        return None
    strata = min(STRATA, max(1, len(right) // PER_STRATUM))
    edges = np.quantile(sure, np.arange(1, strata) / strata)
    drawn = np.searchsorted(edges, sure, side="right")
    of_left = np.bincount(np.searchsorted(edges, left, side="right"), minlength=strata) / len(left)

    # The share of each stratum, weighed by what is left; the interval is that of as many photographs as
    # would be as certain without strata
    share = 0.0
    variance = 0.0
    for stratum in range(strata):
        members = right[drawn == stratum]
        if not len(members):
            members = right
        share += of_left[stratum] * members.mean()
        variance += of_left[stratum] ** 2 / len(members)
    count = 1 / variance
    low, high = wilson(share * count, count)
    return Estimate(share, low, high, len(right))


def gain(right: np.ndarray, right_of_half: np.ndarray, labels: int, more: int) -> float | None:
    """How much larger the share of right answers would be with more labels; None if that cannot be told.

    right, right_of_half: whether the model, and one that has learned from half of the labels, are right on
    each random photograph, bool (R,). Errors fall as a power of the number of labels.
    """
    errors, before = 1 - right.mean(), 1 - right_of_half.mean()
    if len(right) < TO_GAIN or not 0 < errors <= before:
        return None
    power = np.log2(before / errors)
    return float(errors * (1 - (labels / (labels + more)) ** power))
