"""How fast candidates are: measured in turns beside the whole model in PyTorch, so that what else the machine
does disturbs all alike, and once more and for longer while they may be on the line."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from vitkit.acceleration.bodies import (
    Arithmetic,
    Candidate,
    calibration,
    model_of,
    opened,
    operations,
    reading_of,
    whole,
)
from vitkit.acceleration.losses import SAME, Loss
from vitkit.acceleration.pareto import Point
from vitkit.acceleration.subjects import Known, Subject
from vitkit.benching import Contender, Plan, is_worth_measuring, measure
from vitkit.system.console.progress import bar

Purpose = Literal["latency", "throughput"]
BATCH = {"latency": 1, "throughput": 32}
LIBRARIES = ("torch", "onnx", "openvino")
EXACT = "float32"
REFERENCE = Arithmetic("torch", EXACT)
GAIN = 1.03  # times as fast, at least, for an arithmetic whose answers differ to be tried
FORETOLD = 1.25  # times as long as the line a candidate may be by its operations, to be measured
CALIBRATED = 16  # images that give the ranges of int8 where only its speed is measured


@dataclass(frozen=True)
class Round:
    """How long the speeds are measured, and who stays."""

    turns: int
    seconds: float
    slower: float
    """How many times as long as the line a candidate may take to stay."""


RACE = Round(3, 0.2, 1.0)
ROUNDS = (Round(2, 0.15, 1.2), Round(3, 0.3, 1.08), Round(5, 0.4, 1.0))


@dataclass(frozen=True)
class Wanted:
    """What to look for."""

    purpose: Purpose = "latency"
    seconds: float = 600.0
    """The time for all of it, about."""
    libraries: tuple[str, ...] = LIBRARIES
    """What may compute the model."""

    @property
    def batch(self) -> int:
        """Images of a forward pass."""
        return BATCH[self.purpose]


def arithmetics_here(libraries: Sequence[str]) -> list[Arithmetic]:
    """The libraries and precisions that can compute a model on this machine."""
    arithmetics = []
    for library in libraries:
        for precision in ("float32", "bfloat16", "int8"):
            arithmetic = Arithmetic(library, precision)
            if arithmetic == REFERENCE or is_worth_measuring(library, precision):
                arithmetics.append(arithmetic)
    if (
        Arithmetic("openvino", "int8") in arithmetics
    ):  # which computes int8 without calibration, too
        arithmetics.append(Arithmetic("openvino", "int8", is_calibrated=True))
    return arithmetics


class Speeds:
    """Measures speeds in turns. A race that is known is not run again."""

    def __init__(self, subject: Subject, wanted: Wanted, known: Known, files: Path):
        """files: a folder for exported candidates, while they are measured."""
        self.subject = subject
        self.wanted = wanted
        self.full = whole(subject.classifier)
        self.files = files
        self.contenders: dict[Candidate, tuple[Contender, float]] = {}
        self.left_out: list[str] = []
        self.known = known

    def name(self, candidate: Candidate) -> str:
        """What a candidate is called."""
        if candidate.shape == self.full:
            return str(candidate.arithmetic)
        return f"{candidate.arithmetic}, {candidate.shape.text(self.full)}"

    def of_arithmetics(self) -> list[Arithmetic]:
        """The fastest library of each precision, the fastest first; those whose answers differ only if
        they are faster than float32. Raises ValueError if nothing can compute the model."""
        candidates = []
        for arithmetic in arithmetics_here(self.wanted.libraries):
            candidates.append(Candidate(arithmetic, self.full))
        if not any(each.arithmetic.precision == EXACT for each in candidates):
            raise ValueError(
                f"nothing that is installed computes {' or '.join(self.wanted.libraries)}: pip install "
                "'vitkit[export]'"
            )
        race = self._race(candidates, RACE)
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
        self, loss_of: dict[Candidate, Loss], arithmetics: Sequence[Arithmetic], until: float
    ) -> tuple[Point, list[Point]]:
        """The whole model in PyTorch, and the points of the candidates that may be on the line, by
        successive halving."""
        # Those that their operations foretell to be near the line
        wholes = [Candidate(arithmetic, self.full) for arithmetic in arithmetics]
        everything = arithmetics_here(self.wanted.libraries)  # those of the first race
        first = self._race([Candidate(each, self.full) for each in everything], RACE)
        of_full = operations(self.subject.classifier, self.full)
        foretold = {}
        for candidate in loss_of:
            share = operations(self.subject.classifier, candidate.shape) / of_full
            of_whole = first.milliseconds(Candidate(candidate.arithmetic, self.full))
            foretold[candidate] = of_whole * share
        staying = _near_line(foretold, loss_of, FORETOLD)
        staying = [each for each in loss_of if each in staying or each in wholes]

        # Rounds, each for longer
        for number, each_round in enumerate(ROUNDS):
            race = self._race(staying, each_round, until if number == 0 else None)
            staying = [each for each in staying if each in race.ratios]
            if number < len(ROUNDS) - 1:
                measured = {each: race.milliseconds(each) for each in staying}
                near = _near_line(measured, loss_of, each_round.slower)
                staying = [each for each in staying if each in near or each in wholes]
        reference = self._point(Candidate(REFERENCE, self.full), race, SAME)
        return reference, [self._point(each, race, loss_of[each]) for each in staying]

    def _point(self, candidate: Candidate, race: "Race", loss: Loss) -> Point:
        """A candidate that was measured."""
        arithmetic, shape = candidate
        return Point(
            self.name(candidate),
            arithmetic.library,
            arithmetic.precision,
            shape.image,
            shape.blocks,
            shape.merge,
            race.milliseconds(candidate),
            1 / race.ratios.get(candidate, 1.0),
            race.megabytes[candidate],
            loss,
        )

    # A race

    def _race(
        self, candidates: Sequence[Candidate], each_round: Round, until: float | None = None
    ) -> "Race":
        """Measure candidates in turns, beside the whole model in PyTorch; or what was measured before.
        What cannot be written to a file until then does not take part."""
        reference = Candidate(REFERENCE, self.full)
        named = {candidate.key: candidate for candidate in [reference, *candidates]}
        facts = [self.wanted.batch, each_round.turns, each_round.seconds]
        for known in self.known.races.values():  # one with others beside them is as good
            if known["facts"] == facts and named.keys() <= known["ratios"].keys():
                return Race.from_json(known, named)

        # Open all, then in turns
        present = []
        for candidate in bar("preparing")(list(named.values()), len(named)):
            is_whole = candidate.shape == self.full  # what all are compared with is never left out
            is_late = until is not None and time.monotonic() > until
            if is_late and not is_whole and candidate not in self.contenders:
                self.left_out.append(self.name(candidate))
                continue
            self._open(candidate)
            present.append(candidate)
        contenders = [self.contenders[candidate][0] for candidate in present]
        black = np.zeros((self.wanted.batch, 3, *self.full.image), np.uint8)  # each has its own
        plan = Plan((self.wanted.batch,), 1, each_round.seconds)
        seconds: dict[Candidate, list[float]] = {candidate: [] for candidate in present}
        turns = range(each_round.turns)
        for _ in bar("measuring in turns")(turns, len(turns)):
            for candidate, speed in zip(present, measure(contenders, black, plan), strict=True):
                seconds[candidate].append(1 / speed.images_per_second[self.wanted.batch])
            present.reverse()  # who came last begins the next turn
            contenders.reverse()

        # The ratios of each turn, in which all were disturbed alike
        of_reference = seconds[reference]
        ratios = {}
        for candidate in present:
            pairs = zip(seconds[candidate], of_reference, strict=True)
            ratios[candidate] = median(own / other for own, other in pairs)
        megabytes = {candidate: self.contenders[candidate][1] for candidate in present}
        race = Race(1000 * median(of_reference), ratios, megabytes)
        if len(present) == len(named):
            key = hashlib.sha256(repr([facts, sorted(named)]).encode()).hexdigest()[:16]
            self.known.races[key] = race.to_json() | {"facts": facts}
            self.known.keep()
        return race

    def _open(self, candidate: Candidate) -> None:
        """Open what computes a candidate, with a head of zeros if it has one of its own: the numbers do
        not change its speed."""
        if candidate in self.contenders:
            return
        arithmetic, shape = candidate
        reads = reading_of(self.subject.classifier, shape, len(self.subject.fitted))
        model = model_of(self.subject.classifier, shape, reads)
        folder = self.files / str(len(self.contenders))
        trial = calibration(self.subject, CALIBRATED)
        runtime, megabytes = opened(model, arithmetic, shape.merge, folder, trial)
        generator = np.random.default_rng(0)
        size = (self.wanted.batch, 3, *shape.image)
        images = generator.integers(0, 256, size, dtype=np.uint8)
        contender = Contender(
            str(arithmetic), arithmetic.precision, lambda _: runtime.logits(images)
        )
        self.contenders[candidate] = (contender, megabytes)


@dataclass(frozen=True)
class Race:
    """What was measured in turns."""

    reference: float
    """Milliseconds of an image, of the whole model in PyTorch."""
    ratios: dict[Candidate, float]
    """How many times as long each takes, the median of all turns."""
    megabytes: dict[Candidate, float]

    def milliseconds(self, candidate: Candidate) -> float:
        """Of an image."""
        return self.reference * self.ratios[candidate]

    def to_json(self) -> dict:
        """Plain values."""
        return {
            "reference": self.reference,
            "ratios": {each.key: ratio for each, ratio in self.ratios.items()},
            "megabytes": {each.key: size for each, size in self.megabytes.items()},
        }

    @classmethod
    def from_json(cls, values: dict, named: dict[str, Candidate]) -> "Race":
        """The way back, for the candidates of `named`, which has them by their keys."""
        ratios = {candidate: values["ratios"][key] for key, candidate in named.items()}
        megabytes = {candidate: values["megabytes"][key] for key, candidate in named.items()}
        return cls(values["reference"], ratios, megabytes)


def _near_line(
    milliseconds: dict[Candidate, float], loss_of: dict[Candidate, Loss], slower: float
) -> set[Candidate]:
    """The candidates that no other, which loses no more, beats by more than so many times."""
    near = set()
    for candidate, own in milliseconds.items():
        loss = loss_of[candidate].expected
        others = [other for each, other in milliseconds.items() if loss_of[each].expected <= loss]
        if own <= slower * min(others):
            near.add(candidate)
    return near
