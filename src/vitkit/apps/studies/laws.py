"""Scaling laws: the error of runs against their images or operations, and what it would be with more.

A scaling law is a saturating power law of images or operations. error(x) = floor + scale · x^-power: a
part that more of x removes, and a part that it does not.

What the runs allow is a region of laws: all whose sum of squares is little more than the best one's. The
interval of an error is the least and the largest that a law of the region gives (the profile of the
likelihood: Bates and Watts 1988, "Nonlinear Regression Analysis and Its Applications", Section 6.1). So it
knows of laws with and without a floor, and of any power.

Legend: P points (values of x), G powers that are tried, K numbers of a law that are not its power.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEAST_POINTS = 3  # three numbers are fitted
REACH = 3.0  # how far beyond the largest x a fit is believed, as a factor
POWERS = np.geomspace(0.01, 2.7, 190)
NEARBY = np.geomspace(
    1e-6, math.log(270), 400
)  # distances of other powers from the best, as logarithms
FLAT = 0.01  # an error that falls by less than this, from the least x to the most, does not fall
Points = Mapping[float, Sequence[float]]
"""The errors of the runs at each x."""


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


class RunMeans(NamedTuple):
    """The results of the runs, a value for each of P points."""

    xs: np.ndarray
    """Images or operations."""
    means: np.ndarray
    """The mean error of the runs there."""
    runs: np.ndarray
    """How many runs there are."""

    @property
    def unit(self) -> float:
        """The middle of the x, on a logarithmic axis."""
        return float(np.exp(np.log(self.xs).mean()))


class Fit(NamedTuple):
    """A law, and the other laws that the same runs allow."""

    law: Law
    """The one of least squares."""
    measured: RunMeans
    """What it was fitted to."""
    powers: np.ndarray
    """The powers of other laws that are tried, (G,)."""
    squares: float
    """The sum of squares that a law of the region has at most."""
    misfit: float
    """Root of the mean square by which the means lie beside the law."""
    deviation: float
    """Standard deviation of the runs at a point; NaN if each has one."""

    @property
    def low(self) -> float:
        """Smallest x that was measured."""
        return float(self.measured.xs[0])

    @property
    def high(self) -> float:
        """Largest x."""
        return float(self.measured.xs[-1])

    @property
    def falls(self) -> bool:
        """Whether the error falls from the least x to the most."""
        return bool(self.law.error(self.low) - self.law.error(self.high) >= FLAT)

    def interval(self, x: float) -> tuple[float, float]:
        """The interval of 95 % confidence of the mean error at x; of the floor, if x is infinite."""
        ends = [float(self.law.error(x))]
        for straight in _straight_lines(self.measured, self.powers, x):
            ends += straight.ends(self.squares).tolist()
        return max(min(ends), 0.0), min(max(ends), 1.0)

    def interval_of_power(self) -> tuple[float, float]:
        """The interval of 95 % confidence of the power."""
        least = np.full(len(self.powers), np.inf)
        for straight in _straight_lines(self.measured, self.powers, self.high):
            least = np.minimum(least, straight.squares)
        allowed = self.powers[least <= self.squares]
        return float(allowed.min()), float(allowed.max())

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
        if len(self.measured.xs) == LEAST_POINTS:
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
                "one run at each point says nothing about chance: give several `seeds`"
            )
        low, high = self.interval(x)
        if high - low > 0.2:
            sentences.append(
                f"the interval is {100 * (high - low):.0f} points wide: it says little"
            )
        return sentences


def fit(points: Points) -> Fit | None:
    """The law of least squares through the errors of some runs, each run with the same weight, and the
    region of laws that hold the true one in 95 % of studies; None for fewer than three values of x.

    The runs' variance is estimated from what lies between a run and the mean of its x and between
    those means and the law together, so that a law that holds badly is known badly.
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import t

    xs = np.array(sorted(points), float)
    if len(xs) < LEAST_POINTS:
        return None
    runs = [np.asarray(points[x], float) for x in xs]
    means = np.array([values.mean() for values in runs])
    measured = RunMeans(xs, means, np.array([len(values) for values in runs]))

    # The law: the best power of a table, then between its neighbours
    near = POWERS[_squares(measured, POWERS).argmin()]
    step = POWERS[1] / POWERS[0]
    found = minimize_scalar(
        lambda power: _squares(measured, np.array([power])).item(),
        bounds=(max(near / step, POWERS[0]), min(near * step, POWERS[-1])),
        method="bounded",
    )
    law = _law(measured, found.x)
    beside = law.error(xs) - means

    # How far runs of one x lie apart
    within = sum(((values - values.mean()) ** 2).sum() for values in runs)
    freedom = int(measured.runs.sum()) - len(xs)
    deviation = math.nan
    if freedom:
        deviation = math.sqrt(within / freedom)

    # The region: a law's squares are more than the least by the square of Student's t, at most
    best = float((measured.runs * beside**2).sum())
    left = int(measured.runs.sum()) - LEAST_POINTS
    squares = best
    if left:
        squares += t.ppf(0.975, left) ** 2 * (within + best) / left
    around = np.concatenate([law.power * np.exp(-NEARBY), law.power * np.exp(NEARBY)])
    powers = np.unique(np.clip(around, POWERS[0], POWERS[-1]))
    misfit = math.sqrt(float((beside**2).mean()))
    return Fit(law, measured, powers, squares, misfit, deviation)


