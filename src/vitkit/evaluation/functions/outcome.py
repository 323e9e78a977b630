"""The result of an evaluation, and how it is printed and written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from json import dumps as to_text
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

import vitkit
from vitkit.data import Columns, Source
from vitkit.evaluation.metrics.classification import weakest
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.metrics.paired import Paired
from vitkit.evaluation.reports.page import (
    calibration_sentence,
    disagreement_tiles,
    mistake_tiles,
    write_report,
)
from vitkit.evaluation.reports.report import Report
from vitkit.inspection import contact_sheet
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, fill, printable, printable_name
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, IMAGES, changed_fields, step
from vitkit.system.storage.files import (
    MARK,
    as_utf8,
    check_can_be_made,
    check_replaceable,
    write_where_said,
)
from vitkit.system.storage.private import public as without_secrets
from vitkit.weights import Hints, ModelLike, check_model_replaceable

if TYPE_CHECKING:
    from vitkit.evaluation.benchmarks.corruptions import Corruption
    from vitkit.evaluation.benchmarks.named import SetName
    from vitkit.evaluation.evaluators import EvaluatorName
    from vitkit.runtimes import RuntimeName
    from vitkit.system.machine import Precision


@dataclass(frozen=True)
class Measurement:
    """The arguments of `evaluate`, which its docstring describes."""

    model: ModelLike
    data: str
    against: ModelLike
    report: tuple[Path, ...]
    calibrate: Path | None
    real: Path | None
    named: SetName | Literal["imagenet-c"] | None
    corruptions: tuple[Corruption | Literal["common"], ...]
    evals: tuple[EvaluatorName, ...]
    split: str | None
    limit: int
    columns: Columns
    groups: str
    on_bad_image: str
    on_unknown_class: str
    batch: int
    workers: int
    runtime: RuntimeName
    precision: Precision
    json: bool
    hints: Hints
    masks: str = ""
    legend: Path | None = None
    ignore: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Rows):
    """The evaluation of a model on images."""

    model: str
    """The name of the model."""
    images: str
    """The title of the images: their number, data set and part."""
    metrics: tuple[Metric, ...]
    """The metrics with their intervals; under torchrun empty on all ranks but 0."""
    details: Report | None
    """The full report for images with one class each: classes, mistakes, calibration, the difference from
    another model. None for other images."""
    source: Source
    """The images that the model was measured on."""
    written: tuple[Path, ...] = ()
    """Reports and directories that were written."""
    following: str = ""
    """The suggested next call."""
    json: bool = False
    """Whether the result is printed as JSON."""

    @classmethod
    def of(
        cls,
        settings: Measurement,
        images: str,
        metrics: tuple[Metric, ...],
        details: Report | None,
        source: Source,
        written: tuple[Path, ...] = (),
    ) -> Evaluation:
        """The evaluation of a request, with its suggested next call."""
        following = step("predict", settings.model, IMAGES)
        if details is not None:
            following = next_step(settings)
        name = name_of(settings.model)
        return cls(name, images, metrics, details, source, written, following, settings.json)

    def __getitem__(self, name: str) -> float:
        """The value of a metric by its name, such as "top1". Raises KeyError."""
        return {metric.name: metric.value for metric in self.metrics}[name]

    @property
    def accuracy(self) -> float:
        """The share of images whose most likely class is the true one. Raises KeyError for images with
        other targets than one class."""
        return self["top1"]

    def report(self, path: Path | str) -> Path:
        """Write a page (.html), the numbers (.json) or a contact sheet of the mistakes (.png). Raises
        VitkitError for another ending, and for images that do not have one class each."""
        if self.details is None:
            raise BadSettings("reports are about images with one class each")
        file = Path(path)
        check_files([file], None)
        write([file], self.details, self.source)
        return file

    def rows(self) -> list[dict]:
        """A row for each metric."""
        return rows_of_metrics(self.metrics)

    def to_json(self) -> dict:
        """{name: {"value", "unit", "interval"}}"""
        if self.details is not None:
            return as_json(self.details)
        return {metric.name: metric.to_json() for metric in self.metrics}

    def shown(self) -> Iterator[str | Table]:
        """Tables and sentences, or JSON."""
        if self.json:
            yield to_text(self.to_json(), allow_nan=False)
            return
        if self.details is None:
            yield f"{self.model} on {self.images}"
            yield metrics_table(self.metrics)
            yield f"next: {self.following}"
            return
        # The metrics of a report as tables, then its sentences
        report = self.details
        yield printable(f"{report.model} on {report.images}")
        if report.paired is None:
            yield from _metrics(report)
        else:
            yield printable(f"second: {report.other}")
            yield _differences(report.paired)
        sentences = list(report.notes)
        if sentence := weakest(report.classes):
            sentences.append(sentence)
        if report.confused:
            pairs = []
            for pair in report.confused[:CONFUSED]:
                names = f"{printable_name(pair.true)} for {printable_name(pair.predicted)}"
                pairs.append(f"{names} ({pair.count:,} of {pair.images:,})")
            sentences.append(f"taken most often: {', '.join(pairs)}")
        if report.paired is not None:
            sentences.append(report.paired.sentence)
        if report.calibration is not None:
            sentences.append(calibration_sentence(report.calibration))
        for sentence in sentences:
            yield fill(printable(f"- {sentence}"))
        for path in self.written:
            yield f"wrote {path}"
        yield f"next: {self.following}"


CONFUSED = 5  # largest number of confused pairs that are printed
ENDINGS = (".html", ".json", ".png")


def rows_of_metrics(metrics: Iterable[Metric]) -> list[dict]:
    """A row for each metric: its name, its value, and the ends of its interval, None without one."""
    rows = []
    for metric in metrics:
        low, high = metric.interval or (None, None)
        rows.append({"metric": metric.name, "value": metric.value, "low": low, "high": high})
    return rows


def check_files(files: Sequence[Path], directory: Path | None) -> None:
    """Raises VitkitError for report files, or a model directory, that cannot be written."""
    for file in files:
        if file.suffix.lower() not in ENDINGS:
            raise BadSettings(
                f"`report` is {file}; its ending says what it is: .html a page, .json the numbers, "
                ".png a contact sheet"
            )
        check_replaceable(file)
    if directory is not None:
        check_can_be_made(directory)
        check_model_replaceable(directory)


def _metrics(report: Report) -> Iterator[str | Table]:
    """The table of the metrics, and another of those on corrupted images."""
    if report.robustness is None:
        yield metrics_table(report.metrics)
        return
    apart = {metric.name for metric in report.robustness.metrics}
    others = [metric for metric in report.metrics if metric.name not in apart]
    if others:
        yield metrics_table(others)
    # A row for each corruption, a column for each severity: top1 in percent. For ImageNet-C's files
    # another column has the errors divided by AlexNet's
    found = report.robustness
    severities = [str(k + 1) for k in range(len(found.by_severity))]
    header = ["top1 (%) at severity", *severities]
    if found.errors:
        header.append("CE (%)")
    table = Table(*header)
    mean_error, *errors = found.errors or [None] * (1 + len(found.cells))
    for (name, row), error in zip(found.cells.items(), errors, strict=True):
        table.add_row(name.replace("_", " "), *_percent(row, error))
    table.add_section()
    table.add_row(f"mean of {len(found.cells)}", *_percent(found.by_severity, mean_error))
    yield table

    # The means with their intervals
    sentences = [f"corrupted: {found.mean.text()}"]
    if found.clean is not None:
        sentences.insert(0, f"not corrupted: {found.clean.text()}")
    if mean_error is not None:
        sentences.append(f"{MEAN_ERROR.get(mean_error.name, 'mean CE')}: {mean_error.text()}")
    yield "; ".join(sentences)


def metrics_table(metrics: Sequence[Metric]) -> Table:
    """A table of metrics, with the intervals of those that have one."""
    table = Table("metric", "value", "95 % interval")
    for metric in metrics:
        table.add_row(metric.name, metric.unit.text(metric.value), metric.interval_text())
    return table


def _differences(paired: Paired) -> Table:
    """A table of two models' metrics, and the differences, in the same units."""
    table = Table("metric", "first", "second", "difference", "95 % interval")
    for each in paired.differences:
        values = [metric.unit.text(metric.value) for metric in (each.first, each.second)]
        unit = replace(each.difference.unit, suffix="")  # the columns beside it show the unit
        interval = ""
        if each.difference.interval is not None:
            interval = unit.range(*each.difference.interval)
        table.add_row(each.first.name, *values, unit.text(each.difference.value), interval)
    return table


