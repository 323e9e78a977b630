"""The report of an evaluation: all metrics and tables of a model's answers to images with one class each, as
values. page.py writes them as an HTML page, `to_json` as JSON.

Legend: N images, C classes that occur among them.
"""

from dataclasses import asdict, dataclass, field

import numpy as np

from vitkit.data import Source
from vitkit.evaluation.benchmarks.corruptions import Robustness
from vitkit.evaluation.benchmarks.labels import by_position
from vitkit.evaluation.metrics.answers import Answers, in_groups
from vitkit.evaluation.metrics.calibration import (
    Bin,
    Calibration,
    Covered,
    at_coverages,
    chance_sentence,
    coverage_curve,
    reliability,
)
from vitkit.evaluation.metrics.classification import (
    ClassScore,
    Confused,
    class_scores,
    classification,
    confusion_matrix,
    most_confused,
)
from vitkit.evaluation.metrics.metric import Metric, group_count
from vitkit.evaluation.metrics.paired import Paired
from vitkit.system.console.text import counted


@dataclass(frozen=True)
class Mistake:
    """An image whose answer is wrong."""

    index: int
    """Index of the image in the source."""
    image: str
    """Name of the image, such as its file."""
    true: str
    """The true class."""
    predicted: str
    """The predicted class."""
    confidence: float
    """The probability of the predicted class."""


@dataclass(frozen=True, eq=False)
class Report:
    """A report about a model's answers. If any output is not finite, it has only metrics and notes."""

    model: str
    """Name of the model."""
    images: str
    """Title of the images, such as "500 images of photos/"."""
    facts: dict[str, str]
    """How the report was computed, by name: preprocessing, date, command."""
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    """Sentences about what a reader may not expect."""
    classes: tuple[ClassScore, ...] = ()
    """Scores of the classes, in the model's order."""
    confused: tuple[Confused, ...] = ()
    """The confused pairs of classes, the most frequent first."""
    confusion: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int64))
    """The confusion matrix, int64 (C, C + 1): the last column is for answers outside of the classes that
    occur among the images."""
    reliability: tuple[Bin, ...] = ()
    """The bins of the reliability diagram."""
    coverage: tuple[Covered, ...] = ()
    """The accuracy against the coverage."""
    mistakes: tuple[Mistake, ...] = ()
    """All mistakes, the most confident first."""
    calibration: Calibration | None = None
    """The fitted temperature and its effect; None if none was fitted."""
    other: str = ""
    """Name of the model that this one is compared with; empty if there is none."""
    paired: Paired | None = None
    """The comparison with the other model; None if there is none."""
    robustness: Robustness | None = None
    """The accuracy on corrupted images, if it was measured."""

    def to_json(self) -> dict:
        """The report as plain values."""
        values = {
            "model": self.model,
            "images": self.images,
            "facts": self.facts,
            "notes": list(self.notes),
            "metrics": {metric.name: metric.to_json() for metric in self.metrics},
            "classes": [score._asdict() for score in self.classes],
            "confused": [asdict(pair) for pair in self.confused],
            "confusion": self.confusion.tolist(),
            "reliability": [each._asdict() for each in self.reliability],
            "coverage": [point._asdict() for point in at_coverages(self.coverage)],
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }
        if self.calibration is not None:
            values["calibration"] = self.calibration._asdict()
            after = [each._asdict() for each in self.calibration.bins_after]
            values["calibration"]["bins_after"] = after
        if self.paired is not None:
            values["paired"] = {"other": self.other, **_paired_json(self.paired)}
        return values


def _paired_json(paired: Paired) -> dict:
    """A comparison as plain values."""
    differences = {}
    for each in paired.differences:
        pair = {"first": each.first, "second": each.second, "difference": each.difference}
        differences[each.first.name] = {name: metric.to_json() for name, metric in pair.items()}
    return {
        **paired._asdict(),
        "differences": differences,
        "disagreements": [asdict(each) for each in paired.disagreements],
    }


def report(given: Answers, source: Source, model: str, images: str, facts: dict) -> Report:
    """Compute the report of a model's answers to the images of a source. Answers to images of one of its
    groups are not independent."""
    given = in_groups(given, source)
    metrics = tuple(classification(given))
    notes = (*given.notes, *_notes(given, source))
    if not given.finite.all():
        return Report(model, images, facts, metrics, notes)
    return Report(
        model=model,
        images=images,
        facts=facts,
        metrics=metrics,
        notes=notes,
        classes=tuple(class_scores(given)),
        confused=tuple(most_confused(given)),
        confusion=confusion_matrix(given),
        reliability=tuple(reliability(given.confidence, given.right, given.groups)),
        coverage=tuple(coverage_curve(given.confidence, given.right, given.groups)),
        mistakes=tuple(mistakes(given, source)),
    )


def mistakes(given: Answers, source: Source) -> list[Mistake]:
    """The wrong answers, the most confident first."""
    wrong = np.flatnonzero(~given.right)
    order = np.argsort(-given.confidence[wrong], kind="stable")
    found = []
    for i in wrong[order].tolist():
        index = int(given.indices[i])
        mistake = Mistake(
            index=index,
            image=source.name(index),
            true=given.labels[given.truth[i]],
            predicted=given.labels[given.predicted[i]],
            confidence=float(given.confidence[i]),
        )
        found.append(mistake)
    return found


def _notes(given: Answers, source: Source) -> list[str]:
    """Sentences about these images and answers for readers of the report."""
    notes = []
    broken = given.indices[~given.finite]
    if len(broken):
        notes.append(
            f"the model's outputs for {len(broken):,} of {len(given):,} images are not finite "
            f"({source.name(int(broken[0]))} is the first), so it has no accuracy: its weights may "
            "be damaged, or too large for this precision"
        )
        return notes

    # The classes
    count = len(given.present)
    if count < len(given.labels):
        notes.append(
            f"the images are of {count:,} of the model's {len(given.labels):,} classes: top1 is its accuracy "
            f"among all {len(given.labels):,}, and top1_of_data its accuracy if it may answer only these {count:,}"
        )
    if count == 1:
        notes.append(
            f"all images are of one class, {given.labels[given.present[0]]}: this measures its recall, "
            "not how often other images are predicted as it"
        )
    empty = np.flatnonzero(np.bincount(source.target_array, minlength=len(source.labels)) == 0)
    if len(empty) and not by_position(source.labels, given.labels):
        names = ", ".join(source.labels[k] for k in empty[:5])
        notes.append(
            f"{len(empty):,} of the data's {len(source.labels):,} classes have no image here "
            f"({names}); means over classes leave them out"
        )

    # The answers
    tied = int(given.tied.sum())
    if tied:
        notes.append(
            f"on {counted(tied, 'image')} several classes have the highest output; the first of "
            "them in the model's order counts as the answer"
        )
    if given.groups is not None:
        groups = counted(group_count(len(given), given.groups), "group")
        notes.append(
            f"all intervals and tests treat {groups} as independent, not {len(given):,} images: "
            "images of one group tend to be right or wrong together"
        )
    notes.append(chance_sentence(given.confidence, given.groups))
    return notes
