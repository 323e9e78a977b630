"""How many of the photographs that nobody has labelled the model would get right.

The photographs that a person is asked about are chosen, typical ones and doubtful ones, so how often the
model is right on those says nothing. Some are drawn at random instead, and what the model took each for
before its label was known counts. A fit that leaves the photograph out would not do: what is asked
afterwards is chosen far from what has a label, so that it leaves a hole which no photograph without a
label has.

Two things have changed since then. The model has learned from more labels, and what is left is not what was
there at first: screens take away what the model is surest of. So logistic regression tells how often it is
right when it is so sure and has learned from so many labels, and that is averaged over what is left.

Legend: R photographs drawn at random, U unlabelled ones, B draws of the bootstrap.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import wilson

LEAST = 10  # random photographs below which nothing is said
WORTH_SAYING = 20  # photographs that are left, below which they are sooner answered than estimated
LATEST = 400  # random photographs that count, the last ones
DRAWS = 100  # of the Bayesian bootstrap
STEPS = 25  # of Newton's method, at most
FARTHEST = 2.0  # of one of its steps
STEEPEST = 8.0
AVERAGED = 2_000  # unlabelled photographs that are averaged over, of more a sample
TO_GAIN = 30  # random photographs below which nothing is said of what more labels would gain
# What is supposed of how often the model is right before anything is known, and how firmly (as a precision):
# in the logit, more by so much for each standard deviation of sureness, and for e times as many labels
SLOPES = np.array([0.0, 1.0, 0.5])
FIRMNESS = np.array([0.0, 1.0, 3.0])
# By how much the bootstrap's variance is too small: how often the model is right depends on more than that,
# such as which classes are left (benchmarks/label.py has how often intervals hold)
UNSEEN = 1.6


class Drawn(NamedTuple):
    """Photographs that were drawn at random, and the model's guess for each before its label was
    known."""

    right: np.ndarray
    """Whether it was right, the last one last, bool (R,)."""
    sure: np.ndarray
    """How sure it was, (R,)."""
    labels: np.ndarray
    """How many labels it had learned from, (R,)."""


class Estimate(NamedTuple):
    """A share of right answers."""

    share: float
    low: float
    high: float
    """Its interval of 95 % confidence."""
    photographs: int
    """Random photographs that it comes from."""
    gain: float | None
    """How much larger the share would be with more labels; None if too few were drawn to tell, or fewer are
    left than that."""


def share_right(drawn: Drawn, left: np.ndarray, labels: int, more: int) -> Estimate | None:
    """How many of the photographs that are left the model would get right; None if too few were drawn,
    or too few are left.

    left: how sure it is of each that is left, (U,). labels: from how many it has learned. more: labels whose
    gain is told.
    """
    if len(drawn.right) < LEAST or len(left) < WORTH_SAYING:
        return None
    right, sure, learned = (values[-LATEST:].astype(float) for values in drawn)
    count = len(left)
    left = left[:: count // AVERAGED + 1]
    mean, deviation = sure.mean(), sure.std() + 1e-6

    def described(sure: np.ndarray, learned: np.ndarray | float) -> np.ndarray:
        """What the logit is linear in: 1, sureness, and the labels in logarithms."""
        grown = np.log(np.maximum(learned, 1) / labels)
        ones = np.ones(len(sure))
        return np.stack([ones, (sure - mean) / deviation, grown * ones], 1)

    # How often it is right, and that once more for each draw of the bootstrap, of what was supposed as well
    draws = np.random.default_rng(0)
    weights = np.ones((1 + DRAWS, len(right)))
    weights[1:] = draws.exponential(size=(DRAWS, len(right)))
    supposed = np.tile(SLOPES, (1 + DRAWS, 1))
    supposed[1:, 1:] += draws.normal(size=(DRAWS, 2)) / np.sqrt(FIRMNESS[1:])
    slopes = _logistic(described(sure, learned), right, weights, supposed)  # (1 + B, 3)
    chances = _sigmoid(slopes @ described(left, labels).T)  # (1 + B, U)
    shares = chances.mean(1)
    share = float(shares[0])

    # The interval is that of as many independent answers as would be as uncertain; what is left is itself
    # a finite number of answers
    own = float((chances[0] * (1 - chances[0])).mean())
    variance = UNSEEN * (float(shares[1:].var()) + own / count)
    independent = max(share * (1 - share) / max(variance, 1e-9), 1.0)
    low, high = wilson(share * independent, independent)

    # What the same photographs would be with more labels
    gain = None
    if len(right) >= TO_GAIN and count >= more:
        gain = float(_sigmoid(described(left, labels + more) @ slopes[0]).mean()) - share
    return Estimate(share, low, high, len(right), gain)


def _logistic(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, supposed: np.ndarray
) -> np.ndarray:
    """Logistic regressions of y (R,) on x (R, 3), one for each row of weights (B, R): slopes (B, 3), drawn
    towards those that are supposed, (B, 3). The last two are not negative. A quarter of a right and of a
    wrong answer are added at the mean, so that there is a regression even if all answers are right."""
    x = np.concatenate([x, [[1, 0, 0], [1, 0, 0]]])
    y = np.append(y, (0, 1))
    weights = np.pad(weights, ((0, 0), (0, 2)), constant_values=0.25)
    slopes = supposed
    for _ in range(STEPS):
        chance = _sigmoid(slopes @ x.T)
        gradient = (weights * (chance - y)) @ x + FIRMNESS * (slopes - supposed)
        curvature = (weights * chance * (1 - chance))[:, None] * x.T @ x  # (B, 3, 3)
        curvature += np.diag(FIRMNESS + 1e-6)
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        before = slopes
        slopes = np.clip(slopes - np.clip(step, -FARTHEST, FARTHEST), -STEEPEST, STEEPEST)
        slopes[:, 1:] = slopes[:, 1:].clip(min=0)
        if np.abs(slopes - before).max() < 1e-6:
            break
    return slopes


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))
