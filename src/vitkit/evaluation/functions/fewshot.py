"""`vitkit.fewshot`: the few-shot accuracy of a model's features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Literal, Unpack

import numpy as np
from rich.markup import escape
from rich.table import Table

from vitkit.data import Columns, Splits
from vitkit.evaluation.benchmarks.named import SetName
from vitkit.evaluation.evaluator import Part, Subject, batches_of
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.probes.fewshot import Fewshot, Form, best_ranked, shot_notes
from vitkit.evaluation.sources import loaded_for_features, splits_to_learn_from
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.functions.arguments import pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, step
from vitkit.system.functions.types import DataLike, DeviceLike, Several
from vitkit.system.machine import PrecisionChoice, autocast
from vitkit.system.processes.ranks import process_group
from vitkit.weights import Classifier, ModelLike, Overrides, hints_of


@dataclass(frozen=True, repr=False)
class FewshotAccuracy(Rows):
    """The accuracy of a model that learned from a few images per class, for each data set."""

    metrics: dict[str, tuple[Metric, ...]]
    """Metrics of each data set: accuracy and deviation for each number of shots, such as "5-shot/top1"."""
    evaluator: Fewshot
    """The evaluator with its settings: shots, seeds and form."""
    following: str
    """The call that fits a head to all images."""
    json: bool = False
    """Whether it is printed as JSON."""

    def top1(self, shots: int, data: str | None = None) -> float:
        """The accuracy with this many images per class, on a data set; by default the first."""
        data = data or next(iter(self.metrics))
        return _by_name(self.metrics[data])[f"{shots}-shot/top1"].value

    def rows(self) -> list[dict]:
        """A row for each data set and number of shots."""
        rows = []
        for shots in self.evaluator.shots:
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

    def shown(self) -> Iterator[str | Table]:
        """A table, or JSON."""
        measured = self.evaluator
        if self.json:
            yield dumps(self.to_json(), allow_nan=False)
            return
        yield _table(measured, self.metrics)
        if measured.form == "fixed" and measured.seeds > 1:
            yield (
                f"top-1 is the mean of {measured.seeds} draws of images; deviation, that between them"
            )
        if measured.form == "ranked":
            yield "l2 was chosen by its rank on these test images, which flatters the model a little"
        yield f"next: {self.following}, which learns from all images"


@public
def fewshot(
    model: ModelLike,
    *data: DataLike,
    shots: Several[int] = (5, 10),
    seeds: int = 3,
    form: Form = "fixed",
    named: SetName | None = None,
    columns: Columns = Columns(),
    on_bad_image: Literal["fail", "skip"] = "fail",
    precision: PrecisionChoice = "float32",
    device: DeviceLike = "auto",
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> FewshotAccuracy:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images: the paper's few-shot accuracy (Section 4.1), in seconds. The images are drawn several times,
    and the mean and the standard deviation are printed.

    Under torchrun every process gets the result.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        data: Data sets: a folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        shots: Images of each class to learn from.
        seeds: How often the images are drawn.
        form: How the regularisation is chosen: "fixed" as in big_vision, or "ranked" as at the time of
            the paper, with the value that ranks best over all DATA, on the first images of each class.
        named: Name of DATA, if it is ImageNet or one of its relatives, which determines the classes of
            its folders (docs/evaluation.md).
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        on_bad_image: What to do with a broken image: stop, or skip it and print its name.
        precision: Arithmetic of the matrix products. float32 by default, so that a measurement does not
            depend on the machine.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print one line of JSON: {data: {name: {"value", "unit", "interval"}}}.
        **overrides: What the caller says about the model, and where messages go: `Overrides`.

    Raises:
        BadSettings: If no data set is given, or its images do not have one class each.
        BadData: If a data set has no images to learn from, or none to measure on.
    """
    if not data:
        raise BadSettings(f"no images; {step('fewshot', model, DATA)} takes data sets")
    evaluator = Fewshot(shots, seeds, form)
    with process_group(device) as opened:
        classifier = loaded_for_features(model, hints_of(overrides), opened)
        answers = {}
        groups = {}
        with autocast(opened, pick_precision(precision, opened)):
            for each in dict.fromkeys(data):
                splits, _ = splits_to_learn_from(each, columns, named, on_bad_image)
                answers[each], groups[each] = _answers(evaluator, classifier, each, splits)

    metrics: dict[str, tuple[Metric, ...]] = dict.fromkeys(answers, ())
    for number in shots:
        # The exponent of l2 that ranks best over the data sets that have an accuracy
        measured = [by_shots[number] for by_shots in answers.values()]
        finite = [right.mean((0, 2)) for right in measured if right is not None]
        exponent = None
        if evaluator.form == "ranked" and finite:
            exponent = best_ranked(np.stack(finite))
        for each, by_shots in answers.items():
            found = evaluator.metrics(number, by_shots[number], exponent, groups[each])
            metrics[each] += tuple(found)
    following = step("probe", model, data[0], named=named, columns=columns)
    return FewshotAccuracy(metrics, evaluator, following, json)


def _answers(
    evaluator: Fewshot, classifier: Classifier, data: str, splits: Splits
) -> tuple[dict[int, np.ndarray | None], np.ndarray | None]:
    """Which test images of a data set are classified right, by shots; and their groups. Prints notes on the
    split of the data, and on classes with too few images."""
    test = splits.test or splits.val
    if splits.train is None or test is None:
        raise BadData(
            f"{data} has no images to learn from and others to measure on: it needs a train part, "
            "and a test or val part"
        )
    if not evaluator.judges(splits.target_kind):
        raise BadSettings(
            f"few-shot accuracy is for images of one class each; the targets of {data} are of the "
            f"kind {splits.target_kind!r}, which `vitkit.probe` learns"
        )
    missing = shot_notes(splits.train, test, max(evaluator.shots))
    for sentence in (*splits.notes, *(f"{data}: {text}" for text in missing)):
        say(sentence)
    batches = batches_of(classifier, test, "computing features")
    part = Part(test, batches, splits.train)
    return evaluator.answers(Subject(classifier), part), test.groups


def _table(measured: Fewshot, metrics: dict[str, tuple[Metric, ...]]) -> Table:
    """A table with a row for each data set and number of shots, and the means over several data sets."""
    table = Table()
    table.add_column("data", overflow="fold")
    for header in ("shots", "top-1", "95 % interval", "deviation"):
        table.add_column(header, justify="right")
    if measured.form == "ranked":
        table.add_column("l2", justify="right")
    for shots in measured.shots:
        values = []
        for data, several in metrics.items():
            found = _by_name(several)
            top1 = found[f"{shots}-shot/top1"]
            values.append(top1.value)
            row = [escape(printable(data)), str(shots), top1.unit.text(top1.value)]
            row += [top1.interval_text(), _text(found.get(f"{shots}-shot/deviation"))]
            if measured.form == "ranked":
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
