"""Two models on the same images (paired): the differences of their metrics, and where they disagree.

The images on which both are right or both are wrong say nothing about which model is better. The interval of
a paired difference is therefore much narrower than the two models' own intervals suggest.

Images of one group, such as the shots of a burst, tend to be right or wrong together. So images are resampled
by groups, and the test exchanges the two models on whole groups.

Legend: N images, R resamples, G groups.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.classification import RESAMPLED, TOP5_FROM, figures_of
from vitkit.evaluation.metrics.metric import (
    MISFIT,
    SHARE,
    Z_95,
    GroupSums,
    Metric,
    difference_of,
    group_count,
    interval_of,
    resampled,
    share_right,
    shared_groups,
    student,
    wilson,
)
from vitkit.system.console.text import counted
from vitkit.system.errors import BadWeights


class Difference(NamedTuple):
    """A metric of both models, and the first one's value minus the second's."""

    first: Metric
    second: Metric
    difference: Metric


@dataclass(frozen=True)
class Disagreement:
    """An image that one model got right and the other wrong."""

    index: int
    """Index of the image in the source."""
    true: str
    """The true class."""
    first: str
    """The first model's answer."""
    second: str
    """The second model's answer."""
    first_right: bool
    """Whether the first model's answer is the right one."""
    confidence: float
    """The probability that the wrong model gave to its answer."""


class Paired(NamedTuple):
    """The comparison of two models on the same images."""

    differences: tuple[Difference, ...]
    both: int
    """Number of images that both models classified right."""
    only_first: int
    """Number of images that only the first model classified right."""
    only_second: int
    """Number of images that only the second model classified right."""
    neither: int
    """Number of images that both models classified wrong."""
    p_value: float
    """The p-value of McNemar's exact test, or of `exchanged` for images in groups: the probability that two
    equally good models differ at least as much in which images they classify right."""
    disagreements: tuple[Disagreement, ...]
    """The images that only one model classified right, those with the most confident mistake first."""
    groups: int = 0
    """Number of groups of images, an independent image being a group of its own; 0 if all are independent."""

    @property
    def sentence(self) -> str:
        """A sentence about the result of the test."""
        verdict = "chance alone would explain such a difference"
        if self.p_value < 0.05:
            verdict = "chance alone hardly explains such a difference"
        return (
            f"only the first is right on {counted(self.only_first, 'image')}, only the second on "
            f"{self.only_second:,}, both on {self.both:,}, neither on {self.neither:,}: {verdict} "
            f"({test_of(self.groups)}, p = {self.p_value:.2g})"
        )


def paired(first: Answers, second: Answers) -> Paired:
    """Compare the answers of two models to the same images; their groups are taken from `first`. Raises
    VitkitError if one model's outputs are not finite."""
    assert (first.indices == second.indices).all(), "these are not the same images"
    for name, given in (("first", first), ("second", second)):
        if not given.finite.all():
            raise BadWeights(f"outputs of the {name} model are not finite, so it compares to none")

    groups = first.groups

    # Shares of images: intervals in closed form, from the images on which the two differ
    differences = []
    tops = [1]
    if min(len(first.labels), len(second.labels)) >= TOP5_FROM:
        tops.append(5)
    for top in tops:
        rights = (first.rank < top, second.rank < top)
        differences.append(_of_shares(f"top{top}", *rights, groups))

    # The other figures, by resampling the same images for both
    differences += _of_figures(first, second)

    both, only_first, only_second, neither = agreement(first.right, second.right)
    return Paired(
        tuple(differences),
        both,
        only_first,
        only_second,
        neither,
        exchanged(first.right, second.right, groups),
        tuple(disagreements(first, second)),
        groups_if_any(len(first), groups),
    )


