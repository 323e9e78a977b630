"""How many of the photographs that nobody has labelled the model would get right.

The photographs that a person is asked about are chosen, typical ones and doubtful ones, so how often the
model is right on those says nothing. Some are drawn at random instead, and the model's answer to each by a
fit without it counts. But what is left to label is not what was there at first: screens take away what the
model is surest of. So it is fitted how often the model is right when it is so sure (logistic regression), and
that is averaged over what is left.

Legend: R photographs drawn at random, U unlabelled ones, B draws of the bootstrap.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import wilson

LEAST = 10  # random photographs below which nothing is said
WORTH_SAYING = 20  # photographs that are left, below which they are sooner answered than estimated
LATEST = 400  # random photographs that count, the last ones
DRAWS = 100  # of the Bayesian bootstrap
STEPS = 25  # of Newton's method
STEEPEST = 8.0
AVERAGED = 2_000  # unlabelled photographs that are averaged over, of more a sample
TO_GAIN = 30  # random photographs below which nothing is said of what more labels would gain
# By how much the bootstrap's variance is too small: how often the model is right depends on more than how sure
# it is, such as which classes are left (benchmarks/label.py has how often intervals hold)
UNSEEN = 1.6


class Estimate(NamedTuple):
    """A share of right answers."""

    share: float
    low: float
    high: float
    """Its interval of 95 % confidence."""
    photographs: int
    """Random photographs that it comes from."""


def share_right(right: np.ndarray, sure: np.ndarray, left: np.ndarray) -> Estimate | None:
    """How many of the photographs that are left the model would get right; None if too few were drawn,
    or too few are left.

    right: whether it is right on each random photograph, the last one last, bool (R,). sure, left: how sure
    it is of each of those, (R,), and of each that is left, (U,).
    """
    if len(right) < LEAST or len(left) < WORTH_SAYING:
        return None
    right = right[-LATEST:].astype(float)
    sure = sure[-LATEST:]
    count = len(left)
    left = left[:: count // AVERAGED + 1]

    # How often it is right when it is so sure, and that once more for each draw of the bootstrap
    mean, deviation = sure.mean(), sure.std() + 1e-6
    draws = np.random.default_rng(0).exponential(size=(DRAWS, len(right)))
    weights = np.concatenate([np.ones((1, len(right))), draws])
    offset, slope = _logistic((sure - mean) / deviation, right, weights)
    exponent = offset[:, None] + slope[:, None] * (left - mean) / deviation
    chances = 1 / (1 + np.exp(-exponent))  # (1 + B, U)
    shares = chances.mean(1)

    # The interval is that of as many independent answers as would be as uncertain; what is left is itself
    # a finite number of answers
    share = float(shares[0])
    own = float((chances[0] * (1 - chances[0])).mean())
    variance = UNSEEN * (float(shares[1:].var()) + own / count)
    independent = max(share * (1 - share) / max(variance, 1e-9), 1.0)
    low, high = wilson(share * independent, independent)
    return Estimate(share, low, high, len(right))


def _logistic(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regressions of y (R,) on x (R,), one for each row of weights (B, R): offsets and slopes,
    (B,). A quarter of a right and of a wrong answer are added, and slopes are drawn towards 1, so that
    there is one even if all answers are right."""
    x = np.append(x, (0, 0))
    y = np.append(y, (0, 1))
    weights = np.pad(weights, ((0, 0), (0, 2)), constant_values=0.25)
    offset = np.zeros(len(weights))
    slope = np.ones(len(weights))
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-(offset[:, None] + slope[:, None] * x)))
        error = weights * (chance - y)
        first, second = error.sum(1), (error * x).sum(1) + (slope - 1)
        curve = weights * chance * (1 - chance) + 1e-9
        a, b, c = curve.sum(1), (curve * x).sum(1), (curve * x**2).sum(1) + 1
        offset = np.clip(offset - (c * first - b * second) / (a * c - b**2), -STEEPEST, STEEPEST)
        slope = np.clip(slope - (a * second - b * first) / (a * c - b**2), 0, STEEPEST)
    return offset, slope


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