def as_json(report: Report) -> dict:
    """The metrics by name, for JSON: those of a comparison begin with "against/" and "difference/", those
    after calibration with "calibrated/"."""
    metrics = list(report.metrics)
    if report.calibration is not None:
        metrics += report.calibration.metrics()
    if report.paired is not None:
        for each in report.paired.differences:
            metrics += [each.second.within("against"), each.difference.within("difference")]
    return {metric.name: metric.to_json() for metric in metrics}


def write(files: Sequence[Path], report: Report, source: Source) -> list[Path]:
    """Write a report to files, in the format of each one's suffix, and return the paths written."""
    written = []
    for file in files:
        ending = file.suffix.lower()
        if ending == ".html":
            write_report(file, report, source)
        elif ending == ".json":
            values = {"about": f"the report of an evaluation, {MARK}", **report.to_json()}
            write_where_said(file, as_utf8(to_text(values, indent=1, ensure_ascii=False)))
        else:
            tiles = mistake_tiles(report, source)
            if report.paired is not None:
                tiles = disagreement_tiles(report.paired, source, first_right=True)
                tiles += disagreement_tiles(report.paired, source, first_right=False)
            if not tiles:
                say(f"{file} is not written: there is nothing to show on it")
                continue
            contact_sheet(tiles, file)
        written.append(file)
    return written


def next_step(settings: Measurement) -> str:
    """The suggested next call after a report."""
    if settings.calibrate:
        return f"{step('evaluate', settings.calibrate, DATA)}, on images that it was not fitted on"
    if settings.report:
        return f"open {as_word(settings.report[0])}"
    return command_line(settings, report="report.html")


def command_line(settings: Measurement, **others: Any) -> str:
    """The call that repeats a measurement, with the further arguments `others`. Output files, and settings
    that depend on the machine (OWN_CHOICE), are left out."""
    changed = {}
    for name, each in inspect.signature(vitkit.evaluate).parameters.items():
        value = getattr(settings, name, each.default)
        if each.kind is each.KEYWORD_ONLY and value != each.default and name not in OWN_CHOICE:
            changed[name] = value
    changed |= changed_fields(settings.hints)
    return step("evaluate", settings.model, settings.data, **changed, **others)


OWN_CHOICE = {"report", "calibrate", "json", "workers", "device"}
MEAN_ERROR = {"mce": "mCE"}  # displayed name of the mean error over all of ImageNet-C's corruptions


def _percent(row: Sequence[Metric], error: Metric | None) -> list[str]:
    """The cells of a row, in percent."""
    metrics = list(row)
    if error is not None:
        metrics.append(error)
    return [f"{100 * metric.value:.1f}" for metric in metrics]


def has_same_name(data: str, origin: dict) -> bool:
    """Whether a data set has the name of the one that a model was trained on."""
    return Path(str(without_secrets(data))).name == Path(origin.get("data", "")).name
