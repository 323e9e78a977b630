"""Scaling laws: the error of runs as a function of training images or operations, and its extrapolation.

A scaling law is a saturating power law, error(x) = floor + scale · x^-power: one part of the error
decreases with x, the other is constant.

The results of the runs are compatible with a region of laws: those whose sum of squares is not much
larger than the best one's. The confidence interval of an error spans the errors of all laws of the
region (profile likelihood: Bates and Watts 1988, "Nonlinear Regression Analysis and Its
Applications", Section 6.1). It includes laws with and without a floor, and with any power.

Legend: P points (values of x), G trial powers, K linear parameters of a law (floor and scale, or
one of them).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEAST_POINTS = 3  # a law has three parameters
REACH = 3.0  # largest factor by which a law is extrapolated beyond the measured x
POWERS = np.geomspace(0.01, 2.7, 190)
NEARBY = np.geomspace(
    1e-6, math.log(270), 400
)  # logarithmic distances of trial powers from the best one
FLAT = 0.01  # smallest decrease of the error, from the smallest x to the largest, for a law
Points = Mapping[float, Sequence[float]]
"""The errors of the runs at each x."""


class Law(NamedTuple):
    """error(x) = floor + scale · (x / unit)^-power."""

    floor: float
    """Error that remains for infinite x."""
    scale: float
    """Error above the floor at x = unit."""
    power: float
    """Exponent of the decrease."""
    unit: float
    """Middle of the fitted x, so that the estimates of scale and power are almost independent."""

    def error(self, x: np.ndarray | float) -> np.ndarray | float:
        """The error at x."""
        return self.floor + self.scale * (np.asarray(x) / self.unit) ** -self.power


class RunMeans(NamedTuple):
    """The mean results of the runs at each of P points."""

    xs: np.ndarray
    """Images or operations, (P,)."""
    means: np.ndarray
    """Mean error of the runs at each point, (P,)."""
    runs: np.ndarray
    """Number of runs at each point, (P,)."""

    @property
    def unit(self) -> float:
        """The middle of the points on a logarithmic axis."""
        return float(np.exp(np.log(self.xs).mean()))


class Fit(NamedTuple):
    """A fitted law, and the region of laws that are compatible with the same runs."""

    law: Law
    """The law of least squares."""
    measured: RunMeans
    """The results to which it was fitted."""
    powers: np.ndarray
    """Powers of other laws that are tried, (G,)."""
    squares: float
    """Largest sum of squares of a law in the region."""
    misfit: float
    """Root mean square difference between the means and the law."""
    deviation: float
    """Standard deviation of the runs at a point; NaN with one run per point."""

    @property
    def low(self) -> float:
        """The smallest measured x."""
        return float(self.measured.xs[0])

    @property
    def high(self) -> float:
        """Largest x."""
        return float(self.measured.xs[-1])

    @property
    def falls(self) -> bool:
        """Whether the error decreases from the smallest x to the largest."""
        return bool(self.law.error(self.low) - self.law.error(self.high) >= FLAT)

    def interval(self, x: float) -> tuple[float, float]:
        """The 95 % confidence interval of the mean error at x; of the floor for infinite x."""
        ends = [float(self.law.error(x))]
        for straight in _straight_lines(self.measured, self.powers, x):
            ends += straight.ends(self.squares).tolist()
        return max(min(ends), 0.0), min(max(ends), 1.0)

    def interval_of_power(self) -> tuple[float, float]:
        """The 95 % confidence interval of the power."""
        least = np.full(len(self.powers), np.inf)
        for straight in _straight_lines(self.measured, self.powers, self.high):
            least = np.minimum(least, straight.squares)
        allowed = self.powers[least <= self.squares]
        return float(allowed.min()), float(allowed.max())

    def warnings(self, x: float) -> list[str]:
        """Sentences about why the law may not hold at x; empty if there is no objection."""
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
                f"{LEAST_POINTS} points determine the {LEAST_POINTS} numbers of any law, so "
                "there is no test of whether this one holds"
            )
        if not self.falls:
            sentences.append(
                "the error does not fall in what was measured, so there is no law to use"
            )
        if math.isnan(self.deviation):
            sentences.append(
                "one run at each point does not show the effect of chance: give several `seeds`"
            )
        low, high = self.interval(x)
        if high - low > 0.2:
            sentences.append(
                f"the interval is {100 * (high - low):.0f} points wide: it says little"
            )
        return sentences


def fit(points: Points) -> Fit | None:
    """Fit a law to the errors of runs by least squares, each run with the same weight, and find the
    region of laws that contains the true one in 95 % of studies. None for fewer than three values
    of x.

    The variance is estimated from the deviations of runs from the mean at their x and of these means from
    the law together, so a law that fits badly has wide intervals.
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import t

    xs = np.array(sorted(points), float)
    if len(xs) < LEAST_POINTS:
        return None
    runs = [np.asarray(points[x], float) for x in xs]
    means = np.array([values.mean() for values in runs])
    measured = RunMeans(xs, means, np.array([len(values) for values in runs]))

    # The best power of a table, then refined between its neighbours
    near = POWERS[_squares(measured, POWERS).argmin()]
    step = POWERS[1] / POWERS[0]
    found = minimize_scalar(
        lambda power: _squares(measured, np.array([power])).item(),
        bounds=(max(near / step, POWERS[0]), min(near * step, POWERS[-1])),
        method="bounded",
    )
    law = _law(measured, found.x)
    beside = law.error(xs) - means

    # The variance of runs at the same x
    within = sum(((values - values.mean()) ** 2).sum() for values in runs)
    freedom = int(measured.runs.sum()) - len(xs)
    deviation = math.nan
    if freedom:
        deviation = math.sqrt(within / freedom)

    # The region: its sums of squares exceed the smallest one by at most the square of Student's t
    best = float((measured.runs * beside**2).sum())
    left = int(measured.runs.sum()) - LEAST_POINTS
    squares = best
    if left:
        squares += t.ppf(0.975, left) ** 2 * (within + best) / left
    around = np.concatenate([law.power * np.exp(-NEARBY), law.power * np.exp(NEARBY)])
    powers = np.unique(np.clip(around, POWERS[0], POWERS[-1]))
    misfit = math.sqrt(float((beside**2).mean()))
    return Fit(law, measured, powers, squares, misfit, deviation)


