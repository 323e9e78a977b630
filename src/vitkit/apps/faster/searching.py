"""The search for the fastest model that loses less than is allowed.

1. The whole model is measured in every arithmetic of this machine, in turns; of each precision the fastest
   library is taken.
2. In each of these, bodies compute the states of the images, for the whole size and for smaller ones, and
   heads are solved for on fewer and fewer blocks: what each candidate loses.
3. Of the candidates that the arithmetic foretells to be on the line, the speeds are measured in turns,
   beside the whole model in PyTorch. After each of three rounds those stay that may still be on the line, and
   the next round measures them for longer (successive halving).

The images of the test in the end decide nothing of that but where a size ends (losses.py). What was
computed is kept: states in the cache of features, speeds in a file under a digest of model, images and
machine. A search that is given again goes on where it ended.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from vitkit.apps.faster.bodies import Arithmetic, Body, Shape, Variant, shapes, whole
from vitkit.apps.faster.heads import check_own, head_of
from vitkit.apps.faster.losses import (
    SAME,
    Evidence,
    Judge,
    independent,
    is_ordering,
    loss_of,
    needed,
)
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.races import EXACT, SearchGoal, Speeds
from vitkit.apps.faster.subjects import Known, SearchSubject
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import Unsupported
from vitkit.weights import Classifier, check_answers

HOPELESS = 0.05  # of accuracy: a shape that loses more ends its size, as less of it loses more
FOR_STATES = 0.6  # of the time; the rest is for speeds
FOR_FILES = 0.85


def check(classifier: Classifier) -> None:
    """Raises VitkitError for a model that cannot be made faster here."""
    check_answers(classifier)
    if classifier.activation != "softmax":
        raise Unsupported(
            "vitkit faster judges by how often the answer is the right class, and this model does not answer "
            f"with one class an image (its activation is {classifier.activation!r})"
        )
    if classifier.preprocessing.is_native:
        raise Unsupported(
            "vitkit faster needs models that read images of one size, and this one reads images at their own "
            "proportions; fine-tune one that crops (`crop='centre'`)"
        )
    channels = getattr(classifier.model.config, "channels", 3)
    if channels != 3 or classifier.preprocessing.values != "uint8":
        raise Unsupported(
            f"vitkit faster needs models for red, green and blue of 8 bits, and this one takes images of "
            f"{counted(channels, 'channel')} in {classifier.preprocessing.values}"
        )


@dataclass(frozen=True, eq=False)
class Found:
    """The line of models, and the way to make each of them."""

    line: ParetoLine
    candidates: dict[str, Variant]
    """By the name of a point."""
    exact: Arithmetic
    """What computes the answers that the others are judged by."""
    judged: dict[str, Evidence]
    """What the images say, by the name of a point; nothing of what computes the same numbers."""
    independent: float
    """How many images each of them stands for: fewer than one of groups."""

    def needed(self, point: Point, lose: float) -> int | None:
        """How many images could promise that a point loses less than a share; None if it seems to lose as
        much, or nothing."""
        judged = self.judged.get(point.name)
        if judged is None:
            return None
        return needed(judged, lose, self.independent)


def search(subject: SearchSubject, wanted: SearchGoal) -> Found:
    """Look for faster models; see the file's docstring. Raises VitkitError if nothing can compute the
    model."""
    check(subject.classifier)
    known = Known(subject)
    with TemporaryDirectory(prefix="vitkit-faster-") as files:
        speeds = Speeds(subject, wanted, known, Path(files))
        return _searched(subject, wanted, known, speeds)


def _searched(subject: SearchSubject, wanted: SearchGoal, known: Known, speeds: Speeds) -> Found:
    """The same, with what measures speeds."""
    began = time.monotonic()

    # 1. Every arithmetic
    arithmetics = speeds.of_arithmetics()
    exact = next(each for each in arithmetics if each.precision == EXACT)

    # 2. What each candidate loses
    full = whole(subject.classifier)
    bodies = _bodies(subject, arithmetics, exact)
    until = began + FOR_STATES * wanted.seconds
    judged, left_out = _judge_all(subject, known, bodies, exact, until)
    images = len(subject.judged)
    share = independent(images, subject.judged.groups)
    losses = {candidate: loss_of(evidence, share) for candidate, evidence in judged.items()}
    losses[Variant(exact, full)] = SAME

    # 3. How fast they are
    until = began + FOR_FILES * wanted.seconds
    reference_point, points = speeds.of_candidates(losses, arithmetics, until)
    candidates = {speeds.name(candidate): candidate for candidate in losses}
    line = ParetoLine(
        reference_point,
        tuple(sorted(points, key=lambda point: -point.milliseconds)),
        images,
        subject.where,
        int((~is_ordering(images, subject.judged.groups)).sum()),
        wanted.batch,
        tuple(left_out) + tuple(speeds.left_out),
    )
    by_name = {speeds.name(candidate): each for candidate, each in judged.items()}
    return Found(line, candidates, exact, by_name, share)


def _bodies(
    subject: SearchSubject, arithmetics: Sequence[Arithmetic], exact: Arithmetic
) -> list[tuple[Body, list[Shape]]]:
    """Every pass, with the shapes that it judges, in their order: the exact one first, by which the
    others are judged; then the whole body in every arithmetic; then smaller ones, the fastest first."""
    full = whole(subject.classifier)
    found = []
    for arithmetic in arithmetics:
        own = shapes(subject.classifier, arithmetic.library != "torch")
        for image, merge in dict.fromkeys((shape.image, shape.merge) for shape in own):
            of_body = [shape for shape in own if (shape.image, shape.merge) == (image, merge)]
            found.append((Body(subject, arithmetic, image, merge), of_body))

    def turn(entry: tuple[Body, list[Shape]]) -> int:
        body, _ = entry
        is_whole = body.image == full.image and body.merge == 0
        if is_whole and body.arithmetic == exact:
            return 0
        return 1 if is_whole else 2

    return sorted(found, key=turn)


def _judge_all(
    subject: SearchSubject,
    known: Known,
    bodies: Sequence[tuple[Body, list[Shape]]],
    exact: Arithmetic,
    until: float,
) -> tuple[dict[Variant, Evidence], list[str]]:
    """What the images say about every shape of every body but the whole one, until the time is up; and
    what was left out, for people. The first body is judged in any case."""
    full = whole(subject.classifier)
    judge = None
    judged: dict[Variant, Evidence] = {}
    left_out = []
    for body, of_body in bar("judging")(bodies, len(bodies)):
        if judged and time.monotonic() > until:
            what = Shape(body.image, full.blocks, body.merge).text(full)
            left_out.append(f"{body.arithmetic}, {what}")
            continue
        for shape in of_body:
            candidate = Variant(body.arithmetic, shape)
            if candidate == Variant(exact, full):
                continue
            if candidate.key not in known.judged:
                judge = judge or _judge(subject, bodies[0][0], exact)
                head = head_of(subject, body, shape, exact)
                known.judged[candidate.key] = judge.judged(head.answers)
            evidence = known.judged[candidate.key]
            judged[candidate] = evidence
            if evidence.lost - evidence.won > HOPELESS * evidence.images:
                break
        known.keep()
    return judged, left_out


def _judge(subject: SearchSubject, body: Body, exact: Arithmetic) -> Judge:
    """What judges by the answers of the whole model. Raises VitkitError if they are not those of a run's
    model any more."""
    full = whole(subject.classifier)
    reference = head_of(subject, body, full, exact)
    check_own(subject, reference, body.read(body.states(subject.judged), full, reference.reads))
    return Judge(reference.answers, subject.judged.target_array, subject.judged.groups)
