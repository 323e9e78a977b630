"""The accuracy that a faster model loses, and statistical limits of this loss.

Both models classify the same images, which neither has learned from, and only the images on which
their predictions differ are informative. The limit of a candidate's loss is Tango's score limit of
the difference between the two accuracies, at 95 % confidence, one-sided.

The best of many candidates on a set of images is partly the luckiest one. Therefore the labels have
no part in the order of the candidates: it is given by their speeds, and by how many of their
predictions differ from the reference's. The Pareto front of these two is tested, from the slowest
on, each candidate at full confidence, until one fails (fixed-sequence testing: Maurer et al. 1995).
The last one that passed is chosen. A wrong choice requires that the first wrong candidate of the
front passes, which happens in at most 5 % of cases, for any number of candidates.

Legend: N images, K classes.
"""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitkit.evaluation import tango, tied_answers

Z = 1.6448536269514722  # the normal quantile of 95 %, one-sided
LEAST = 1e-9  # smallest limit for inexact arithmetic; 0 is reserved for the same arithmetic
MOST = 10_000_000  # largest number of images that a message suggests


class Loss(NamedTuple):
    """The loss of a candidate, as shares of the images."""

    differing: float
    """Share of images with another prediction; above 0 for all but the same arithmetic."""
    lost: float
    """Accuracy of the reference minus that of the candidate."""
    low: float
    """Lower end of the 95 % confidence interval of `lost` (Tango)."""
    high: float
    """Upper end of the 95 % confidence interval of `lost` (Tango)."""
    at_most: float
    """Upper confidence limit, which the true loss exceeds in 5 % of cases; 0 for the same arithmetic."""


SAME = Loss(0.0, 0.0, 0.0, 0.0, 0.0)  # the same numbers up to rounding, so no test is needed


class Evidence(NamedTuple):
    """Counts of images that differ between a candidate and the reference; the input of the loss's
    limit."""

    lost: int
    """Number of images that only the reference classifies correctly."""
    won: int
    """Number of images that only the candidate classifies correctly."""
    differing: int
    """Number of images with another prediction, without ties."""
    images: int
    """N."""


class Judge:
    """Compares candidates with a reference on N images."""

    def __init__(self, reference: Tensor, truth: np.ndarray):
        """reference: its logits, (N, K). truth: the true classes, (N,)."""
        self.truth = truth
        self.probabilities = reference.double().softmax(1).numpy()
        self.answers = reference.argmax(1).numpy()
        self.right = self.answers == truth

    def judged(self, logits: Tensor) -> Evidence:
        """The evidence about a candidate with these logits, (N, K)."""
        answers = logits.argmax(1).numpy()
        right = answers == self.truth
        differing = (answers != self.answers) & ~tied_answers(self.probabilities, answers)
        return Evidence(
            int((self.right & differing).sum()),
            int((right & differing).sum()),
            int(differing.sum()),
            len(right),
        )


def independent(images: int, groups: np.ndarray | None = None) -> float:
    """The share of images that count as independent: each group counts once. groups: numbers, (N,)."""
    if groups is None:
        return 1.0
    return len(np.unique(groups)) / images


def loss_of(evidence: Evidence, share: float = 1.0) -> Loss:
    """The loss of a candidate with its interval and limit. share: the part of the images that is
    independent."""
    lost, won, differing, images = evidence
    low, high = tango(share * lost, share * won, share * images)
    return Loss(
        max(differing / images, LEAST),
        (lost - won) / images,
        low,
        high,
        max(limit(evidence, share), LEAST),
    )


def limit(evidence: Evidence, share: float = 1.0) -> float:
    """The upper confidence limit of a candidate's loss: the true loss is below it in 95 % of cases.

    share: the weight of each image: less than 1 for images in groups, more than 1 for the limit that more
    images like these would give.
    """
    lost, won, _, images = evidence
    return tango(share * lost, share * won, share * images, Z)[1]


def on_others(loss: Loss, lose: float, images: int) -> float:
    """The largest loss that a set of other images shows by chance, in 95 % of cases, if the true
    loss is `lose`. images: their number. An image can contribute only if the two predictions
    differ."""
    return lose + Z * math.sqrt(loss.differing / images)


def needed(evidence: Evidence, lose: float, share: float = 1.0) -> int | None:
    """The number of images, rounded to two digits, that would show that a candidate loses less than
    `lose`, if its results on them are like those on these images; None if it seems to lose that
    much or more.

    share: the part of the images that is independent.
    """
    from scipy.optimize import brentq

    def above(log_times: float) -> float:
        """How far the limit with that multiple of the images exceeds the allowed loss."""
        return limit(evidence, share * math.exp(log_times)) - lose

    longest = math.log(MOST / evidence.images)
    if above(longest) > 0:
        return None
    count = float(evidence.images)
    if above(0.0) > 0:
        count *= math.exp(brentq(above, 0.0, longest))
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step
