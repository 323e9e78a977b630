"""Metrics: what evaluators measure, each with a name, a value, a unit and an interval of 95 % confidence.

The unit decides how a metric is printed, plotted and compared. The name is only shown: no code
depends on it. Intervals are Wilson's for shares of images, and bootstrap intervals for all else.
Images of one group, such as the shots of a burst, count as their effective number of independent images,
and are resampled together.

Legend: N images, R resamples, M numbers computed from each resample.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from vitkit.system.console.progress import Shown, bar, silent
from vitkit.system.errors import BadRun, BadSettings
from vitkit.system.processes.ranks import on_rank_0
from vitkit.system.storage.records import record_of, value_of

RESAMPLES = 1000
FORMAT = re.compile(r"\+?,?(\.\d{1,2})?[efg%]?")  # accepted formats of a unit read from a file
SAME = 1e-12  # largest range of resampled values that is due to rounding alone
# Half-width, in standard deviations, of the central 95 % of a normal distribution
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Unit:
    """The unit of a value, which decides how the value is shown and compared."""

    name: str
    """The unit's name in files."""
    axis: str
    """Title of a plot's axis with this unit."""
    better: Literal["higher", "lower", "neither"]
    """Which of two values is better."""
    format: str = ".4g"
    """Python format specification of a printed value."""
    scale: float = 1
    """Factor by which a value is multiplied before it is printed or plotted."""
    suffix: str = ""
    """Text after a printed value."""

    def text(self, value: float) -> str:
        """A value as it is printed, such as "72.40 %"."""
        return f"{value * self.scale:{self.format}}{self.suffix}"

    def range(self, low: float, high: float) -> str:
        """Two values as they are printed, such as "67.55 to 76.80 %"."""
        return f"{low * self.scale:{self.format}} to {self.text(high)}"


SHARE = Unit("share", "%", "higher", ".2f", 100, " %")
"""From 0 to 1: the share of answers that are right, for example."""
MISFIT = Unit("misfit", "%", "lower", ".2f", 100, " %")
"""From 0 to 1: the distance of two shares, such as confidence and accuracy."""
RELATIVE_ERROR = Unit("relative error", "% of AlexNet's error", "lower", ".1f", 100, " %")
"""An error divided by AlexNet's (ImageNet-C): 1 for a model with as many errors as AlexNet."""
DEVIATION = Unit("deviation", "%", "neither", ".2f", 100, " %")
"""The standard deviation of a share, between runs or draws of images."""
NATS = Unit("nats", "nats", "lower", ".4f")
"""A cross-entropy, in units of the natural logarithm."""
SQUARED_ERROR = Unit("squared error", "squared error", "lower", ".4f")
"""A mean squared difference."""
ERROR = Unit("error", "error, in the unit of the targets", "lower", ".4g")
"""A mean absolute difference from the targets, in their unit."""
CORRELATION = Unit("correlation", "correlation", "higher", ".4f")
"""A correlation: 1 if the answers follow the targets exactly, 0 if they are unrelated."""
COUNT = Unit("count", "count", "neither", ",")
"""A whole number, such as of images."""
NUMBER = Unit("number", "", "neither", ".4g")
"""A number without a unit."""


def difference_of(unit: Unit) -> Unit:
    """The unit of a difference: printed with a sign, and in percentage points if `unit` is percent."""
    suffix = unit.suffix.replace(" %", " points")
    name = f"difference of {unit.name}"
    return replace(unit, name=name, format=f"+{unit.format}", suffix=suffix)


_UNITS = (
    SHARE,
    MISFIT,
    RELATIVE_ERROR,
    DEVIATION,
    NATS,
    SQUARED_ERROR,
    ERROR,
    CORRELATION,
    COUNT,
    NUMBER,
)
UNITS = {unit.name: unit for unit in (*_UNITS, *map(difference_of, _UNITS))}