# For a given power, a law is linear


class StraightLines(NamedTuple):
    """Linear least squares for each of G powers, with K non-negative parameters: floor and scale,
    or one of them while the other is 0. Where the unconstrained solution has a negative parameter,
    the sum of squares is infinite."""

    best: np.ndarray
    """Parameters, (G, K)."""
    squares: np.ndarray
    """Sums of squares, (G,)."""
    plain_squares: np.ndarray
    """Sums of squares of the unconstrained solutions, (G,)."""
    spread: np.ndarray
    """Inverse of the normal equations, (G, K, K)."""
    at: np.ndarray
    """Coefficients of the parameters in the error at the requested x, (G, K)."""

    def ends(self, squares: float) -> np.ndarray:
        """The smallest and the largest errors predicted by laws with at most this sum of squares, for all
        powers that have such laws, in no particular order."""
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
    """Least squares with floor and scale, with scale only, and with floor only."""
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
    """Least squares of the means for designs (G, P, K), each mean weighted by its number of runs."""
    weighted = design * measured.runs[:, None]
    spread = np.linalg.inv(np.einsum("gpi,gpj->gij", weighted, design))
    best = np.einsum("gij,gpj,p->gi", spread, weighted, measured.means)
    beside = measured.means - np.einsum("gpi,gi->gp", design, best)
    plain_squares = (measured.runs * beside**2).sum(1)
    squares = np.where((best >= 0).all(1), plain_squares, np.inf)
    return StraightLines(best, squares, plain_squares, spread, at)


def _squares(measured: RunMeans, powers: np.ndarray) -> np.ndarray:
    """The smallest sum of squares for each power, (G,)."""
    several = [lines.squares for lines in _straight_lines(measured, powers, measured.unit)]
    return np.minimum(np.minimum(several[0], several[1]), several[2])


def _law(measured: RunMeans, power: float) -> Law:
    """The law of least squares with a given power."""
    both, scale, floor = _straight_lines(measured, np.array([power]), measured.unit)
    numbers = {
        both.squares[0]: both.best[0],
        scale.squares[0]: (0.0, scale.best[0, 0]),
        floor.squares[0]: (floor.best[0, 0], 0.0),
    }
    best = numbers[min(numbers)]
    return Law(float(best[0]), float(best[1]), float(power), measured.unit)


# Sentences for people


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
