"""Two models on the same images: the difference of what they reach, and where they disagree.

Both answered every image, so the images on which both are right or both are wrong say nothing about
which is better. An interval of the difference that knows this is much narrower than the two models'
own intervals suggest.

Images that belong together, such as the shots of a burst, are right or wrong together. So images are
resampled by groups, and the test exchanges the two models on whole groups.

Legend: N images, R resamples, G groups.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.classification import RESAMPLED, TOP5_FROM, figures_of
from vitkit.evaluation.metrics.metric import (
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
    """A metric of both models, and how far the first is above the second."""

    first: Metric
    second: Metric
    difference: Metric


@dataclass(frozen=True)
class Disagreement:
    """An image that one model got right and the other wrong."""

    index: int
    """Which example of the source it is."""
    true: str
    first: str
    """The first model's answer."""
    second: str
    """The second model's answer."""
    first_right: bool
    """Whether the first model's is the right one."""
    confidence: float
    """The probability that the wrong model gave to its answer."""


class Paired(NamedTuple):
    """The comparison of two models on the same images."""

    differences: tuple[Difference, ...]
    both: int
    """How many images both got right."""
    only_first: int
    only_second: int
    neither: int
    p_value: float
    """McNemar's exact test, or `exchanged` of images in groups: how probable it is that two equally good
    models differ so much or more in whom they get right."""
    disagreements: tuple[Disagreement, ...]
    """Those with the most confident mistake first."""
    groups: int = 0
    """How many groups of images belong together, each image alone being one; 0 if all are alone."""

    @property
    def sentence(self) -> str:
        """The result of the test, in plain words."""
        verdict = "chance alone would explain such a difference"
        if self.p_value < 0.05:
            verdict = "chance alone hardly explains such a difference"
        return (
            f"only the first is right on {counted(self.only_first, 'image')}, only the second on "
            f"{self.only_second:,}, both on {self.both:,}, neither on {self.neither:,}: {verdict} "
            f"({test_of(self.groups)}, p = {self.p_value:.2g})"
        )


def paired(first: Answers, second: Answers) -> Paired:
    """Compare the answers of two models to the same images, whose groups are those of the first. Raises
    VitkitError if one model's outputs are not finite."""
    assert (first.indices == second.indices).all(), "these are not the same images"
    for name, given in (("first", first), ("second", second)):
        if not given.finite.all():
            raise BadWeights(f"outputs of the {name} model are not finite, so it compares to none")

    groups = first.groups

    # Shares of images, by the images on which the two differ
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
    """The difference of two shares of the same images: (N,), (N,) whether each is right. groups: the number
    of each image's group, (N,)."""
    first_share = share_right(name, first, groups)
    second_share = share_right(name, second, groups)
    both, only_first, only_second, neither = agreement(first, second)
    interval = newcombe(both, only_first, only_second, neither)
    shared = shared_groups(groups)
    if shared is not None:
        # The same shares of as many independent images as would tell as much
        differing = (only_first + only_second + 2) / (len(first) + 4)  # drawn towards a half
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
        change = Metric(name, first_value - second_value, difference_of(unit), interval)
        own = Metric(name, first_value, unit)
        other = Metric(name, second_value, unit)
        differences.append(Difference(own, other, change))
    return differences


def groups_if_any(images: int, groups: np.ndarray | None) -> int:
    """How many groups of images there are, by the number of each image's, (N,); 0 if each is alone."""
    count = group_count(images, groups)
    if count == images:
        return 0
    return count


def test_of(groups: int) -> str:
    """The name of the paired test, from the number of groups of images; 0 if each image is alone."""
    if not groups:
        return "McNemar's exact test"
    return f"McNemar's exact test on {counted(groups, 'group')} of images"


def agreement(first: np.ndarray, second: np.ndarray) -> tuple[int, int, int, int]:
    """(N,), (N,) -> how many both, only the first, only the second and neither got right."""
    counts = np.bincount(2 * first + second, minlength=4)
    neither, only_second, only_first, both = counts.tolist()
    return both, only_first, only_second, neither


def mcnemar(only_first: int, only_second: int, alternative: str = "two-sided") -> float:
    """The exact test's p-value: of the images on which one model alone is right, each would be right on
    half, if they were equally good. 1 if there are none. With the alternative "greater", how probable it
    is that the second, if it were as good, loses so many or more of the first one's images for those
    that it wins."""
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
    """The p-value of McNemar's exact test for images in groups: (N,), (N,) whether each model is right, and
    the number of each image's group, (N,).

    If the models are equally good, exchanging their answers to all images of a group changes nothing, so
    the difference between them in how many images of the group are right is as likely as its negative.
    The p-value is the probability, over all ways to exchange groups, of a sum of differences that is as
    far from 0; with the alternative "greater", of one that is as great. If each image is alone, that is
    McNemar's test.
    """
    from scipy.stats import binom

    differences = first.astype(np.int64) - second
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        differences = np.bincount(numbers, differences).round().astype(np.int64)
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)

    # The probability of each sum from its least to its greatest: of groups of one size it is binomial
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
    """The interval at 95 % of the difference of two shares of the same images.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", method 10: Wilson's intervals of the two shares, put together according
    to how often the two models are right together. z: the quantile, if it is not the normal
    distribution's.
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
    """The interval of the difference of two shares of the same images, by the score test; z is the
    normal quantile of each end, by default for 95 %.

    Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design". It holds where the two hardly ever differ, where Newcombe's gets too
    narrow: of N images without any difference it goes as far as 3.84 / (N + 3.84).
    """
    high = _tango_end(only_first, only_second, count, z)
    low = -_tango_end(only_second, only_first, count, z)
    return low, high


def _tango_end(only_first: float, only_second: float, count: float, z: float) -> float:
    """The largest difference that the score test does not refute."""
    from scipy.optimize import brentq

    def beyond(difference: float) -> float:
        """How far the statistic is above its limit, if that were the true difference."""
        # The likeliest share of images that only the second is right on: a quadratic equation
        linear = (2 * count - only_first + only_second) * difference - only_first - only_second
        product = only_second * difference * (1 - difference)
        second = (math.sqrt(linear**2 + 8 * count * product) - linear) / (4 * count)
        variance = count * (2 * second + difference * (1 - difference))
        return only_first - only_second - count * difference + z * math.sqrt(variance)

    seen = (only_first - only_second) / count
    least = seen + 1e-9  # at what was seen the variance may be 0
    most = 1 - 1e-9
    if least >= most:
        return 1.0
    return float(brentq(beyond, least, most))


def _side(first: float, second: float, correlation: float) -> float:
    """The length of one side of the interval, from those of the two shares' intervals."""
    return math.sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0))


def disagreements(first: Answers, second: Answers) -> list[Disagreement]:
    """The images that one model alone got right, those with the most confident mistake first."""
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
