"""Speed of candidates: measured in turns with the whole model in PyTorch, so that other load on the
machine affects all equally; in several rounds, which get longer as slow candidates are
eliminated."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from vitkit.apps.faster.bodies import (
    Arithmetic,
    Library,
    Variant,
    calibration,
    model_of,
    opened,
    operations,
    reading_of,
    whole,
)
from vitkit.apps.faster.losses import SAME, Loss
from vitkit.apps.faster.pareto import Point
from vitkit.apps.faster.subjects import Known, SearchSubject
from vitkit.exporting import Implementation, Turns, is_worth_measuring, measure
from vitkit.runtimes import Weights
from vitkit.system.console.progress import bar
from vitkit.system.errors import Unsupported
from vitkit.system.machine import Precision

Purpose = Literal["latency", "throughput"]
BATCH = {"latency": 1, "throughput": 32}
LIBRARIES: tuple[Library, ...] = ("torch", "onnx", "openvino")
EXACT: Precision = "float32"
REFERENCE = Arithmetic("torch", EXACT)
GAIN = 1.03  # smallest speed-up for which an inexact arithmetic is tried
FORETOLD = (
    1.25  # a candidate is measured if its estimated time is at most this multiple of the front's
)
FIRST = 0.2  # share of the time budget after which the first race starts no further turn
CALIBRATED = 16  # calibration images for int8 candidates of which only the speed is measured


@dataclass(frozen=True)
class Round:
    """The length of a round of measurements, and the rule for elimination."""

    turns: int
    seconds: float
    slower: float
    """A candidate stays if its time is at most this multiple of the Pareto front's."""


RACE = Round(3, 0.2, 1.0)
ROUNDS = (Round(2, 0.15, 1.2), Round(3, 0.3, 1.08), Round(5, 0.4, 1.0))


@dataclass(frozen=True)
class SearchGoal:
    """The goal of the search."""

    purpose: Purpose = "latency"
    seconds: float = 600.0
    """Approximate time budget of the whole search."""
    libraries: tuple[Library, ...] = LIBRARIES
    """The libraries that may compute the model."""

    @property
    def batch(self) -> int:
        """The batch size."""
        return BATCH[self.purpose]


def arithmetics_here(libraries: Sequence[Library]) -> list[Arithmetic]:
    """The libraries and precisions that can compute a model on this machine."""
    arithmetics = []
    precisions: tuple[Weights, ...] = ("float32", "bfloat16", "int8")
    for library in libraries:
        for precision in precisions:
            arithmetic = Arithmetic(library, precision)
            if arithmetic == REFERENCE or is_worth_measuring(library, precision):
                arithmetics.append(arithmetic)
    if Arithmetic("openvino", "int8") in arithmetics:  # OpenVINO can also use calibrated ranges
        arithmetics.append(Arithmetic("openvino", "int8", is_calibrated=True))
    return arithmetics