@dataclass(frozen=True)
class Metric:
    """One number that an evaluator measured."""

    name: str
    """The metric's name, such as "top1", or "test/top1" with the part that it was measured on."""
    value: float
    """The measured number; NaN or infinite if the model's outputs are."""
    unit: Unit
    """The unit, which decides how the value is printed, plotted and compared."""
    interval: tuple[float, float] | None = None
    """Interval of 95 % confidence for other images of the same kind; None if it is unknown."""

    def text(self) -> str:
        """The value as it is printed, with its interval: "72.40 % (67.55 to 76.80 %)"."""
        text = self.unit.text(self.value)
        if self.interval is None:
            return text
        return f"{text} ({self.interval_text()})"

    def interval_text(self) -> str:
        """The interval as it is printed, such as "67.55 to 76.80 %"; empty if there is none."""
        if self.interval is None:
            return ""
        return self.unit.range(*self.interval)

    def beats(self, other: "Metric") -> bool:
        """Whether the value is better than the other's; NaN is worse than any number. Raises
        VitkitError for different units, and for a unit without a better direction."""
        if self.unit != other.unit or self.unit.better == "neither":
            raise BadSettings(
                f"{self.name} in {self.unit.name} and {other.name} in {other.unit.name} cannot be "
                "compared"
            )
        if math.isnan(self.value):
            return False
        if math.isnan(other.value):
            return True
        if self.unit.better == "higher":
            return self.value > other.value
        return self.value < other.value

    def within(self, part: str) -> "Metric":
        """Returns a copy whose name begins with the part that it was measured on: "test/top1"."""
        return replace(self, name=f"{part}/{self.name}")

    def to_json(self) -> dict:
        """The metric without its name as plain values, for JSON. NaN and infinity, which JSON has no
        numbers for, become null with a note."""
        number, note = plain_number(self.value)
        values: dict[str, Any] = {"value": number, "unit": self.unit.name}
        # A unit of a user's own evaluator is written in full
        if UNITS.get(self.unit.name) != self.unit:
            values["unit"] = asdict(self.unit)
        if note:
            values["note"] = note
        if self.interval is not None:
            values["interval"] = list(self.interval)
        return values

    @classmethod
    def from_json(cls, name: str, values: dict) -> "Metric":
        """The metric from the values of `to_json`."""
        if isinstance(values["unit"], dict):
            unit = record_of(Unit, values["unit"])
            if not FORMAT.fullmatch(unit.format):
                raise BadRun(f"{unit.format[:100]!r} is no format of its values")
        else:
            unit = UNITS[values["unit"]]
        value = number_of(values["value"], values.get("note", ""))
        interval = values.get("interval")
        if interval is not None:
            interval = value_of(tuple[float, float], interval, "its interval")
        return cls(name, value, unit, interval)


def plain_number(value: float) -> tuple[float | None, str]:
    """A finite number and an empty note; for any other, None and the note "nan", "inf" or "-inf"."""
    if math.isfinite(value):
        return value, ""
    return None, str(float(value))


def number_of(value: float | None, note: str) -> float:
    """The number that `plain_number` was given. Raises VitkitError for anything else."""
    if value is None:
        if note not in ("nan", "inf", "-inf"):
            raise BadRun(f"{str(note)[:100]!r} is no number")
        return float(note)
    value_of(float, value, "its value")
    return value


# Intervals


def share_right(name: str, right: np.ndarray, groups: np.ndarray | None = None) -> Metric:
    """The share of answers that are right, (N,), with its interval; NaN if any of them is NaN.

    groups: answers to images with the same number, (N,), are not independent; None if all are.
    """
    share = float(np.mean(right))
    interval = None
    if not math.isnan(share):
        interval = share_interval(right, groups)
    return Metric(name, share, SHARE, interval)


def wilson(right: float, seen: float, z: float = Z_95) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: `right` of `seen` independent answers were right.

    Unlike the normal approximation, it holds near 0 and 1 too, and for a few dozen images. z: the quantile,
    by default the normal distribution's.
    """
    share = right / seen
    spread = z * math.sqrt(max(share * (1 - share), 0.0) / seen + z**2 / (4 * seen**2))
    centre = share + z**2 / (2 * seen)
    whole = 1 + z**2 / seen
    low = max((centre - spread) / whole, 0.0)
    high = min((centre + spread) / whole, 1.0)
    if right == 0:  # the formula gives exactly 0, apart from rounding
        low = 0.0
    if right == seen:
        high = 1.0
    return low, high


# Groups of dependent images, such as the shots of a burst: their effective number is smaller


def group_count(count: int, groups: np.ndarray | None) -> int:
    """The number of independent units among `count` images: the number of distinct `groups`, (N,), or of
    images if there are no groups."""
    if groups is None:
        return count
    return len(np.unique(groups))


def shared_groups(groups: np.ndarray | None) -> np.ndarray | None:
    """The number of each image's group, (N,), if two images are in one group; None if all are independent."""
    if groups is None or group_count(len(groups), groups) == len(groups):
        return None
    return groups