# With its power given a law is a straight line


class StraightLines(NamedTuple):
    """For each of G powers, the least squares of K numbers, none of which is below 0: floor and scale,
    or one of them while the other is 0. Where a number of the least squares is below 0, the
    squares are infinite."""

    best: np.ndarray
    """The numbers, (G, K)."""
    squares: np.ndarray
    """Their sums of squares, (G,)."""
    plain_squares: np.ndarray
    """The same if numbers below 0 were allowed, (G,)."""
    spread: np.ndarray
    """The inverse of the normal equations, (G, K, K)."""
    at: np.ndarray
    """What an error is, in these numbers, at the x that is asked for: (G, K)."""

    def ends(self, squares: float) -> np.ndarray:
        """The smallest and the largest errors that laws predict whose sum of squares is at most
        this, for all powers for which there are such laws, in no order."""
        room = np.maximum(squares - self.plain_squares, 0.0)  # (G,)
        direction = np.einsum("gij,gj->gi", self.spread, self.at)
        variance = np.einsum("gi,gi->g", direction, self.at)
        length = np.sqrt(room / np.maximum(variance, 1e-300))[:, None]
        ends = []
        for numbers in (self.best - length * direction, self.best + length * direction):
            possible = (numbers >= 0).all(1) & (self.plain_squares <= squares)
            ends.append((numbers * self.at).sum(1)[possible])
        return np.concatenate(ends)


def _straight_lines(measured: RunMeans, powers: np.ndarray, x: float) -> list[StraightLines]:
    """With floor and scale, with scale alone and with floor alone."""
    falling = (measured.xs / measured.unit) ** -powers[:, None]  # (G, P)
    constant = np.ones_like(falling)
    there = (x / measured.unit) ** -powers
    both = _least_squares(
        measured, np.stack([constant, falling], 2), np.stack([np.ones_like(there), there], 1)
    )
    scale = _least_squares(measured, falling[..., None], there[:, None])
    floor = _least_squares(measured, constant[:1, :, None], np.ones((1, 1)))
    return [both, scale, floor]


def _least_squares(measured: RunMeans, design: np.ndarray, at: np.ndarray) -> StraightLines:
    """The least squares of the means for designs (G, P, K), each mean with the weight of its runs."""
    weighted = design * measured.runs[:, None]
    spread = np.linalg.inv(np.einsum("gpi,gpj->gij", weighted, design))
    best = np.einsum("gij,gpj,p->gi", spread, weighted, measured.means)
    beside = measured.means - np.einsum("gpi,gi->gp", design, best)
    plain_squares = (measured.runs * beside**2).sum(1)
    squares = np.where((best >= 0).all(1), plain_squares, np.inf)
    return StraightLines(best, squares, plain_squares, spread, at)


def _squares(measured: RunMeans, powers: np.ndarray) -> np.ndarray:
    """The least sum of squares with each power, (G,)."""
    several = [lines.squares for lines in _straight_lines(measured, powers, measured.unit)]
    return np.minimum(np.minimum(several[0], several[1]), several[2])


def _law(measured: RunMeans, power: float) -> Law:
    """The law of least squares with a power."""
    both, scale, floor = _straight_lines(measured, np.array([power]), measured.unit)
    numbers = {
        both.squares[0]: both.best[0],
        scale.squares[0]: (0.0, scale.best[0, 0]),
        floor.squares[0]: (floor.best[0, 0], 0.0),
    }
    best = numbers[min(numbers)]
    return Law(float(best[0]), float(best[1]), float(power), measured.unit)


# What people read


def answer(name: str, fitted: Fit | None, x: float, what: str) -> list[str]:
    """The prediction for a series at x, with its uncertainty and warnings, as sentences."""
    if fitted is None:
        return [f"{name}: a law needs {LEAST_POINTS} different points, and there are fewer"]
    value = 100 * (1 - float(fitted.law.error(x)))
    sentence = f"{name} with {x:,.6g} {what}: {value:.1f} %"
    if not math.isnan(fitted.deviation):
        low, high = fitted.interval(x)
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
    floors = fitted.interval(math.inf)
    powers = fitted.interval_of_power()
    return (
        f"{name}: the error falls with a power of {law.power:.2f} ({powers[0]:.2f} to {powers[1]:.2f}) "
        f"towards {100 * law.floor:.0f} % ({100 * floors[0]:.0f} to {100 * floors[1]:.0f} %)"
    )
