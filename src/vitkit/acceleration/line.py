"""What a search has found: the line of models of which none is both faster and loses less (Pareto), and
which of them is chosen."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

from vitkit.acceleration.losses import Loss


class Point(NamedTuple):
    """A model that was measured."""

    name: str
    """What computes it, and what is left out: "OpenVINO int8, 10 blocks"."""
    library: str
    precision: str
    image: tuple[int, int]
    """Height and width of its images."""
    blocks: int
    merged: int
    """Tokens in every block."""
    milliseconds: float
    """Of an image."""
    times: float
    """How many times as fast as the whole model in PyTorch's float32."""
    megabytes: float
    """Of its file."""
    loss: Loss

    def to_json(self) -> dict:
        """Plain values."""
        return self._asdict() | {"loss": self.loss._asdict()}


@dataclass(frozen=True)
class Line:
    """All models that were measured, the slowest first."""

    reference: Point
    """The whole model in PyTorch's float32."""
    points: tuple[Point, ...]
    images: int
    """How many the losses are judged on."""
    where: str
    """Where these are from."""
    candidates: int
    """How many there were to choose from."""
    batch: int
    """Images of a forward pass."""
    left_out: tuple[str, ...] = ()
    """What the time did not suffice for, for people."""

    @property
    def best(self) -> tuple[Point, ...]:
        """Those of which no other is both faster and promised to lose less."""
        best = []
        for point in self.points:
            if not any(_is_better(other, point) for other in self.points):
                best.append(point)
        return tuple(best)

    def fastest(self, lose: float) -> Point:
        """The fastest that is promised to lose less than that, a share; what computes the same numbers
        loses nothing."""
        return min(self._within(lose), key=lambda point: point.milliseconds)

    def _within(self, lose: float) -> list[Point]:
        """Those that are promised to lose less. The whole model in float32 always is."""
        return [point for point in self.points if point.loss.at_most < lose or _is_exact(point)]

    def most_accurate(self, milliseconds: float) -> Point | None:
        """The one that is promised to lose least of those that take no longer; None if none does."""
        quick = [point for point in self.points if point.milliseconds <= milliseconds]
        if not quick:
            return None
        return min(
            quick, key=lambda point: (point.loss.at_most, point.loss.lost, point.milliseconds)
        )

    def to_json(self) -> dict:
        """Plain values."""
        values = asdict(self)
        values["reference"] = self.reference.to_json()
        values["points"] = [point.to_json() for point in self.points]
        return values


def _is_exact(point: Point) -> bool:
    return point.loss.at_most == 0


def _is_better(other: Point, point: Point) -> bool:
    """Whether another point is at least as good in both, and better in one."""
    if other.milliseconds > point.milliseconds or other.loss.at_most > point.loss.at_most:
        return False
    return (other.milliseconds, other.loss.at_most) != (point.milliseconds, point.loss.at_most)
