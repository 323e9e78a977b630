"""What an evaluator measures: a name, a value, and a unit that says all that anybody needs to know
of it.

The unit decides how a metric is printed, plotted and compared. The name is for people: nothing is
decided by it.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

Z_95 = (
    1.959963984540054  # standard deviations to either side that hold 95 % of a normal distribution
)


@dataclass(frozen=True)
class Unit:
    """What a value counts."""

    name: str
    """Its name in a file."""
    axis: str
    """Title of a plot's axis."""
    better: Literal["higher", "lower", "neither"]
    """Which of two values is the better one."""
    format: str = ".4g"
    """How Python formats a value, after `scale`."""
    scale: float = 1
    """What a value is multiplied by, to be printed and plotted."""
    suffix: str = ""
    """What follows a printed value."""

    def text(self, value: float) -> str:
        """A value as people read it, such as "72.40 %"."""
        return f"{value * self.scale:{self.format}}{self.suffix}"


SHARE = Unit("share", "%", "higher", ".2f", 100, " %")
"""From 0 to 1: of answers that are right, say."""
NATS = Unit("nats", "nats", "lower", ".4f")
"""A cross-entropy, in units of the natural logarithm."""
SQUARED_ERROR = Unit("squared error", "squared error", "lower", ".4f")
"""A mean of squared differences."""
ERROR = Unit("error", "error, in the unit of the targets", "lower", ".4g")
"""A mean difference from the targets, in their own unit."""
CORRELATION = Unit("correlation", "correlation", "higher", ".4f")
"""At most 1, for answers that say all there is to say; 0 for answers that say nothing."""
COUNT = Unit("count", "count", "neither", ",")
"""A whole number of things."""
NUMBER = Unit("number", "", "neither", ".4g")
"""Anything else."""

UNITS = {
    unit.name: unit for unit in (SHARE, NATS, SQUARED_ERROR, ERROR, CORRELATION, COUNT, NUMBER)
}


@dataclass(frozen=True)
class Metric:
    """One number that an evaluator measured."""

    name: str
    """What it is called: such as "top1", or with the part it was measured on, "test/top1"."""
    value: float
    """The number; it may be NaN or infinite where a model is."""
    unit: Unit
    """How to print, plot and compare it."""
    interval: tuple[float, float] | None = None
    """Where the value may lie that other images of the same kind would give: 95 % confidence."""

    def text(self) -> str:
        """The value as people read it, with its interval: "72.40 % (67.55 % to 76.80 %)"."""
        text = self.unit.text(self.value)
        if self.interval is None:
            return text
        low, high = self.interval
        return f"{text} ({self.unit.text(low)} to {self.unit.text(high)})"

    def beats(self, other: "Metric") -> bool:
        """Whether the value is better than the other's; NaN is worse than all others.

        Raises ValueError for a unit of which neither more nor less is better, and for two units.
        """
        if self.unit != other.unit or self.unit.better == "neither":
            raise ValueError(
                f"{self.name} in {self.unit.name} and {other.name} in {other.unit.name} cannot be "
                f"compared"
            )
        if math.isnan(self.value) or math.isnan(other.value):
            return math.isnan(other.value) and not math.isnan(self.value)
        if self.unit.better == "higher":
            return self.value > other.value
        return self.value < other.value

    def within(self, part: str) -> "Metric":
        """The same metric under the name of the images it was measured on: "test/top1"."""
        return replace(self, name=f"{part}/{self.name}")

    def to_json(self) -> dict:
        """The metric as plain values, without its name; a value that JSON has no number for is
        null, with a note."""
        number, note = plain_number(self.value)
        values = {"value": number, "unit": self.unit.name}
        if UNITS.get(self.unit.name) != self.unit:
            values["unit"] = asdict(self.unit)
        if note:
            values["note"] = note
        if self.interval is not None:
            values["interval"] = list(self.interval)
        return values

    @classmethod
    def from_json(cls, name: str, values: dict) -> "Metric":
        """The metric that `to_json` wrote."""
        unit = values["unit"]
        unit = Unit(**unit) if isinstance(unit, dict) else UNITS[unit]
        interval = values.get("interval")
        if interval is not None:
            interval = tuple(interval)
        return cls(name, number_of(values["value"], values.get("note", "")), unit, interval)


def plain_number(value: float) -> tuple[float | None, str]:
    """A number as JSON can hold it, and a note about what it cannot: (None, "nan"), (None, "inf")
    or (None, "-inf")."""
    if math.isfinite(value):
        return value, ""
    return None, str(float(value))


def number_of(value: float | None, note: str) -> float:
    """The number that `plain_number` made plain."""
    return float(note) if value is None else value


def wilson(right: int, seen: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, of which `right` of `seen` independent trials were
    counted.

    It holds where the usual one fails: near 0 and 1, and for a few dozen images.
    """
    share = right / seen
    spread = Z_95 * math.sqrt(share * (1 - share) / seen + Z_95**2 / (4 * seen**2))
    centre = share + Z_95**2 / (2 * seen)
    whole = 1 + Z_95**2 / seen
    return max((centre - spread) / whole, 0.0), min((centre + spread) / whole, 1.0)
