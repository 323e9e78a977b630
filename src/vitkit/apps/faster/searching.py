"""The search for the fastest model that loses no more accuracy than is allowed.

1. The whole model is timed in every runtime and precision of this machine, in turns; the fastest library of
   each precision is kept.
2. For each of these, backbones compute the states of the images at the full and at smaller image sizes, and
   heads are fitted on fewer and fewer blocks. This gives the loss of each candidate.
3. The candidates whose estimated time puts them near the Pareto front are timed in turns, together with the
   whole model in PyTorch. Each of three rounds eliminates those that cannot be on the front, and the next
   round measures longer (successive halving).

The images of the final test decide only which image sizes are given up (losses.py). Results are cached: states
in the cache of features, speeds in a file under a digest of model, images and machine, so a repeated search
continues where it ended.
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
    ReferenceComparison,
    independent,
    is_ordering,
    loss_of,
    needed,
)
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.races import EXACT, SearchGoal, Speeds
from vitkit.apps.faster.subjects import Known, SearchSubject
from vitkit.inspection import has_anomaly_map
from vitkit.runtimes import check_answer
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import Unsupported
from vitkit.system.functions.steps import MODEL, step
from vitkit.weights import Classifier, check_answers

HOPELESS = 0.05  # loss of accuracy above which an image size is given up: smaller shapes lose more
FOR_STATES = 0.6  # share of the time budget for computing states; the rest is for timing
FOR_FILES = 0.85  # share of the time budget after which no candidate is exported


def check(classifier: Classifier) -> None:
    """Raises VitkitError for a model that this search does not support."""
    check_answers(classifier)
    check_answer(classifier)
    if has_anomaly_map(classifier):
        raise Unsupported(
            "vitkit faster compares the accuracy of classifiers, and this is a model of good images; "
            f"{step('export', MODEL)} writes it as a file, and fine-tuning smaller weights makes a faster one"
        )
    if classifier.activation != "softmax":
        raise Unsupported(
            "vitkit faster compares the accuracy of candidates, and this model does not answer "
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
    """The Pareto front of a search, and what is needed to build each of its models."""

    line: ParetoLine
    candidates: dict[str, Variant]
    """The candidate of each point, by name."""
    exact: Arithmetic
    """The runtime and precision of the reference predictions."""
    evaluated: dict[str, Evidence]
    """Evidence by name of a point; without points that compute the same numbers as the reference."""
    independent: float
    """The share of images that count as independent; below 1 for images in groups."""

    def needed(self, point: Point, lose: float) -> int | None:
        """Number of images that could show that a point loses less than the share `lose`; None if
        it seems to lose that much or more, or if its loss is 0."""
        evaluated = self.evaluated.get(point.name)
        if evaluated is None:
            return None
        return needed(evaluated, lose, self.independent)


def search(subject: SearchSubject, wanted: SearchGoal) -> Found:
    """Search for faster models in the three steps of this module's docstring. Raises VitkitError if no
    library can compute the model."""
    check(subject.classifier)
    known = Known(subject)
    with TemporaryDirectory(prefix="vitkit-faster-") as files:
        speeds = Speeds(subject, wanted, known, Path(files))
        return _search_with(subject, wanted, known, speeds)


def _search_with(subject: SearchSubject, wanted: SearchGoal, known: Known, speeds: Speeds) -> Found:
    """The search with an opened cache and timer."""
    began = time.monotonic()

    # 1. Every runtime and precision
    arithmetics = speeds.of_arithmetics()
    exact = next(each for each in arithmetics if each.precision == EXACT)

    # 2. The loss of each candidate
    full = whole(subject.classifier)
    bodies = _bodies(subject, arithmetics, exact)
    until = began + FOR_STATES * wanted.seconds
    evaluated, left_out = _evaluate_all(subject, known, bodies, exact, until)
    images = len(subject.evaluated)
    share = independent(images, subject.evaluated.groups)
    losses = {candidate: loss_of(evidence, share) for candidate, evidence in evaluated.items()}
    losses[Variant(exact, full)] = SAME

    # 3. The speeds
    until = began + FOR_FILES * wanted.seconds
    reference_point, points = speeds.of_candidates(losses, arithmetics, until)
    candidates = {speeds.name(candidate): candidate for candidate in losses}
    line = ParetoLine(
        reference_point,
        tuple(sorted(points, key=lambda point: -point.milliseconds)),
        images,
        subject.where,
        int((~is_ordering(images, subject.evaluated.groups)).sum()),
        wanted.batch,
        tuple(left_out) + tuple(speeds.left_out),
    )
    by_name = {speeds.name(candidate): each for candidate, each in evaluated.items()}
    return Found(line, candidates, exact, by_name, share)


def _bodies(
    subject: SearchSubject, arithmetics: Sequence[Arithmetic], exact: Arithmetic
) -> list[tuple[Body, list[Shape]]]:
    """Backbones with the shapes that use them, in order of evaluation: the exact one first, which is the
    reference; then the full size in every precision; then smaller ones, the fastest first."""
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


def _evaluate_all(
    subject: SearchSubject,
    known: Known,
    bodies: Sequence[tuple[Body, list[Shape]]],
    exact: Arithmetic,
    until: float,
) -> tuple[dict[Variant, Evidence], list[str]]:
    """The evidence about every shape of every backbone, until the time is up; and descriptions of
    what was left out. The first backbone is evaluated in any case."""
    full = whole(subject.classifier)
    comparison = None
    evaluated: dict[Variant, Evidence] = {}
    left_out = []
    for body, of_body in bar("evaluating")(bodies, len(bodies)):
        if evaluated and time.monotonic() > until:
            what = Shape(body.image, full.blocks, body.merge).text(full)
            left_out.append(f"{body.arithmetic}, {what}")
            continue
        for shape in of_body:
            candidate = Variant(body.arithmetic, shape)
            if candidate == Variant(exact, full):
                continue
            if candidate.key not in known.evidence:
                comparison = comparison or _comparison(subject, bodies[0][0], exact)
                head = head_of(subject, body, shape, exact)
                known.evidence[candidate.key] = comparison.of(head.answers)
            evidence = known.evidence[candidate.key]
            evaluated[candidate] = evidence
            if evidence.lost - evidence.won > HOPELESS * evidence.images:
                break
        known.keep()
    return evaluated, left_out


def _comparison(subject: SearchSubject, body: Body, exact: Arithmetic) -> ReferenceComparison:
    """The comparison with the predictions of the whole model. Raises VitkitError if the run's model was
    changed after the run."""
    full = whole(subject.classifier)
    reference = head_of(subject, body, full, exact)
    check_own(subject, reference, body.read(body.states(subject.evaluated), full, reference.reads))
    return ReferenceComparison(
        reference.answers, subject.evaluated.target_array, subject.evaluated.groups
    )
