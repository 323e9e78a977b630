"""What a model's features are worth when there are a few images a class."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.data import Columns, Splits
from vitkit.evaluation import Fewshot, Form, Metric, Part, Subject, best_ranked, shot_notes
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import process_group
from vitkit.verbs.arguments import (
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    pick_precision,
)
from vitkit.verbs.definition import result, verb
from vitkit.verbs.sources import As, as_words, loaded_for_features, splits_to_learn_from
from vitkit.verbs.words import DATA
from vitkit.weights import Classifier, Hints

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class MeasureFewshot:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images: the paper's few-shot accuracy, in seconds. The images are drawn several times, and the
    mean and the standard deviation are printed."""

    model: Model
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA...", help=DATA)]
    shots: tuple[int, ...] = (5, 10)
    """Images of each class to learn from."""
    seeds: int = 3
    """How often the images are drawn."""
    form: Form = "fixed"
    """How the regularisation is chosen: "fixed" as in big_vision, or "ranked" as at the time of the
    paper, with the value that ranks best over all DATA, on the first images of each class."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    precision: Precision = "float32"
    """float32 by default, so that a measurement does not depend on the machine."""
    device: Device = "auto"
    json: bool = False
    """Print one line of JSON: {data: {name: {"value", "unit", "interval"}}}."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class FewshotAccuracy:
    """The accuracy of a model that learned from a few images per class, for each data set."""

    settings: MeasureFewshot
    metrics: dict[str, tuple[Metric, ...]]
    """By data set: accuracy and its deviation for each number of shots, called "5-shot/top1"."""

    def top1(self, shots: int, data: str | None = None) -> float:
        """The accuracy with this many images per class, on a data set; by default the first."""
        data = data or next(iter(self.metrics))
        return _by_name(self.metrics[data])[f"{shots}-shot/top1"].value

    def rows(self) -> list[dict]:
        """A row for each data set and number of shots."""
        rows = []
        for shots in self.settings.shots:
            for data, several in self.metrics.items():
                found = _by_name(several)
                top1 = found[f"{shots}-shot/top1"]
                row = {"data": data, "shots": shots, "top1": top1.value, "interval": top1.interval}
                for name in ("deviation", "l2_exponent"):
                    metric = found.get(f"{shots}-shot/{name}")
                    if metric is not None:
                        row[name] = metric.value
                rows.append(row)
        return rows

    def to_json(self) -> dict:
        """{data: {name: {"value", "unit", "interval"}}}"""
        return {
            data: {metric.name: metric.to_json() for metric in several}
            for data, several in self.metrics.items()
        }

    def shown(self) -> "Iterator[RenderableType]":
        """A table, or JSON."""
        settings = self.settings
        if settings.json:
            yield json.dumps(self.to_json(), allow_nan=False)
            return
        yield _table(settings, self.metrics)
        if settings.form == "fixed" and settings.seeds > 1:
            yield (
                f"top-1 is the mean of {settings.seeds} draws of images; deviation, that between them"
            )
        if settings.form == "ranked":
            yield "l2 was chosen by its rank on these test images, which flatters the model a little"
        words = as_words(settings.model, settings.data[0], settings.named)
        yield f"next: vitkit probe {words}, which learns from all images"


@verb
def fewshot(settings: MeasureFewshot) -> FewshotAccuracy:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images (Section 4.1): the mean over several draws. Every rank gets the same.

    Raises ValueError for data without a part to learn from and one to measure on.
    """
    if not settings.data:
        raise BadSettings(f"no images; vitkit fewshot {settings.model} DATA... takes data sets")
    evaluator = Fewshot(settings.shots, settings.seeds, settings.form)
    with process_group(settings.device) as device:
        classifier = loaded_for_features(settings.model, settings.hints, device)
        answers = {}
        groups = {}
        with autocast(device, pick_precision(settings.precision, device)):
            for data in dict.fromkeys(settings.data):
                splits, _ = splits_to_learn_from(
                    data, settings.columns, settings.named, settings.on_bad_image
                )
                answers[data] = _answers(evaluator, classifier, data, splits)
                groups[data] = (splits.test or splits.val).groups

    metrics = dict.fromkeys(answers, ())
    for shots in settings.shots:
        # The exponent of l2 that ranks best over the data sets that have an accuracy
        right = [by_shots[shots] for by_shots in answers.values()]
        finite = [each.mean((0, 2)) for each in right if each is not None]
        exponent = None
        if evaluator.form == "ranked" and finite:
            exponent = best_ranked(np.stack(finite))
        for data, by_shots in answers.items():
            right = by_shots[shots]
            metrics[data] += tuple(evaluator.metrics(shots, right, exponent, groups[data]))
    return FewshotAccuracy(settings, metrics)


def _answers(evaluator: Fewshot, classifier: Classifier, data: str, splits: Splits) -> dict:
    """Which test images of a data set are classified right, by shots. What was decided, and what
    the data lacks, is said."""
    test = splits.test or splits.val
    if splits.train is None or test is None:
        raise BadData(
            f"{data} has no images to learn from and others to measure on: it needs a train part, "
            "and a test or val part"
        )
    if not evaluator.judges(splits.target_kind):
        raise BadSettings(
            f"few-shot accuracy is for images of one class each; the targets of {data} are of the "
            f"kind {splits.target_kind!r}, which vitkit probe learns"
        )
    missing = shot_notes(splits.train, test, max(evaluator.shots))
    for sentence in (*splits.notes, *(f"{data}: {text}" for text in missing)):
        say(sentence)
    return evaluator.answers(Subject(classifier), Part(test, None, splits.train))


def _table(settings: MeasureFewshot, metrics: dict[str, tuple[Metric, ...]]) -> Table:
    """A row for each data set and number of shots; of several data sets the means too."""
    table = Table()
    table.add_column("data", overflow="fold")
    for header in ("shots", "top-1", "95 % interval", "deviation"):
        table.add_column(header, justify="right")
    if settings.form == "ranked":
        table.add_column("l2", justify="right")
    for shots in settings.shots:
        values = []
        for data, several in metrics.items():
            found = _by_name(several)
            top1 = found[f"{shots}-shot/top1"]
            values.append(top1.value)
            row = [escape(printable(data)), str(shots), top1.unit.text(top1.value)]
            row += [top1.interval_text(), _text(found.get(f"{shots}-shot/deviation"))]
            if settings.form == "ranked":
                exponent = found.get(f"{shots}-shot/l2_exponent")
                if exponent is not None:
                    row.append(f"2^{exponent.value}")
            table.add_row(*row)
        if len(values) > 1:
            mean = top1.unit.text(sum(values) / len(values))
            table.add_row(f"mean of {len(values)}", str(shots), mean, end_section=True)
    return table


def _by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _text(metric: Metric | None) -> str:
    """The value of a metric, as text; empty if there is none."""
    if metric is None:
        return ""
    return metric.unit.text(metric.value)