class GroupSums(NamedTuple):
    """The sums over groups of answers from which the interval of their mean is computed. For each group, s
    is the sum of the answers' values (1 for a right one, 0 for a wrong one), and m the number of answers."""

    groups: int
    """The number of groups."""
    answers: int
    """The sum of m."""
    total: float
    """The sum of s."""
    value_squares: float
    """The sum of the squared values."""
    total_squares: float
    """The sum of s²."""
    products: float
    """The sum of s m."""
    size_squares: float
    """The sum of m²."""

    @classmethod
    def of(cls, values: np.ndarray, groups: np.ndarray) -> "GroupSums":
        """The sums of values, (N,), in groups with these numbers, (N,)."""
        values = np.asarray(values, dtype=np.float64)
        numbers = np.unique(groups, return_inverse=True)[1]
        s = np.bincount(numbers, values)
        m = np.bincount(numbers).astype(np.float64)
        sums = (values.sum(), values @ values, s @ s, s @ m, m @ m)
        return cls(len(m), len(values), *map(float, sums))

    def design_effect(self, variance: float) -> float:
        """The design effect: the factor by which grouping reduces the effective number of answers.

        It is the variance of the groups' sums, divided by what it would be if all answers were
        independent (Rao and Scott 1992). A few groups may vary little by chance, so a pseudo-group of
        equal answers is added; and a group counts as at least one independent answer.

        variance: of an answer of the pseudo-group.
        """
        mean = self.total / self.answers
        together = self.total_squares - 2 * mean * self.products + mean**2 * self.size_squares
        together = max(together, 0.0) * self.groups / max(self.groups - 1, 1)
        alone = max(self.value_squares - self.answers * mean**2, 0.0)
        largest = self.size_squares / self.answers  # if the answers of each group are all equal
        pseudo = variance * self.answers / self.groups
        effect = (together + largest * pseudo) / (alone + pseudo)
        return min(max(effect, 1.0), largest)

    def interval(self) -> tuple[float, float]:
        """The interval of 95 % confidence of the share of answers that are right: Wilson's, for the
        effective number of answers, with Student's quantile for the number of groups."""
        shrunk = (self.total + 2) / (self.answers + 4)  # towards a half (Agresti and Coull)
        effect = self.design_effect(shrunk * (1 - shrunk))
        return wilson(self.total / effect, self.answers / effect, student(self.groups))


def share_interval(right: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float]:
    """The interval of 95 % confidence of the share of answers that are right, (N,): Wilson's.

    groups: answers with the same number, (N,), are not independent, so they count as fewer answers.
    """
    shared = shared_groups(groups)
    if shared is None:
        return wilson(float(np.sum(right)), len(right))
    return GroupSums.of(right, shared).interval()


def student(units: int) -> float:
    """Student's t quantile for a 95 % interval, from the number of independent images or groups."""
    from scipy.special import stdtrit

    return float(stdtrit(max(units - 1, 1), 0.975))


class _Members:
    """The images of each group."""

    def __init__(self, groups: np.ndarray):
        """groups: the number of each image's group, (N,)."""
        self.order = np.argsort(groups, kind="stable")
        self.sizes = np.unique(groups, return_counts=True)[1]
        self.starts = self.sizes.cumsum() - self.sizes

    def of(self, drawn: np.ndarray) -> np.ndarray:
        """Drawn groups, with repetitions, (G,) -> the indices of all their images, (at least G,)."""
        sizes = self.sizes[drawn]
        place = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
        return self.order[np.repeat(self.starts[drawn], sizes) + place]


