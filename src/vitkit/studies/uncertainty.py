"""What the runs of a study say, and how surely: means with their deviation, differences beyond chance,
and scaling laws.

A scaling law is a saturating power law of images or operations. error(x) = floor + scale · x^-power: a
part that more of x removes, and a part that it does not.

Legend: P points (values of x), S runs (seeds) at a point, R resamples.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from vitkit.evaluation import Metric

RESAMPLES = 500
LEAST_POINTS = 3  # three numbers are fitted
REACH = 3.0  # how far beyond the largest x a fit is believed, as a factor
STEP = 1.03  # between two powers that are tried
POWERS = 0.01 * STEP ** np.arange(190)  # up to 2.7
FLAT = 0.01  # an error that falls by less than this, from the least x to the most, does not fall
Points = Mapping[float, Sequence[float]]
"""The errors of the runs at each x."""


# Means of runs that differ by their seed, and what chance makes of them


def mean_and_deviation(metrics: Sequence[Metric]) -> tuple[float, float]:
    """The mean of some runs' values, and their sample standard deviation; NaN for one run."""
    values = [metric.value for metric in metrics]
    deviation = math.nan
    if len(values) > 1:
        deviation = statistics.stdev(values)
    return statistics.fmean(values), deviation


def cell_text(metrics: Sequence[Metric]) -> str:
    """Mean and standard deviation of runs, in percent: "41.3 ± 0.6"; "–" without runs."""
    if not metrics:
        return "–"
    scale = metrics[0].unit.scale
    mean, deviation = mean_and_deviation(metrics)
    if math.isnan(deviation):
        return f"{mean * scale:.1f}"
    return f"{mean * scale:.1f} ± {deviation * scale:.1f}"


