"""What a search has found: the models for which no other is both faster and nearer to the original (the Pareto
front), and which of them is chosen."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

from vitkit.apps.faster.bodies import Library
from vitkit.apps.faster.losses import Loss

STEP = 1.05  # smallest speed-up over the previous model of the front for which a model is tested


class Point(NamedTuple):
    """A measured model."""

    name: str
    """Runtime, precision and what is left out: "OpenVINO int8, 10 blocks"."""
    library: Library
    precision: str
    image: tuple[int, int]
    """Height and width of the model's images, in pixels."""
    blocks: int
    merged: int
    """Number of tokens that are merged in every block."""
    milliseconds: float
    """Time per image."""
    times: float
    """Speed-up over the whole model in PyTorch and float32."""
    megabytes: float
    """Size of the model's file."""
    loss: Loss

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        return self._asdict() | {"loss": self.loss._asdict()}


@dataclass(frozen=True)
class ParetoLine:
    """All measured models, the slowest first, and their Pareto front."""

    reference: Point
    """The whole model in PyTorch and float32."""
    points: tuple[Point, ...]
    images: int
    """Number of images."""
    where: str
    """Where these are from."""
    tested: int
    """How many of them the candidates were tested on; the others put them in order."""
    batch: int
    """Batch size of the measurements."""
    left_out: tuple[str, ...] = ()
    """Descriptions of what there was no time for."""

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
        """The fastest model that is shown to lose less than `lose`, a share: the last one before
        the first that fails the test, from the slowest of the front on (losses.py gives the
        reason). A model that computes the same numbers loses nothing."""
        return self._tested(lose)[0]

    def failing(self, lose: float) -> Point | None:
        """The first model of the front, from the slowest on, for which a loss below `lose` is not
        shown; None if all pass."""
        return self._tested(lose)[1]

    def _tested(self, lose: float) -> tuple[Point, Point | None]:
        """From the slowest of the front on: the last model that passes the test, and the first that
        fails."""
        exact = [point for point in self.points if point.loss.at_most == 0]
        chosen = min(exact, key=lambda point: point.milliseconds)
        for point in self.best:
            if STEP * point.milliseconds > chosen.milliseconds:
                continue  # hardly faster, so not worth a test that may fail
            if not point.loss.at_most < lose:
                return chosen, point
            chosen = point
        return chosen, None

    @property
    def shown(self) -> tuple[Point, ...]:
        """The points to show: the whole model in PyTorch, and the front."""
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