def resampled(
    statistic: Callable[[np.ndarray], np.ndarray],
    count: int,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """The bootstrap (Efron): a statistic's values on RESAMPLES resamples of the images, float64 (R, M).

    `statistic` gets the indices of N images drawn with replacement, int64, and returns M numbers. The
    draws depend on nothing but `count` and `groups`.

    groups: images with the same number, (N,), are drawn together (the cluster bootstrap); None draws each
    image alone.
    """
    random = np.random.Generator(np.random.PCG64(0))
    show: Shown = silent
    if on_rank_0():
        show = bar("resampling for the intervals")
    units = group_count(count, groups)
    shared = shared_groups(groups)
    members = None
    if shared is not None:
        members = _Members(shared)
    rows = []
    for _ in show(range(RESAMPLES), RESAMPLES):
        drawn = random.integers(0, units, units)
        if members is not None:
            drawn = members.of(drawn)
        rows.append(statistic(drawn))
    return np.stack(rows)


def with_intervals(
    units: Mapping[str, Unit],
    figures: Callable[[np.ndarray], np.ndarray],
    count: int,
    finite: bool = True,
    groups: np.ndarray | None = None,
    fewer: float = 1.0,
) -> list[Metric]:
    """Metrics of `count` images with these names and units, with bootstrap intervals if all answers are
    finite.

    figures: computes the M values of some of the images, from their indices.
    groups: images with the same number, (N,), are drawn together.
    fewer: factor by which the number of images is reduced for the intervals, for values that vary for
        other reasons than the draw of images too.
    """
    values = figures(np.arange(count)).tolist()
    intervals: list = [None] * len(values)
    if finite:
        independent = group_count(count, groups)
        columns = resampled(figures, count, groups=groups).T
        intervals = [interval_of(column, independent) for column in columns]
        if fewer > 1:
            known = zip(units.values(), values, intervals, strict=True)
            intervals = [widened(*each, math.sqrt(fewer)) for each in known]
        intervals = list(map(possible, intervals, units.values()))
    metrics = []
    for (name, unit), value, interval in zip(units.items(), values, intervals, strict=True):
        metrics.append(Metric(name, value, unit, interval))
    return metrics


def interval_of(
    values: np.ndarray, units: int, unit: Unit | None = None
) -> tuple[float, float] | None:
    """The interval of R resampled values, within what is possible in their unit; `units` is the number of
    independent images or groups. None if all values are equal, as for a single image or if every answer is right:
    then they say nothing about other images. None also if any value is not finite, such as the R² of equal
    targets."""
    if not np.isfinite(values).all() or np.ptp(values) < SAME:
        return None
    return possible(percentiles(values, units), unit)


def possible(interval: tuple[float, float] | None, unit: Unit | None) -> tuple[float, float] | None:
    """The part of an interval that is possible in a unit."""
    if interval is None:
        return None
    low, high = interval
    if unit in (NATS, SQUARED_ERROR, ERROR):
        low = max(low, 0.0)
    elif unit in (SHARE, MISFIT):
        low, high = max(low, 0.0), min(high, 1.0)
    elif unit == CORRELATION:  # R², which is one here, has no lower bound
        high = min(high, 1.0)
    return low, high


def widened(
    unit: Unit, value: float, interval: tuple[float, float] | None, times: float
) -> tuple[float, float] | None:
    """The interval with both ends `times` as far from the value: for an error on a logarithmic scale, and for a
    correlation on the logarithm of its distance from 1, so that the interval stays within the possible values."""
    if interval is None:
        return None
    far = []
    for end in interval:
        if unit == ERROR and min(value, end) > 0:
            far.append(value * (end / value) ** times)
        elif unit == CORRELATION and max(value, end) < 1:
            far.append(1 - (1 - value) * ((1 - end) / (1 - value)) ** times)
        else:
            far.append(value + times * (end - value))
    low, high = far
    if unit == SHARE:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


FEW = 5  # independent images or groups, of which percentiles of resamples hold less than 95 %


def percentiles(values: np.ndarray, units: int) -> tuple[float, float]:
    """The 95 % interval of R resampled values; `units` is the number of independent images or groups.

    With many units it is the central 95 % of the values. Resampling few units gives values that vary too
    little, so the interval is widened (Hesterberg 2015, "What teachers should know about the bootstrap",
    the expanded percentile interval). Of fewer than FEW units no percentiles are far enough apart, as no
    resample lies beyond the units' own values, so that is Student's interval with the resamples' deviation.
    """
    from scipy.special import ndtr

    if 1 < units < FEW:
        half = student(units) * float(values.std()) * math.sqrt(units / (units - 1))
        middle = float(values.mean())
        return middle - half, middle + half
    outside = float(ndtr(-math.sqrt(units / max(units - 1, 1)) * student(units)))
    low, high = np.quantile(values, (outside, 1 - outside))
    return float(low), float(high)


def basic_percentiles(value: float, values: np.ndarray, units: int) -> tuple[float, float]:
    """The interval of the basic (reverse percentile) bootstrap around `value`, cut off at 0.

    It suits a statistic that is biased upwards, such as the calibration error: the resampled values exceed
    `value` about as much as `value` exceeds the truth.
    """
    low, high = percentiles(values, units)
    return max(2 * value - high, 0.0), max(2 * value - low, 0.0)