@cache  # a tenth of a second
def _range_of_chance(groups: int, freedom: int) -> float:
    """The range of so many means by chance, in standard errors, that 95 % of studies stay below."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(0.95, groups, freedom))


def noise(groups: Iterable[Sequence[Metric]]) -> list[str]:
    """The least difference of two means that is more than chance, by the deviation within all groups
    together: a sentence for two that were chosen beforehand (Student's t), and one for the best and
    the worst of all, which chance alone puts farther apart (Tukey's studentized range)."""
    from scipy.stats import t

    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return ["one run of each kind says nothing about chance: give several --seeds"]
    squares = 0.0
    for group in several:
        squares += statistics.variance([m.value for m in group]) * (len(group) - 1)
    deviation = math.sqrt(squares / freedom)
    runs = min(len(group) for group in several)
    least = t.ppf(0.975, freedom) * deviation * math.sqrt(2 / runs)
    scale = several[0][0].unit.scale
    sentence = (
        f"runs that differ by their seed alone deviate by {deviation * scale:.1f}; so two means of "
        f"{runs} runs differ by more than chance from {least * scale:.1f} on (95 %, for one comparison)"
    )
    if len(several) < 2:
        return [sentence]

    # The best and the worst of all
    means = [mean_and_deviation(group)[0] for group in several]
    spread = max(means) - min(means)
    by_chance = _range_of_chance(len(several), freedom) * deviation / math.sqrt(runs)
    verdict = "more"
    if spread <= by_chance:
        verdict = "no more, so this study shows no difference"
    of_all = (
        f"the best and the worst of {len(several)} differ by {spread * scale:.1f}, and by chance alone "
        f"they differ by up to {by_chance * scale:.1f}: {verdict}"
    )
    return [sentence, of_all]


# Scaling laws


class Law(NamedTuple):
    """error(x) = floor + scale · (x / unit)^-power."""

    floor: float
    """The error that no x removes."""
    scale: float
    """What there is above it at x = unit."""
    power: float
    """How fast that falls."""
    unit: float
    """The middle of the fitted x, so that scale and power are estimated almost independently."""

    def error(self, x: np.ndarray | float) -> np.ndarray | float:
        """The error at x."""
        return self.floor + self.scale * (np.asarray(x) / self.unit) ** -self.power


class Fit(NamedTuple):
    """A law, and the laws of the same runs drawn again."""

    law: Law
    """Of all runs."""
    resampled: tuple[Law, ...]
    """R laws of runs drawn with replacement."""
    low: float
    """Smallest x that was measured."""
    high: float
    """Largest x."""
    misfit: float
    """Root of the mean square by which the means lie beside the law."""
    deviation: float
    """Standard deviation of the runs at a point; NaN if each has one."""
    points: int
    """How many values of x there are."""

    @property
    def falls(self) -> bool:
        """Whether the error falls from the least x to the most."""
        return bool(self.law.error(self.low) - self.law.error(self.high) >= FLAT)

    def interval(self, x: float) -> tuple[float, float]:
        """The interval of 95 % confidence of the error at x."""
        values = [float(law.error(x)) for law in self.resampled]
        low, high = np.percentile(values, (2.5, 97.5))
        return float(max(low, 0.0)), float(min(high, 1.0))

    def warnings(self, x: float) -> list[str]:
        """Why the law may not hold at x, in sentences; none if nothing speaks against it."""
        sentences = []
        if x > REACH * self.high or x < self.low / REACH:
            sentences.append(
                f"{x:,.6g} is far from what was measured, {self.low:,.6g} to {self.high:,.6g}: the law "
                f"is not known to hold beyond a factor of {REACH:g}"
            )
        if not math.isnan(self.deviation) and self.misfit > 2 * self.deviation:
            sentences.append(
                f"the points lie {100 * self.misfit:.1f} points beside the law and the runs deviate by "
                f"{100 * self.deviation:.1f} only: they follow another law"
            )
        if self.points == LEAST_POINTS:
            sentences.append(
                f"{LEAST_POINTS} points determine the {LEAST_POINTS} numbers of any law: none is left to "
                "say whether this one holds"
            )
        if not self.falls:
            sentences.append(
                "the error does not fall in what was measured, so there is no law to use"
            )
        if math.isnan(self.deviation):
            sentences.append(
                "one run at each point says nothing about chance: give several --seeds"
            )
        low, high = self.interval(x)
        if high - low > 0.2:
            sentences.append(
                f"the interval is {100 * (high - low):.0f} points wide: it says little"
            )
        return sentences


def fit(points: Points) -> Fit | None:
    """The law through the errors of some runs; None for fewer than three values of x.

    The law is fitted to the mean of each x, by least squares. Its uncertainty is a bootstrap over
    seeds: since a few runs of one x say little of chance, what lies between a run and the mean of its
    x is pooled over all x, and drawn from there with replacement.
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import norm, t

    xs = np.array(sorted(points))
    if len(xs) < LEAST_POINTS:
        return None
    runs = [np.asarray(points[x], float) for x in xs]
    means = np.array([values.mean() for values in runs])

    # The deviation of runs at one x, of all x together
    freedom = sum(len(values) - 1 for values in runs)
    deviation = math.nan
    if freedom:
        deviation = math.sqrt(sum(((v - v.mean()) ** 2).sum() for v in runs) / freedom)

    # Other runs of the same kind: a run's residual is a little small, for the mean is its own
    residuals = [np.zeros(1)]
    if freedom:
        several = [values for values in runs if len(values) > 1]
        residuals = [(v - v.mean()) * math.sqrt(len(v) / (len(v) - 1)) for v in several]
        # The deviation itself is known from a few runs only: Student's t instead of the normal
        residuals = [values * t.ppf(0.975, freedom) / norm.ppf(0.975) for values in residuals]
    pooled = np.concatenate(residuals)
    random = np.random.default_rng(0)
    noise = [random.choice(pooled, (RESAMPLES, len(v))).mean(1) for v in runs]
    resampled = _laws(xs, means + np.stack(noise, 1), POWERS)

    # The law of all runs: the best power of the table, then between its neighbours
    near = _laws(xs, means[None], POWERS)[0].power
    found = minimize_scalar(
        lambda power: _linear(xs, means[None], np.array([power]))[2].item(),
        bounds=(near / STEP, near * STEP),
        method="bounded",
    )
    law = _laws(xs, means[None], np.array([found.x]))[0]
    misfit = math.sqrt(float(((law.error(xs) - means) ** 2).mean()))
    return Fit(law, tuple(resampled), float(xs[0]), float(xs[-1]), misfit, deviation, len(xs))


def _laws(xs: np.ndarray, errors: np.ndarray, powers: np.ndarray) -> list[Law]:
    """The law of least squares of each row of errors (R, P), with one of the powers (G,)."""
    floors, scales, squares = _linear(xs, errors, powers)
    best = squares.argmin(1)
    unit = _unit(xs)
    return [
        Law(float(floors[row, i]), float(scales[row, i]), float(powers[i]), unit)
        for row, i in enumerate(best)
    ]


def _linear(
    xs: np.ndarray, errors: np.ndarray, powers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With its power given a law is a straight line: floors, scales and sums of squares (R, G), for
    errors (R, P) and powers (G,). Neither floor nor scale is below 0."""
    falling = (xs / _unit(xs)) ** -powers[:, None]  # (G, P)
    centred = falling - falling.mean(1, keepdims=True)
    middle = errors.mean(1)[:, None]  # (R, 1)
    scales = (errors @ centred.T) / (centred**2).sum(1)  # (R, G)
    floors = middle - scales * falling.mean(1)
    below = floors < 0
    through_zero = (errors @ falling.T) / (falling**2).sum(1)
    scales = np.where(below, through_zero, scales)
    floors = np.where(below, 0.0, floors)
    flat = scales < 0
    scales = np.where(flat, 0.0, scales)
    floors = np.where(flat, middle, floors)
    predicted = floors[..., None] + scales[..., None] * falling  # (R, G, P)
    squares = ((predicted - errors[:, None]) ** 2).sum(2)
    return floors, scales, squares


def _unit(xs: np.ndarray) -> float:
    """The middle of the x, on a logarithmic axis."""
    return float(np.exp(np.log(xs).mean()))


def answer(name: str, fitted: Fit | None, x: float, what: str) -> list[str]:
    """What to expect of a series at x, with its uncertainty and the warnings, as sentences."""
    if fitted is None:
        return [f"{name}: a law needs {LEAST_POINTS} different points, and there are fewer"]
    low, high = fitted.interval(x)
    value = 100 * (1 - float(fitted.law.error(x)))
    sentence = f"{name} with {x:,.6g} {what}: {value:.1f} %"
    if not math.isnan(fitted.deviation):
        sentence += f" ({100 * (1 - high):.1f} to {100 * (1 - low):.1f} %)"
    return [sentence] + [f"{name}: {warning}" for warning in fitted.warnings(x)]


def law_text(name: str, fitted: Fit | None) -> str:
    """The law in a sentence."""
    if fitted is None:
        return f"{name}: too few points for a law"
    if not fitted.falls:
        return f"{name}: the error does not fall in what was measured, so there is no law"
    law = fitted.law
    if math.isnan(fitted.deviation):
        return (
            f"{name}: the error falls with a power of {law.power:.2f} towards {100 * law.floor:.0f} %, by "
            "one run at each point"
        )
    floors = np.percentile([each.floor for each in fitted.resampled], (2.5, 97.5))
    powers = np.percentile([each.power for each in fitted.resampled], (2.5, 97.5))
    return (
        f"{name}: the error falls with a power of {law.power:.2f} ({powers[0]:.2f} to {powers[1]:.2f}) "
        f"towards {100 * law.floor:.0f} % ({100 * floors[0]:.0f} to {100 * floors[1]:.0f} %)"
    )
