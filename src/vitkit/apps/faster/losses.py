"""How much accuracy a faster model loses, and what so many images can promise about that.

Both models answer the same images, which neither has learned from, so only the images with different
answers tell anything. The limit of a candidate's loss is one of two:

- by the right answers: Tango's score limit of the difference of two shares of the same images;
- by the reference's probabilities: where the answers differ, accuracy is expected to go down by what the
  reference gives its own answer less what it gives the candidate's. An image between two classes counts
  little, whichever of them is right, so the same images tell much more. It takes probabilities that mean
  what they say: they are brought there by a temperature on the same images (Guo et al. 2017), and if the
  right answers of all candidates together show that more is lost, it counts so many times more; if those of a
  candidate show beyond chance that it loses more than this limit, its limit is the other one. What a
  candidate knows better than the reference is not seen, which only makes the limit higher. The limit is
  that of a sum of Poisson counts with weights up to 1 (Fay and Feuer 1997, "Confidence intervals for
  directly standardized rates").

The candidates are many, and the best of many on some images is partly the luckiest. So every fifth image
has no part in the test: by these, candidates are put in order, which of the two limits is taken is decided,
and the line of those is drawn that are faster the more they cost. Along this line, from the slowest on, each
candidate is tested on all other images at full confidence, until one fails (fixed-sequence testing: Maurer
et al. 1995). The last one that passed is chosen. A wrong one is chosen only if the first wrong one of the
line passes, which it does in 5 % of cases at most, however many candidates there are. A correction for
their number (Bonferroni) needs two and a half times the images to promise the same, and a half that is held
back for one last test one and a half times.

Legend: N images, K classes.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation import fit_temperature, tango, tied_answers

WRONG = 0.05  # how often a promise may fail
Z = 1.6448536269514722  # the normal quantile of that, one-sided
ORDERING = 5  # one image in so many puts the candidates in order
# Candidates that lose more by the probabilities do not tell whether these can be trusted
NEAR = 0.03
SOFT = 0.3  # temperature of the answers by which candidates are put in order: a flip is no jump
LEAST = 1e-9  # what is judged is never said to lose nothing, as the same arithmetic does
MOST = 10_000_000  # images that somebody is asked for


class Loss(NamedTuple):
    """The loss of a candidate, as shares of the images."""

    expected: float
    """By the images that put the candidates in order, and the reference's probabilities."""
    lost: float
    """How much less often it was right than the reference, on the other images."""
    low: float
    """The interval at 95 % of that (Tango)."""
    high: float
    at_most: float
    """The limit that is too low in 5 % of cases; 0 for the same arithmetic."""
    differing: float
    """The share of images with another answer."""


