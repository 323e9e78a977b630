"""How much accuracy a faster model loses, and what so many images can promise about that.

Both models answer the same images, which neither has learned from, so only the images with different
answers tell anything. Two limits are computed of a candidate's loss, and the lower one is promised:

- by the right answers: Tango's score interval of the difference of two shares of the same images;
- by the reference's probabilities: where the answers differ, accuracy is expected to go down by what the
  reference gives its own answer less what it gives the candidate's. An image between two classes counts
  little, whichever of them is right, so the same images tell much more. It takes probabilities that mean
  what they say: they are brought there by a temperature on the same images (Guo et al. 2017), and if the
  right answers of all candidates together show that more is lost, by so many times more. What a candidate
  knows better than the reference is not seen, which only makes the limit higher. Its limit is that of a
  sum of Poisson counts with weights (Fay and Feuer 1997, "Confidence intervals for directly standardized
  rates").

The candidates are many, and the fastest of those that pass is taken, so that the luckiest of many bad ones
would be. Each limit is therefore at the level 0.05 / 2 / (how many candidates there are), counted before
any is looked at: whatever is looked at first, and whichever is chosen, all promises hold together in 95 %
of cases (Bonferroni). Testing them in a fixed order, from the slowest to the fastest, without a
correction, would end at the first bad one, such as a smaller image, and never see fewer blocks behind it;
a half of the images held back for one last test promises less than all of them with the correction.

Legend: N images, K classes.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation import fit_temperature, tango

WRONG = 0.05  # how often a promise may fail
LEAST_WEIGHT = 0.5  # what an answer that differs counts, at least, where none was seen
NEAR = (
    0.03  # candidates that lose more by the probabilities do not tell whether these can be trusted
)
MOST = 10_000_000  # images that somebody is asked for


class Loss(NamedTuple):
    """What a candidate loses, as shares of the images."""

    lost: float
    """How much less often it was right than the reference."""
    low: float
    """The interval at 95 % of that, as if it were the only candidate (Tango)."""
    high: float
    at_most: float
    """What is promised, with all other candidates, in 95 % of cases; 0 for the same arithmetic."""
    differing: float
    """The share of images with another answer."""


SAME = Loss(0.0, 0.0, 0.0, 0.0, 0.0)  # the same numbers to rounding: nothing to be judged


class Evidence(NamedTuple):
    """What the images say about a candidate, before it is decided what that promises."""

    lost: int
    """Images that the reference alone is right on."""
    won: int
    costs: np.ndarray
    """What each answer that differs is expected to cost, by the reference's probabilities."""
    images: int


class Judge:
    """Judges candidates beside a reference on N images."""

    def __init__(
        self,
        reference: Tensor,
        truth: np.ndarray,
        candidates: int,
        groups: np.ndarray | None = None,
    ):
        """The reference's logits, (N, K), and the right classes, (N,).

        candidates: how many there are in all, the best of which is chosen. groups: images with the same
        number, (N,), are no more than one.
        """
        self.truth = truth
        self.candidates = candidates
        self.answers = reference.argmax(1).numpy()
        self.right = self.answers == truth
        temperature = fit_temperature(reference.double(), torch.from_numpy(truth))
        self.probabilities = (reference.double() / temperature).softmax(1).numpy()
        self.independent = 1.0
        if groups is not None:
            self.independent = len(np.unique(groups)) / len(groups)

    def evidence(self, logits: Tensor) -> Evidence:
        """What the images say about a candidate with these logits, (N, K)."""
        answers = logits.argmax(1).numpy()
        right = answers == self.truth
        rows = np.flatnonzero(answers != self.answers)
        own = self.probabilities[rows, self.answers[rows]]
        others = self.probabilities[rows, answers[rows]]
        lost = int((self.right & ~right).sum())
        won = int((right & ~self.right).sum())
        return Evidence(lost, won, own - others, len(answers))

    def losses(self, evidence: list[Evidence]) -> list[Loss]:
        """What each of the candidates loses, and what is promised about it."""
        times = self._times_more(evidence)
        return [self._loss(each, times) for each in evidence]

    def _times_more(self, evidence: list[Evidence]) -> float:
        """How many times more is lost than the reference's probabilities say, by the right answers where
        candidates differ; 1 if it is less."""
        expected = 0.0
        seen = 0
        for each in evidence:
            if each.costs.sum() <= NEAR * each.images:
                expected += each.costs.sum()
                seen += each.lost - each.won
        if expected == 0:
            return 1.0
        return max(1.0, seen / expected)

    def _loss(self, evidence: Evidence, times: float) -> Loss:
        """What a candidate loses."""
        count = evidence.images
        share = self.independent
        low, high = tango(share * evidence.lost, share * evidence.won, share * count)
        at_most = promised(evidence, self.candidates, times, share)
        differing = len(evidence.costs) / count
        lost = (evidence.lost - evidence.won) / count
        return Loss(lost, low, high, at_most, differing)


def promised(evidence: Evidence, candidates: int, times: float = 1.0, share: float = 1.0) -> float:
    """What a candidate among so many loses at most, in 95 % of cases for all of them together.

    times: how many times more is lost than the probabilities say. share: of the images that tells
    something, more than one for the more that there were.
    """
    from scipy.stats import norm

    level = WRONG / 2 / candidates
    z = float(norm.ppf(1 - level))
    count = share * evidence.images
    _, by_answers = tango(share * evidence.lost, share * evidence.won, count, z)
    costs = np.minimum(times * evidence.costs, 1.0)
    most = max(LEAST_WEIGHT, costs.max(initial=0.0))
    by_probabilities = sum_at_most(share * costs.sum(), share * np.square(costs).sum(), most, level)
    return min(by_answers, by_probabilities / count)


def sum_at_most(total: float, squares: float, most: float, level: float) -> float:
    """The upper limit, which is too low with this probability at most, of what a sum of weights of events
    is in the mean, if the events are rare.

    total: the sum of the weights that were seen. squares: of their squares. most: the largest weight.
    """
    from scipy.stats import chi2

    mean = total + most
    variance = squares + most**2
    return float(variance / (2 * mean) * chi2.ppf(1 - level, 2 * mean**2 / variance))


def needed(evidence: Evidence, candidates: int, lose: float) -> int | None:
    """How many images would promise that a candidate loses less than that, to two digits, if it did on
    all as on these; None if it seems to lose as much."""
    from scipy.optimize import brentq

    def above(log_times: float) -> float:
        """How far so many times the images promise too little."""
        return promised(evidence, candidates, share=math.exp(log_times)) - lose

    longest = math.log(MOST / evidence.images)
    if above(longest) > 0:
        return None
    if above(0.0) <= 0:
        return evidence.images
    count = evidence.images * math.exp(brentq(above, 0.0, longest))
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step