def _of_shares(
    name: str, first: np.ndarray, second: np.ndarray, groups: np.ndarray | None
) -> Difference:
    """The difference of two shares of the same images, from whether each model is right, (N,) and (N,).
    groups: the number of each image's group, (N,)."""
    first_share = share_right(name, first, groups)
    second_share = share_right(name, second, groups)
    both, only_first, only_second, neither = agreement(first, second)
    interval = newcombe(both, only_first, only_second, neither)
    shared = shared_groups(groups)
    if shared is not None:
        # The same shares of the effective number of independent images
        differing = (only_first + only_second + 2) / (len(first) + 4)  # shrunk towards a half
        sums = GroupSums.of(first.astype(float) - second, shared)
        n = sums.design_effect(differing)
        z = student(sums.groups)
        interval = newcombe(both / n, only_first / n, only_second / n, neither / n, z)
    value = first_share.value - second_share.value
    change = Metric(name, value, difference_of(SHARE), interval)
    return Difference(first_share, second_share, change)


def _of_figures(first: Answers, second: Answers) -> list[Difference]:
    """The differences of the figures that `Classification` resamples."""
    count = len(first)
    figures = (figures_of(first), figures_of(second))

    def both(rows: np.ndarray) -> np.ndarray:
        return np.stack([of_model(rows) for of_model in figures])

    values = both(np.arange(count))  # (2, figures)
    independent = group_count(count, first.groups)
    others = resampled(both, count, groups=first.groups)  # (R, 2, figures)
    differences = []
    for i, (name, unit) in enumerate(RESAMPLED.items()):
        first_value, second_value = values[:, i].tolist()
        interval = interval_of(others[:, 0, i] - others[:, 1, i], independent)
        if interval is not None and unit in (SHARE, MISFIT):
            low, high = interval
            interval = (max(low, -1.0), min(high, 1.0))
        change = Metric(name, first_value - second_value, difference_of(unit), interval)
        own = Metric(name, first_value, unit)
        other = Metric(name, second_value, unit)
        differences.append(Difference(own, other, change))
    return differences


def groups_if_any(images: int, groups: np.ndarray | None) -> int:
    """The number of groups of images, from each image's group number, (N,); 0 if all are independent."""
    count = group_count(images, groups)
    if count == images:
        return 0
    return count


def test_of(groups: int) -> str:
    """The name of the paired test, from the number of groups of images, or 0 if there are no groups."""
    if not groups:
        return "McNemar's exact test"
    return f"McNemar's exact test on {counted(groups, 'group')} of images"


def agreement(first: np.ndarray, second: np.ndarray) -> tuple[int, int, int, int]:
    """(N,), (N,) -> the numbers of images that both, only the first, only the second and neither model
    classified right."""
    counts = np.bincount(2 * first + second, minlength=4)
    neither, only_second, only_first, both = counts.tolist()
    return both, only_first, only_second, neither


def mcnemar(only_first: int, only_second: int, alternative: str = "two-sided") -> float:
    """The p-value of McNemar's exact test, which is a binomial test: of the images that only one model
    classifies right, two equally good models would have half each. 1 if there are no such images.

    alternative: "two-sided", or "greater" for whether the first model is better.
    """
    from scipy.stats import binomtest

    differing = only_first + only_second
    if not differing:
        return 1.0
    return float(binomtest(only_first, differing, 0.5, alternative).pvalue)