SAME = Loss(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # the same numbers to rounding: nothing to be judged


class Evidence(NamedTuple):
    """The evidence of some images about a candidate."""

    lost: int
    """Images that the reference alone is right on."""
    won: int
    costs: np.ndarray
    """What each answer that differs is expected to cost, by the reference's probabilities; ties are
    left out."""
    images: int

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        return self._asdict() | {"costs": self.costs.tolist()}

    @classmethod
    def from_json(cls, values: dict) -> "Evidence":
        """The object that `to_json` described."""
        return cls(**values | {"costs": np.array(values["costs"], np.float64)})


class LossEvidence(NamedTuple):
    """The evidence of all images about a candidate, before a limit of its loss is computed."""

    tested: Evidence
    ordering: Evidence
    """By the images that put the candidates in order,"""
    expected: float
    """and what it is expected to lose by them."""

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        return {
            "tested": self.tested.to_json(),
            "ordering": self.ordering.to_json(),
            "expected": self.expected,
        }

    @classmethod
    def from_json(cls, values: dict) -> "LossEvidence":
        """The object that `to_json` described."""
        tested = Evidence.from_json(values["tested"])
        return cls(tested, Evidence.from_json(values["ordering"]), values["expected"])


class Judge:
    """Judges candidates beside a reference on N images."""

    def __init__(self, reference: Tensor, truth: np.ndarray, groups: np.ndarray | None = None):
        """reference: its logits, (N, K). truth: the right classes, (N,). groups: the number of each
        image's group, (N,); the images of a group count as one.
        """
        self.truth = truth
        self.answers = reference.argmax(1).numpy()
        self.right = self.answers == truth
        self.own = reference.double().softmax(1).numpy()  # decides what is a tie

        # Probabilities (N, K), calibrated on these images; and sharper ones, close to the answers
        # themselves, by whose differences candidates are put in order
        self.temperature = fit_temperature(reference.double(), torch.from_numpy(truth))
        scaled = reference.double() / self.temperature
        self.probabilities = scaled.softmax(1).numpy()
        self.soft = (scaled / SOFT).softmax(1).numpy()
        self.is_ordering = is_ordering(len(truth), groups)

    def judged(self, logits: Tensor) -> LossEvidence:
        """The evidence of the images about a candidate with these logits, (N, K)."""
        answers = logits.argmax(1).numpy()
        temperature = fit_temperature(logits.double(), torch.from_numpy(self.truth))
        soft = (logits.double() / temperature / SOFT).softmax(1).numpy()
        expected = ((self.soft - soft) * self.probabilities).sum(1)[self.is_ordering].mean()
        return LossEvidence(
            self._evidence(answers, ~self.is_ordering),
            self._evidence(answers, self.is_ordering),
            float(expected),
        )

    def _evidence(self, answers: np.ndarray, rows: np.ndarray) -> Evidence:
        """What some of the images, bool (N,), say about answers, (N,)."""
        right = answers == self.truth
        ties = tied_answers(self.own, answers)
        differing = np.flatnonzero((answers != self.answers) & ~ties & rows)
        own = self.probabilities[differing, self.answers[differing]]
        others = self.probabilities[differing, answers[differing]]
        lost = int((self.right & ~right & ~ties & rows).sum())
        won = int((right & ~self.right & ~ties & rows).sum())
        return Evidence(lost, won, own - others, int(rows.sum()))


def is_ordering(images: int, groups: np.ndarray | None) -> np.ndarray:
    """Which images order the candidates, bool (N,); images of a group are on the same side."""
    return _numbers(images, groups) % ORDERING == 0


def _numbers(images: int, groups: np.ndarray | None) -> np.ndarray:
    """The number of each image's group, (N,)."""
    if groups is None:
        return np.arange(images)
    return np.unique(groups, return_inverse=True)[1]


def losses(judged: list[LossEvidence], images: int, groups: np.ndarray | None = None) -> list[Loss]:
    """The loss of each candidate, and its limit. Images with the same number in `groups`, (N,), are
    no more than one."""
    times = times_more([each.tested for each in judged])
    share = independent(images, groups)
    return [_loss(each, times, share) for each in judged]


def independent(images: int, groups: np.ndarray | None = None) -> float:
    """How many images each of these stands for: fewer than one of groups."""
    return len(np.unique(_numbers(images, groups))) / images


def _loss(judged: LossEvidence, times: float, share: float) -> Loss:
    """What a candidate loses."""
    lost, won, costs, count = judged.tested
    low, high = tango(share * lost, share * won, share * count)
    at_most = limit(judged, times, share)
    return Loss(
        max(judged.expected, LEAST),
        (lost - won) / count,
        low,
        high,
        max(at_most, LEAST),
        len(costs) / count,
    )


def times_more(evidence: list[Evidence]) -> float:
    """How many times more is lost than the reference's probabilities say, by the right answers where any
    of the candidates differ; 1 if it is less."""
    expected = 0.0
    seen = 0
    for each in evidence:
        if each.costs.sum() <= NEAR * each.images:
            expected += each.costs.sum()
            seen += max(each.lost - each.won, 0)  # what one wins is no consolation for another
    if expected == 0:
        return 1.0
    return max(1.0, seen / expected)


def limit(judged: LossEvidence, times: float = 1.0, share: float = 1.0) -> float:
    """The upper limit of a candidate's loss, in 95 % of cases.

    times: how many times more is lost than the probabilities say. share: how many images each of these
    stands for: fewer than one of groups, more for the more that there might be.
    """
    ordering = judged.ordering
    wins = ordering.won > ordering.lost  # which the reference's probabilities cannot tell
    if wins and limit_by_answers(ordering) < limit_by_probabilities(ordering):
        return limit_by_answers(judged.tested, share)
    return limit_by_probabilities(judged.tested, times, share)


def limit_by_answers(evidence: Evidence, share: float = 1.0) -> float:
    """The limit of the loss by the labels."""
    lost, won, _, count = evidence
    return tango(share * lost, share * won, share * count, Z)[1]


def limit_by_probabilities(evidence: Evidence, times: float = 1.0, share: float = 1.0) -> float:
    """By the reference's probabilities; by the right answers if these show beyond chance that more is lost,
    which `times_more` need not have found out: it is one number for all candidates."""
    lost, won, costs, count = evidence
    costs = np.minimum(times * costs, 1.0)
    total = sum_at_most(share * costs.sum(), share * np.square(costs).sum(), WRONG)
    by_probabilities = total / (share * count)
    least, most = tango(share * lost, share * won, share * count, Z)
    return most if least > by_probabilities else by_probabilities


def on_others(loss: Loss, lose: float, images: int) -> float:
    """The largest loss that other images may show by chance, in 95 % of cases, if the true loss is `lose`;
    `images` is their number. An image changes the loss only if the two answers differ."""
    return lose + Z * math.sqrt(loss.differing / images)


def sum_at_most(total: float, squares: float, level: float) -> float:
    """The upper limit, which is too low with this probability at most, of what a sum of weights of events
    is in the mean, if the events are rare and no weight is above 1.

    total: the sum of the weights that were seen. squares: of their squares.
    """
    from scipy.stats import chi2

    mean = total + 1
    variance = squares + 1
    return float(variance / (2 * mean) * chi2.ppf(1 - level, 2 * mean**2 / variance))


def needed(judged: LossEvidence, lose: float, times: float = 1.0, share: float = 1.0) -> int | None:
    """How many images would promise that a candidate loses less than that, to two digits, if it did on
    all as on these; None if it seems to lose as much. One in ORDERING of them puts candidates in order.

    times, share: as `limit` has them.
    """
    from scipy.optimize import brentq

    tested = judged.tested.images

    def above(log_times: float) -> float:
        """How far so many times the images promise too little, by what is better for the candidate: more
        images that put it in order find out which that is."""
        grown = share * math.exp(log_times)
        by_answers = limit_by_answers(judged.tested, grown)
        return min(by_answers, limit_by_probabilities(judged.tested, times, grown)) - lose

    longest = math.log(MOST / tested)
    if above(longest) > 0:
        return None
    count: float = tested
    if above(0.0) > 0:
        count = tested * math.exp(brentq(above, 0.0, longest))
    count *= ORDERING / (ORDERING - 1)
    step = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step
