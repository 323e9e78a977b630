"""What `vitkit evaluate` prints and writes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitkit.commands.evaluate_corruptions import print_robustness
from vitkit.data import Source
from vitkit.evaluation import Metric
from vitkit.system.console.terminal import fill
from vitkit.system.console.text import printable, printable_name
from vitkit.system.storage.files import MARK, check_can_be_made, check_replaceable, write_where_said

if TYPE_CHECKING:
    from vitkit.evaluation import Report

CONFUSED = 5  # pairs of classes on the terminal
ENDINGS = (".html", ".json", ".png")


def check_files(files: Sequence[Path], directory: Path | None) -> None:
    """Raises ValueError for reports that cannot be written, before anything is measured; and for a
    directory of a model that cannot."""
    for file in files:
        if file.suffix.lower() not in ENDINGS:
            raise ValueError(
                f"--report is {file}; its ending says what it is: .html a page, .json the numbers, "
                ".png a contact sheet"
            )
        check_replaceable(file)
    if directory is not None:
        from vitkit.weights import check_model_replaceable

        check_can_be_made(directory)
        check_model_replaceable(directory, ("config.json", "preprocessor_config.json"))


def print_report(report: "Report") -> None:
    """The figures of a report as tables, and its sentences."""
    print(printable(f"{report.model} on {report.images}"))
    if report.paired is None:
        _print_metrics(report)
    else:
        _print_differences(report)
    sentences = list(report.notes)
    if report.confused:
        pairs = []
        for pair in report.confused[:CONFUSED]:
            names = f"{printable_name(pair.true)} for {printable_name(pair.predicted)}"
            pairs.append(f"{names} ({pair.count:,} of {pair.images:,})")
        sentences.append(f"taken most often: {', '.join(pairs)}")
    if report.paired is not None:
        sentences.append(report.paired.sentence)
    if report.calibration is not None:
        from vitkit.evaluation import calibration_sentence

        sentences.append(calibration_sentence(report))
    for sentence in sentences:
        print(fill(printable(f"- {sentence}")))


def _print_metrics(report: "Report") -> None:
    """The table of the metrics, and another of those on corrupted images."""
    if report.robustness is None:
        print_table(report.metrics)
        return
    apart = {metric.name for metric in report.robustness.metrics}
    others = [metric for metric in report.metrics if metric.name not in apart]
    if others:
        print_table(others)
    print_robustness(report.robustness)


def print_table(metrics: Sequence[Metric]) -> None:
    """A table of metrics, with the intervals of those that have one."""
    table = Table("metric", "value", "95 % interval")
    for metric in metrics:
        table.add_row(metric.name, metric.unit.text(metric.value), metric.interval_text())
    Console().print(table)


def _print_differences(report: "Report") -> None:
    """A table of two models' metrics, and the differences, in the same units."""
    table = Table("metric", "first", "second", "difference", "95 % interval")
    for each in report.paired.differences:
        values = [metric.unit.text(metric.value) for metric in (each.first, each.second)]
        unit = replace(each.difference.unit, suffix="")  # that of the columns beside it
        interval = ""
        if each.difference.interval is not None:
            interval = unit.range(*each.difference.interval)
        table.add_row(each.first.name, *values, unit.text(each.difference.value), interval)
    console = Console()
    console.print(escape(printable(f"second: {report.other}")), highlight=False)
    console.print(table)


def as_json(report: "Report") -> str:
    """One line: the metrics by name, those of a comparison under "against/" and "difference/", and
    the temperature that was fitted with what it leads to under "calibrated/"."""
    metrics = list(report.metrics)
    if report.calibration is not None:
        metrics += report.calibration.metrics()
    if report.paired is not None:
        for each in report.paired.differences:
            metrics += [each.second.within("against"), each.difference.within("difference")]
    return json.dumps({metric.name: metric.to_json() for metric in metrics}, allow_nan=False)


def write(files: Sequence[Path], report: "Report", source: Source) -> list[Path]:
    """Write a report to files of these names, and return their paths."""
    from vitkit.evaluation import disagreement_tiles, mistake_tiles, write_report
    from vitkit.inspection import contact_sheet

    written = []
    for file in files:
        ending = file.suffix.lower()
        if ending == ".html":
            write_report(file, report, source)
        elif ending == ".json":
            values = {"about": f"the report of an evaluation, {MARK}", **report.to_json()}
            write_where_said(file, json.dumps(values, indent=1, ensure_ascii=False).encode())
        else:
            tiles = mistake_tiles(report, source)
            if report.paired is not None:
                tiles = disagreement_tiles(report.paired, source, first_right=True)
                tiles += disagreement_tiles(report.paired, source, first_right=False)
            if not tiles:
                text = f"{file} is not written: there is nothing to show on it"
                print(text, file=sys.stderr)  # with --json the other stream is JSON alone
                continue
            contact_sheet(tiles, file)
        written.append(file)
    return written
