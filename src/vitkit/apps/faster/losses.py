"""The accuracy that a faster model loses, and statistical limits of this loss.

Both models classify the same images, which neither has learned from, and only the images on which
their predictions differ are informative. The limit of a candidate's loss is Tango's score limit of
the difference between the two accuracies, at 95 % confidence, one-sided.

There are many candidates, and the best of many on some images is partly the luckiest. So every fifth image
has no part in the test: it only puts the candidates in order, by how far their probabilities are from the
reference's. The Pareto front of this distance and of speed is tested on the other images, from the slowest on,
each candidate at full confidence, until one fails (fixed-sequence testing: Maurer et al. 1995). The last one
that passed is chosen. A wrong one is chosen only if the first wrong one of the front passes, which happens in
5 % of cases at most, however many candidates there are.

Legend: N images, K classes.
"""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitkit.evaluation import tango, tied_answers

ORDERING = 5  # one image in this many puts the candidates in order
Z = 1.6448536269514722  # the normal quantile of 95 %, one-sided
LEAST = 1e-9  # smallest limit for inexact arithmetic; 0 is reserved for the same arithmetic
MOST = 10_000_000  # largest number of images that a message suggests


class Loss(NamedTuple):
    """The loss of a candidate, as shares of the images."""

    distance: float
    """How far its probabilities are from the reference's: the mean total variation, from 0 to 1, on the
    images that put the candidates in order."""
    lost: float
    """The reference's accuracy less the candidate's, on the other images."""
    low: float
    """Lower end of the 95 % confidence interval of `lost` (Tango)."""
    high: float
    """Upper end of the 95 % confidence interval of `lost` (Tango)."""
    at_most: float
    """The limit that the true loss exceeds in 5 % of cases; 0 for the same arithmetic."""
    differing: float
    """The share of images with another prediction."""


SAME = Loss(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # the same numbers to rounding: no test is needed


class Evidence(NamedTuple):
    """Counts of images that differ between a candidate and the reference; the input of the loss's
    limit."""

    distance: float
    """As `Loss.distance`."""
    lost: int
    """Images of the test that only the reference classifies correctly."""
    won: int
    """Images of the test that only the candidate classifies correctly."""
    differing: int
    """Images of the test with another prediction; ties are left out."""
    images: int
    """Images of the test."""


class ReferenceComparison:
    """Compares candidates with a reference on N images."""

    def __init__(self, reference: Tensor, truth: np.ndarray, groups: np.ndarray | None = None):
        """reference: its logits, (N, K). truth: the right classes, (N,). groups: the number of each image's
        group, (N,)."""
        self.is_ordering = is_ordering(len(truth), groups)
        self.truth = truth
        self.probabilities = reference.double().softmax(1).numpy()
        self.answers = reference.argmax(1).numpy()
        self.right = self.answers == truth

    def of(self, logits: Tensor) -> Evidence:
        """The evidence about a candidate with these logits, (N, K)."""
        answers = logits.argmax(1).numpy()
        right = answers == self.truth
        tested = ~self.is_ordering
        differing = (answers != self.answers) & ~tied_answers(self.probabilities, answers) & tested
        probabilities = logits.double().softmax(1).numpy()
        apart = np.abs(probabilities - self.probabilities).sum(1)[self.is_ordering] / 2
        return Evidence(
            float(apart.mean()),
            int((self.right & differing).sum()),
            int((right & differing).sum()),
            int(differing.sum()),
            int(tested.sum()),
        )


def is_ordering(images: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Which images put the candidates in order, bool (N,); those of a group are on the same side."""
    numbers = np.arange(images)
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
    return numbers % ORDERING == 0


def independent(images: int, groups: np.ndarray | None = None) -> float:
    """The share of images that count as independent, by Kish's effective sample size: as many as there are
    groups if these are equally large, fewer if not. groups: the number of each image's group, (N,)."""
    if groups is None:
        return 1.0
    sizes = np.unique(groups, return_counts=True)[1]
    return float(images / np.square(sizes).sum())


def loss_of(evidence: Evidence, share: float = 1.0) -> Loss:
    """The loss of a candidate, and its limit. share: the part of the images that are independent."""
    distance, lost, won, differing, images = evidence
    low, high = tango(share * lost, share * won, share * images)
    return Loss(
        max(distance, LEAST),
        (lost - won) / images,
        low,
        high,
        max(limit(evidence, share), LEAST),
        differing / images,
    )


def limit(evidence: Evidence, share: float = 1.0) -> float:
    """The upper confidence limit of a candidate's loss: the true loss is below it in 95 % of cases.

    share: the weight of each image: less than 1 for images in groups, more than 1 for the limit that more
    images like these would give.
    """
    _, lost, won, _, images = evidence
    return tango(share * lost, share * won, share * images, Z)[1]


def on_others(loss: Loss, lose: float, images: int) -> float:
    """The largest loss that a set of other images shows by chance, in 95 % of cases, if the true
    loss is `lose`. images: their number. An image can contribute only if the two predictions
    differ."""
    return lose + Z * math.sqrt(loss.differing / images)


def needed(evidence: Evidence, lose: float, share: float = 1.0) -> int | None:
    """The number of images, to two digits, that would promise that a candidate loses less than `lose`, if it
    lost as much on all as on these; None if it seems to lose that much. At most MOST.

    share: the part of the images that is independent.
    """
    from scipy.optimize import brentq

    def above(log_times: float) -> float:
        """How far the limit with that multiple of the images exceeds the allowed loss."""
        return limit(evidence, share * math.exp(log_times)) - lose

    if evidence.lost - evidence.won >= lose * evidence.images:
        return None
    longest = math.log(MOST / evidence.images)
    if above(longest) > 0:
        return MOST
    count = float(evidence.images)
    if above(0.0) > 0:
        count *= math.exp(brentq(above, 0.0, longest))
    count *= ORDERING / (ORDERING - 1)  # those that put the candidates in order, too
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step