class Speeds:
    """Measures speeds in turns, with at least one turn per race. Turns from the cache are not
    repeated."""

    def __init__(self, subject: SearchSubject, wanted: SearchGoal, known: Known, files: Path):
        """files: a folder for exported candidates during the measurement. The time budget begins here."""
        self.began = time.monotonic()
        self.subject = subject
        self.wanted = wanted
        self.full = whole(subject.classifier)
        self.files = files
        self.implementations: dict[Variant, tuple[Implementation, float]] = {}
        self.left_out: list[str] = []
        self.known = known

    def name(self, candidate: Variant) -> str:
        """The name of a candidate."""
        if candidate.shape == self.full:
            return str(candidate.arithmetic)
        return f"{candidate.arithmetic}, {candidate.shape.text(self.full)}"

    def of_arithmetics(self) -> list[Arithmetic]:
        """The fastest library of each precision, the fastest first. Inexact precisions are included
        only if they are faster than float32. Raises VitkitError if no library can compute the
        model."""
        candidates = []
        for arithmetic in arithmetics_here(self.wanted.libraries):
            candidates.append(Variant(arithmetic, self.full))
        if not any(each.arithmetic.precision == EXACT for each in candidates):
            raise Unsupported(
                f"nothing that is installed computes {' or '.join(self.wanted.libraries)}: pip install "
                "'vitkit[export]'"
            )
        race = self._race(candidates, RACE, self.began + FIRST * self.wanted.seconds)
        best: dict[str, tuple[Arithmetic, float]] = {}
        for candidate in sorted(candidates, key=race.milliseconds):
            arithmetic = candidate.arithmetic
            best.setdefault(arithmetic.precision, (arithmetic, race.milliseconds(candidate)))
        of_exact = best[EXACT][1]
        chosen = []
        for arithmetic, milliseconds in best.values():
            if arithmetic.precision == EXACT or GAIN * milliseconds < of_exact:
                chosen.append(arithmetic)
        return chosen

    def of_candidates(
        self, loss_of: dict[Variant, Loss], arithmetics: Sequence[Arithmetic], opened_until: float
    ) -> tuple[Point, list[Point]]:
        """The point of the whole model in PyTorch, and the points of candidates that may be on the
        Pareto front, by successive halving. Candidates that are not exported by `opened_until` are
        left out."""
        # Candidates that are near the front by their estimated times
        wholes = [Variant(arithmetic, self.full) for arithmetic in arithmetics]
        everything = arithmetics_here(self.wanted.libraries)  # those of the first race
        ends = self.began + self.wanted.seconds
        first = self._race([Variant(each, self.full) for each in everything], RACE, ends)
        is_short = first.turns < RACE.turns
        of_full = operations(self.subject.classifier, self.full)
        foretold = {}
        for candidate in loss_of:
            share = operations(self.subject.classifier, candidate.shape) / of_full
            of_whole = first.milliseconds(Variant(candidate.arithmetic, self.full))
            foretold[candidate] = of_whole * share
        near = _near_front(foretold, loss_of, FORETOLD)
        staying = [each for each in loss_of if each in near or each in wholes]

        # Rounds of increasing length, while there is time
        for number, each_round in enumerate(ROUNDS):
            if number and time.monotonic() > ends:
                is_short = True
                break
            race = self._race(staying, each_round, ends, opened_until)
            is_short = is_short or race.turns < each_round.turns
            staying = [each for each in staying if each in race.seconds]
            if number < len(ROUNDS) - 1:
                measured = {each: race.milliseconds(each) for each in staying}
                near = _near_front(measured, loss_of, each_round.slower)
                staying = [each for each in staying if each in near or each in wholes]
        if is_short:
            self.left_out.append("measuring for longer")
        reference = self._point(Variant(REFERENCE, self.full), race, SAME)
        return reference, [self._point(each, race, loss_of[each]) for each in staying]

    def _point(self, candidate: Variant, race: "Race", loss: Loss) -> Point:
        """The point of a measured candidate."""
        arithmetic, shape = candidate
        return Point(
            self.name(candidate),
            arithmetic.library,
            arithmetic.precision,
            shape.image,
            shape.blocks,
            shape.merge,
            race.milliseconds(candidate),
            1 / race.ratio(candidate),
            race.megabytes[candidate],
            loss,
        )

    # A race: candidates measured in turns

    def _race(
        self,
        candidates: Sequence[Variant],
        each_round: Round,
        until: float,
        opened_until: float | None = None,
    ) -> "Race":
        """Measure candidates in turns, together with the whole model in PyTorch. Cached turns are
        reused. No turn except the first begins after `until`, and candidates that are not exported
        by `opened_until` are left out."""
        named = {each.key: each for each in [Variant(REFERENCE, self.full), *candidates]}
        facts = [self.wanted.batch, each_round.seconds]
        race = self._known(named, facts)
        if race is not None and race.turns >= each_round.turns:
            return race

        # Open the candidates
        present = []
        for candidate in bar("preparing")(list(named.values()), len(named)):
            is_whole = candidate.shape == self.full  # the reference: never left out
            is_late = opened_until is not None and time.monotonic() > opened_until
            if is_late and not is_whole and candidate not in self.implementations:
                self.left_out.append(self.name(candidate))
                continue
            self._open(candidate)
            present.append(candidate)
        are_all = len(present) == len(named)
        if race is None or not are_all:
            megabytes = {candidate: self.implementations[candidate][1] for candidate in present}
            race = Race(present[0], {candidate: [] for candidate in present}, megabytes)

        # Measure in turns
        black = np.zeros((self.wanted.batch, 3, *self.full.image), np.uint8)  # each has its own
        plan = Turns((self.wanted.batch,), 1, each_round.seconds)
        turns = range(race.turns, each_round.turns)
        for turn in bar("measuring in turns")(turns, len(turns)):
            if race.turns and time.monotonic() > until:
                break
            order = present
            if turn % 2:  # the order alternates
                order = present[::-1]
            implementations = [self.implementations[candidate][0] for candidate in order]
            for candidate, speed in zip(order, measure(implementations, black, plan), strict=True):
                race.seconds[candidate].append(1 / speed.images_per_second[self.wanted.batch])
            if are_all:
                self._keep(race, named, facts)
        return race

    def _known(self, named: dict[str, Variant], facts: list) -> "Race | None":
        """The cached turns of these candidates, by their keys, possibly measured together with
        others. None if there are none."""
        races = []
        for known in self.known.races.values():
            seconds = known.get("seconds", {})
            if known["facts"] == facts and named.keys() <= seconds.keys():
                races.append(Race.from_json(known, named))
        return max(races, key=lambda race: race.turns, default=None)

    def _keep(self, race: "Race", named: dict[str, Variant], facts: list) -> None:
        """Keep the turns of a race in the cache."""
        key = hashlib.sha256(
            repr([facts, sorted(named)]).encode("utf-8", "surrogateescape")
        ).hexdigest()[:16]
        self.known.races[key] = race.to_json() | {"facts": facts}
        self.known.keep()

    def _open(self, candidate: Variant) -> None:
        """Open the runtime of a candidate. A head of its own is all-zero here, which does not change the
        speed."""
        if candidate in self.implementations:
            return
        arithmetic, shape = candidate
        reads = reading_of(self.subject.classifier, shape, len(self.subject.fitted))
        model = model_of(self.subject.classifier, shape, reads)
        folder = self.files / str(len(self.implementations))
        trial = calibration(self.subject, CALIBRATED)
        runtime, megabytes = opened(model, arithmetic, shape.merge, folder, trial)
        generator = np.random.default_rng(0)
        size = (self.wanted.batch, 3, *shape.image)
        images = generator.integers(0, 256, size, dtype=np.uint8)
        implementation = Implementation(
            str(arithmetic), arithmetic.precision, lambda _: runtime.logits(images)
        )
        self.implementations[candidate] = (implementation, megabytes)