def exchanged(
    first: np.ndarray,
    second: np.ndarray,
    groups: np.ndarray | None = None,
    alternative: Literal["two-sided", "greater"] = "two-sided",
) -> float:
    """The p-value of an exact permutation test, McNemar's for images in groups, from whether each model is
    right, (N,) and (N,), and the number of each image's group, (N,).

    Under the null hypothesis the models are exchangeable on each group, so the difference of their numbers
    of right answers in a group is as likely as its negative. The p-value is the probability, over all
    exchanges, that the sum of differences is at least as far from 0; with the alternative "greater", that
    it is at least as great. Without groups it is McNemar's exact test.
    """
    from scipy.stats import binom

    differences = first.astype(np.int64) - second
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        differences = np.bincount(numbers, differences).round().astype(np.int64)
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)

    # The distribution of the sum: of groups with differences of one size it is binomial; convolve these
    probabilities = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        of_size = np.zeros(2 * size * count + 1)
        of_size[:: 2 * size] = binom.pmf(np.arange(count + 1), count, 0.5)
        probabilities = np.convolve(probabilities, of_size)
    middle = len(probabilities) // 2
    sums = np.arange(len(probabilities)) - middle
    seen = int(differences.sum())
    far = np.abs(sums) >= abs(seen)
    if alternative == "greater":
        far = sums >= seen
    return min(float(probabilities[far].sum()), 1.0)


def newcombe(
    both: float, only_first: float, only_second: float, neither: float, z: float = Z_95
) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares of the same images.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", method 10: Wilson's intervals of the two shares, combined with the correlation of
    the two models' being right. z: the quantile, by default the normal distribution's.
    """
    count = both + only_first + only_second + neither
    first_right = both + only_first
    second_right = both + only_second
    p = first_right / count
    q = second_right / count
    p_low, p_high = wilson(first_right, count, z)
    q_low, q_high = wilson(second_right, count, z)

    # The correlation of being right, with a correction for continuity
    correlation = 0.0
    product = first_right * second_right * (count - first_right) * (count - second_right)
    if product:
        excess = both * neither - only_first * only_second
        if excess > 0:
            excess = max(excess - count / 2, 0)
        correlation = excess / math.sqrt(product)

    below = _side(p - p_low, q_high - q, correlation)
    above = _side(p_high - p, q - q_low, correlation)
    return p - q - below, p - q + above


def tango(
    only_first: float, only_second: float, count: float, z: float = Z_95
) -> tuple[float, float]:
    """The interval of the difference of two shares of `count` images, by the score test. z: the normal
    quantile of each end, by default for 95 %.

    Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design". It holds for models that hardly ever differ, where Newcombe's is too narrow: for N
    images without any difference it extends to 3.84 / (N + 3.84).
    """
    high = _tango_end(only_first, only_second, count, z)
    low = -_tango_end(only_second, only_first, count, z)
    return low, high


def _tango_end(only_first: float, only_second: float, count: float, z: float) -> float:
    """The largest difference that the score test does not reject."""
    from scipy.optimize import brentq

    def beyond(difference: float) -> float:
        """How far the test statistic for this true difference is above its critical value."""
        # The maximum-likelihood share of images that only the second has right: a quadratic equation
        linear = (2 * count - only_first + only_second) * difference - only_first - only_second
        product = only_second * difference * (1 - difference)
        second = (math.sqrt(linear**2 + 8 * count * product) - linear) / (4 * count)
        variance = count * (2 * second + difference * (1 - difference))
        return only_first - only_second - count * difference + z * math.sqrt(variance)

    seen = (only_first - only_second) / count
    least = seen + 1e-9  # at the observed difference the variance may be 0
    most = 1 - 1e-9
    if least >= most:
        return 1.0
    return float(brentq(beyond, least, most))


def _side(first: float, second: float, correlation: float) -> float:
    """The length of one side of the interval, from the sides of the two shares' intervals."""
    return math.sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0))


def disagreements(first: Answers, second: Answers) -> list[Disagreement]:
    """The images that only one model classified right, those with the most confident mistake first."""
    found = []
    for i in np.flatnonzero(first.right != second.right).tolist():
        first_right = bool(first.right[i])
        wrong = second if first_right else first
        disagreement = Disagreement(
            index=int(first.indices[i]),
            true=first.labels[first.truth[i]],
            first=first.labels[first.predicted[i]],
            second=second.labels[second.predicted[i]],
            first_right=first_right,
            confidence=float(wrong.confidence[i]),
        )
        found.append(disagreement)
    return sorted(found, key=lambda each: -each.confidence)
