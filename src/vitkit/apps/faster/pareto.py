"""What a search has found: the models for which no other is both faster and nearer to the original (the Pareto
front), and which of them is chosen."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

from vitkit.apps.faster.bodies import Library
from vitkit.apps.faster.losses import Loss

STEP = 1.05  # times as fast as the one before, at least, for a model of the line to be tested


class Point(NamedTuple):
    """A model that was measured."""

    name: str
    """What computes it, and what is left out: "OpenVINO int8, 10 blocks"."""
    library: Library
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
        """The fields as plain values, for JSON."""
        return self._asdict() | {"loss": self.loss._asdict()}


@dataclass(frozen=True)
class ParetoLine:
    """All models that were measured, the slowest first."""

    reference: Point
    """The whole model in PyTorch's float32."""
    points: tuple[Point, ...]
    images: int
    """Number of images."""
    where: str
    """Where these are from."""
    tested: int
    """How many of them the candidates were tested on; the others put them in order."""
    batch: int
    """Images of a forward pass."""
    left_out: tuple[str, ...] = ()
    """What the time did not suffice for, for people."""

    @property
    def best(self) -> tuple[Point, ...]:
        """The points for which no other is both faster and nearer to the original, the slowest
        first."""
        best = []
        for point in self.points:
            if not any(_is_better(other, point) for other in self.points):
                best.append(point)
        return tuple(best)

    def fastest(self, lose: float) -> Point:
        """The fastest that is promised to lose less than that, a share: the last one before the
        first that fails, from the slowest of the line on (losses.py says why). A model that
        computes the same numbers loses nothing."""
        return self._tested(lose)[0]

    def failing(self, lose: float) -> Point | None:
        """The first model of the line, from the slowest on, for which a loss below `lose` cannot be
        promised; None if there is none."""
        return self._tested(lose)[1]

    def _tested(self, lose: float) -> tuple[Point, Point | None]:
        """Along the line from the slowest on: the last that passes, and the first that fails."""
        exact = [point for point in self.points if point.loss.at_most == 0]
        chosen = min(exact, key=lambda point: point.milliseconds)
        for point in self.best:
            if STEP * point.milliseconds > chosen.milliseconds:
                continue  # hardly faster, so not worth a test that could fail
            if not point.loss.at_most < lose:
                return chosen, point
            chosen = point
        return chosen, None

    @property
    def shown(self) -> tuple[Point, ...]:
        """The rows to show: the whole model in PyTorch, and the line."""
        if self.reference in self.best:
            return self.best
        return (self.reference, *self.best)

    def most_accurate(self, milliseconds: float) -> Point | None:
        """The one that was right most often of those that take no longer; None if none does."""
        quick = [point for point in self.points if point.milliseconds <= milliseconds]
        if not quick:
            return None
        return min(quick, key=lambda point: (point.loss.lost, point.loss.distance))

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        values = asdict(self)
        values["reference"] = self.reference.to_json()
        values["points"] = [point.to_json() for point in self.points]
        return values


def _is_better(other: Point, point: Point) -> bool:
    """Whether another point is at least as good in both, and better in one."""
    theirs = (other.milliseconds, other.loss.distance)
    own = (point.milliseconds, point.loss.distance)
    return theirs != own and theirs[0] <= own[0] and theirs[1] <= own[1]