@dataclass(frozen=True)
class Race:
    """The measured times of candidates in turns."""

    reference: Variant
    """The whole model in PyTorch."""
    seconds: dict[Variant, list[float]]
    """Seconds per image in each turn, by candidate."""
    megabytes: dict[Variant, float]

    @property
    def turns(self) -> int:
        """The number of turns."""
        return len(self.seconds[self.reference])

    def ratio(self, candidate: Variant) -> float:
        """The candidate's time divided by the reference's: the median over all turns. Within a
        turn, other load on the machine affects both equally."""
        pairs = zip(self.seconds[candidate], self.seconds[self.reference], strict=True)
        return median(own / other for own, other in pairs)

    def milliseconds(self, candidate: Variant) -> float:
        """Milliseconds per image."""
        return 1000 * median(self.seconds[self.reference]) * self.ratio(candidate)

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        return {
            "seconds": {each.key: seconds for each, seconds in self.seconds.items()},
            "megabytes": {each.key: size for each, size in self.megabytes.items()},
        }

    @classmethod
    def from_json(cls, values: dict, named: dict[str, Variant]) -> "Race":
        """The inverse of `to_json`. named: the candidates by their keys, the reference first."""
        seconds = {each: list(values["seconds"][key]) for key, each in named.items()}
        megabytes = {each: values["megabytes"][key] for key, each in named.items()}
        return cls(next(iter(seconds)), seconds, megabytes)


def _near_front(
    milliseconds: dict[Variant, float], loss_of: dict[Variant, Loss], slower: float
) -> set[Variant]:
    """The candidates that no other, which is no farther from the reference, beats by more than the factor `slower`."""
    near = set()
    for candidate, own in milliseconds.items():
        distance = loss_of[candidate].distance
        others = [
            other for each, other in milliseconds.items() if loss_of[each].distance <= distance
        ]
        if own <= slower * min(others):
            near.add(candidate)
    return near
