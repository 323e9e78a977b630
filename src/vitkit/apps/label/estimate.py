"""Estimate of the model's accuracy on the unlabelled images.

Most images that a person is asked about are chosen, as typical or uncertain ones, so the model's
accuracy on them is biased. Others are drawn at random, and the model's predictions for them, made
before their labels were known, are the data of the estimate. Leave-one-out predictions would not
do: later questions are chosen far from labelled images, so leaving one out makes a gap that no
unlabelled image has.

Two things change over time. The model learns from more labels, and the remaining images differ from
the initial ones: screens remove those that the model is most certain about. Therefore a logistic
regression predicts the probability of a correct prediction from the certainty and the number of
labels, and the result is averaged over the remaining images.

Legend: R images drawn at random, U unlabelled ones, B draws of the bootstrap.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import wilson

LEAST = 10  # fewest random images for an estimate
WORTH_SAYING = (
    20  # fewest remaining images for an estimate: fewer are labelled sooner than estimated
)
LATEST = 400  # largest number of random images that are used, the latest ones
DRAWS = 100  # of the Bayesian bootstrap
STEPS = 25  # largest number of steps of Newton's method
FARTHEST = 2.0  # longest step of Newton's method
STEEPEST = 8.0
AVERAGED = 2_000  # largest number of unlabelled images that are averaged over; of more a sample
TO_GAIN = 30  # fewest random images for an estimate of the gain from more labels
# Prior of the regression: mean and precision of the slopes of the logit, per standard deviation of the
# certainty, and per factor e of the number of labels
SLOPES = np.array([0.0, 1.0, 0.5])
FIRMNESS = np.array([0.0, 1.0, 3.0])
# Factor by which the bootstrap underestimates the variance: the accuracy depends on more than these two
# variables, such as the remaining classes (benchmarks/label.py measures the coverage of the intervals)
UNSEEN = 1.6


class Drawn(NamedTuple):
    """Images drawn at random, with the model's predictions made before their labels were
    known."""

    right: np.ndarray
    """Whether each prediction was correct, the latest last, bool (R,)."""
    sure: np.ndarray
    """Certainty of each prediction, (R,)."""
    labels: np.ndarray
    """Number of labels that the model had learned from at each prediction, (R,)."""


class Estimate(NamedTuple):
    """An estimated accuracy with its 95 % confidence interval."""

    share: float
    low: float
    high: float
    """Upper end of the 95 % confidence interval."""
    photographs: int
    """Number of random images that the estimate is based on."""
    gain: float | None
    """Expected increase of the accuracy with more labels; None if too few random images were drawn, or if
    fewer images than that remain."""


def share_right(drawn: Drawn, left: np.ndarray, labels: int, more: int) -> Estimate | None:
    """Estimate the model's accuracy on the remaining images; None if too few random images were drawn, or
    too few images remain.

    left: certainty of the model about each remaining image, (U,). labels: number of labels that it
    has learned from. more: number of additional labels for the gain.
    """
    if len(drawn.right) < LEAST or len(left) < WORTH_SAYING:
        return None
    right, sure, learned = (values[-LATEST:].astype(float) for values in drawn)
    count = len(left)
    left = left[:: count // AVERAGED + 1]
    mean, deviation = sure.mean(), sure.std() + 1e-6

    def described(sure: np.ndarray, learned: np.ndarray | float) -> np.ndarray:
        """The regression's variables: 1, the certainty, and the logarithm of the number of labels."""
        grown = np.log(np.maximum(learned, 1) / labels)
        ones = np.ones(len(sure))
        return np.stack([ones, (sure - mean) / deviation, grown * ones], 1)

    # The regression, and one more for each draw of the bootstrap, which also draws the prior
    draws = np.random.default_rng(0)
    weights = np.ones((1 + DRAWS, len(right)))
    weights[1:] = draws.exponential(size=(DRAWS, len(right)))
    prior = np.tile(SLOPES, (1 + DRAWS, 1))
    prior[1:, 1:] += draws.normal(size=(DRAWS, 2)) / np.sqrt(FIRMNESS[1:])
    slopes = _logistic(described(sure, learned), right, weights, prior)  # (1 + B, 3)
    chances = _sigmoid(slopes @ described(left, labels).T)  # (1 + B, U)
    shares = chances.mean(1)
    share = float(shares[0])

    # The interval is that of the number of independent answers with the same variance; the
    # remaining images are themselves a finite sample
    own = float((chances[0] * (1 - chances[0])).mean())
    variance = UNSEEN * (float(shares[1:].var()) + own / count)
    independent = max(share * (1 - share) / max(variance, 1e-9), 1.0)
    low, high = wilson(share * independent, independent)

    # The same images with more labels
    gain = None
    if len(right) >= TO_GAIN and count >= more:
        gain = float(_sigmoid(described(left, labels + more) @ slopes[0]).mean()) - share
    return Estimate(share, low, high, len(right), gain)


def _logistic(x: np.ndarray, y: np.ndarray, weights: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Logistic regressions of y (R,) on x (R, 3), one for each row of weights (B, R): slopes (B,
    3), with the prior means `prior`, (B, 3). The last two slopes are not negative. A quarter of a
    correct and of an incorrect answer are added at the mean, so that the regression exists even if
    all answers are correct."""
    x = np.concatenate([x, [[1, 0, 0], [1, 0, 0]]])
    y = np.append(y, (0, 1))
    weights = np.pad(weights, ((0, 0), (0, 2)), constant_values=0.25)
    slopes = prior
    for _ in range(STEPS):
        chance = _sigmoid(slopes @ x.T)
        gradient = (weights * (chance - y)) @ x + FIRMNESS * (slopes - prior)
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
