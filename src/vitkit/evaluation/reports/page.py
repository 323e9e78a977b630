"""The report of an evaluation as a self-contained HTML page, and its contact sheet."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from vitkit.data import Picture, Source, picture_for_people
from vitkit.evaluation.benchmarks.corruptions import Robustness
from vitkit.evaluation.metrics.calibration import Bin, Calibration, Covered, at_coverages
from vitkit.evaluation.metrics.classification import ClassScore, weakest
from vitkit.evaluation.metrics.metric import MISFIT, SHARE, Metric
from vitkit.evaluation.metrics.paired import Difference, Paired
from vitkit.evaluation.reports.report import Report
from vitkit.inspection import (
    Curve,
    Markup,
    Panel,
    Tile,
    bullets,
    columns,
    drawing,
    folded,
    gallery,
    pairs,
    paragraph,
    plot,
    section,
    table,
    write_page,
)
from vitkit.inspection.pages.html import join, matrix
from vitkit.system.console.text import printable, printable_name

# Explanations of the metrics for readers of a report
MEANING = {
    "top1": "share of images whose most likely class is the right one",
    "top5": "share of images whose right class is one of the five most likely",
    "top1_of_data": "top1 if only the classes that these images have could be answered",
    "balanced_accuracy": "the mean of the classes' recall: all classes have equal weight, rare ones too",
    "macro_f1": "the mean of the classes' F1, the harmonic mean of recall and precision",
    "calibration_error": "the mean distance between confidence and the share of right answers",
    "loss": "the mean of -log(probability of the right class): right, and sure of it, is near 0",
    "seen": "images",
}
MISTAKES = 24  # largest number of mistakes that are shown
MATRIX = 30  # largest number of classes in a confusion matrix, those with the lowest recall
LONG = 40  # longest heading, in characters
ROWS = 20  # rows of a table before the rest is folded
Look = Callable[[Picture], np.ndarray]
"""Draws an image with the model's attention: uint8 (h, w, 3)."""


def write_report(path: Path, report: Report, source: Source) -> Path:
    """Write the page, and return its path. Decodes the images that it shows. Raises OSError."""
    source = source.a_few()
    folder = path.absolute().parent
    blocks = [paragraph(report.images, "faint"), *headline(report.metrics[0])]
    if sentence := weakest(report.classes):
        blocks.append(paragraph(printable(sentence)))
    blocks.append(bullets(report.notes))
    if metrics := _metrics(report):
        names = {metric.name for metric in metrics}
        known = {name: words for name, words in MEANING.items() if name in names}
        meaning = folded("What they mean", pairs(known))
        blocks.append(section("Metrics", metrics_table(metrics), meaning))
    if report.paired is not None:
        blocks.append(_comparison(report, report.paired, source, folder))
    if report.robustness is not None:
        blocks.append(robustness_section(report.robustness))
    if report.classes:
        blocks += [
            _probabilities(report),
            confusion_section(report),
            section("Classes", _classes(report.classes)),
        ]
    if report.mistakes:
        blocks.append(mistakes_section(report, source, folder=folder))
    blocks.append(section("How it was measured", pairs(report.facts)))
    return write_page(path, _title(report.model), blocks)


def headline(first: Metric) -> list[Markup]:
    """The headline of a page: "88.0 % right", with its interval."""
    value = first.unit.text(first.value)
    interval = first.name
    if first.name.rpartition("/")[2] == "top1":
        value += " right"
        interval = ""
    if first.interval is not None:
        interval = ", ".join(
            filter(None, [interval, f"{first.interval_text()} at 95 % confidence"])
        )
    return [paragraph(value, "headline"), paragraph(interval, "faint")]


def _title(model: str) -> str:
    """A model's name for a heading: the last part of a long path, else the whole name."""
    if len(model) > LONG and Path(model).exists():
        return Path(model).name
    return model


def _metrics(report: Report) -> list[Metric]:
    """The metrics that are not shown in another section."""
    elsewhere: set[str] = set()
    if report.robustness is not None:
        elsewhere = {metric.name for metric in report.robustness.metrics}
    return [metric for metric in report.metrics if metric.name not in elsewhere]


def metrics_table(metrics: Sequence[Metric]) -> Markup:
    """A table with a row for each metric, and its interval."""
    if not metrics:
        return paragraph("Nothing was measured.")
    rows = []
    for metric in metrics:
        rows.append((metric.name, metric.unit.text(metric.value), metric.interval_text()))
    return table(rows, ("metric", "value", "95 % interval"))


# Two models


def _comparison(report: Report, paired: Paired, source: Source, folder: Path) -> Markup:
    """The section with the differences between two models, and the images on which they disagree."""
    rows = [_difference_row(each) for each in paired.differences]
    header = ("metric", "first", "second", "difference", "95 % interval")
    blocks = [
        paragraph(f"The first is this model, the second {report.other}, on the same images."),
        table(rows, header),
        paragraph(f"{paired.sentence[0].upper()}{paired.sentence[1:]}."),
    ]
    titles = {
        True: "Only the first is right; the second's surest mistakes",
        False: "Only the second is right; the first's surest mistakes",
    }
    for first_right, title in titles.items():
        tiles = disagreement_tiles(paired, source, first_right)
        if tiles:
            blocks += [paragraph(title), gallery(tiles, folder=folder)]
    return section("Against another model", *blocks)


def _difference_row(each: Difference) -> tuple[str, ...]:
    metrics = (each.first, each.second, each.difference)
    values = [metric.unit.text(metric.value) for metric in metrics]
    return (each.first.name, *values, each.difference.interval_text())


def disagreement_tiles(paired: Paired, source: Source, first_right: bool) -> list[Tile]:
    """Images that only one model classified right, with the wrong answer of the other."""
    tiles: list[Tile] = []
    for each in paired.disagreements:
        if each.first_right != first_right or len(tiles) == MISTAKES // 2:
            continue
        caption = f"first: {each.confidence:.0%} {printable_name(each.first)}"
        if first_right:
            caption = f"second: {each.confidence:.0%} {printable_name(each.second)}"
        pixels = picture_for_people(source.picture(each.index))
        note = f"is {printable_name(each.true)}"
        tiles.append(Tile(pixels, caption, False, note, source.name(each.index)))
    return tiles


# Probabilities


def _probabilities(report: Report) -> Markup:
    """The section with the reliability diagram, and the accuracy against the coverage."""
    curves = {"perfect": Curve((0, 100), (0, 100), dashed=True)}
    bins_of = {"this model": report.reliability}
    if report.calibration is not None:
        bins_of["with the temperature"] = report.calibration.bins_after
    for name, bins in bins_of.items():
        curves[name] = _curve_of_shares((each.confidence for each in bins), bins)
    diagram = Panel("Reliability", "right, %", curves, "confidence, %", limits=(0, 100))
    few = report.coverage[:: len(report.coverage) // 300 + 1]  # at most 300 points
    covered = _curve_of_shares((point.coverage for point in few), few)
    title = "Accuracy against coverage"
    coverage = Panel(title, "right, %", {"": covered}, "images that get an answer, %")
    points = [
        (SHARE.text(point.coverage), SHARE.text(point.threshold), SHARE.text(point.accuracy))
        for point in at_coverages(report.coverage)
    ]
    header = ("images answered", "if as confident as", "right")
    blocks = [
        paragraph(
            "Reliability: how many of the answers that are given with some confidence are right; "
            "below the dashed line the model is too sure of itself. Coverage: how many answers are "
            "right if the least confident images get none. Bands are intervals at 95 %."
        ),
        columns(
            drawing(plot([diagram]), "share of right answers by confidence"),
            drawing(plot([coverage]), "share of right answers by share of images answered"),
        ),
        table(points, header),
    ]
    if report.calibration is not None:
        blocks.insert(1, paragraph(calibration_sentence(report.calibration)))
    return section("Can its probabilities be believed?", *blocks)


def calibration_sentence(calibration: Calibration) -> str:
    """A sentence about the effect of a fitted temperature."""
    warning = ""
    if calibration.loss_after > calibration.loss_before:
        warning = (
            " That is worse: there are too few images, or the probabilities were right before."
        )
    return (
        f"Fitted temperature: {calibration.temperature:.3f}. With it the calibration error is "
        f"{MISFIT.text(calibration.error_after)} instead of "
        f"{MISFIT.text(calibration.error_before)}, and the loss {calibration.loss_after:.4f} "
        f"instead of {calibration.loss_before:.4f}, each half of the images with the temperature "
        f"of the other half.{warning}"
    )


def _curve_of_shares(xs: Iterable[float], points: Sequence[Bin | Covered]) -> Curve:
    """The curve of the accuracy of points, with its interval, against `xs`; drawn in percent."""
    return Curve(
        [100 * x for x in xs],
        [100 * point.accuracy for point in points],
        [100 * point.interval[0] for point in points],
        [100 * point.interval[1] for point in points],
    )


# Classes


def confusion_section(report: Report) -> Markup:
    """The section with the confusion matrix; if it does not have all classes, also with the pairs that are
    confused most often."""
    if not report.confused:
        return section("Which classes are confused", paragraph("None: every answer is right."))

    # The pairs of classes
    rows = []
    for pair in report.confused[:ROWS]:
        count = f"{pair.count:,} of {pair.images:,}"
        rows.append((printable_name(pair.true), printable_name(pair.predicted), count))

    # The matrix of the classes with the least recall; a last column has all other answers
    worst = np.argsort([score.recall for score in report.classes], kind="stable")[:MATRIX]
    chosen = np.sort(worst)
    names = [printable_name(report.classes[k].name) for k in chosen]
    cells = report.confusion[chosen][:, chosen]
    elsewhere = report.confusion[chosen].sum(1) - cells.sum(1)
    cells = np.concatenate([cells, elsewhere[:, None]], axis=1)

    # The text
    text = "Rows are the true classes, columns the answers."
    pairs_of_classes = []
    if len(chosen) < len(report.classes):
        text += (
            f" These are the {MATRIX} of {len(report.classes):,} classes with the lowest recall."
        )
        header = ("true", "predicted", "images")
        pairs_of_classes.append(table(rows[: ROWS // 2], header))
        pairs_of_classes.append(_rest(rows[ROWS // 2 :], header, "More pairs"))
    columns_of = list(names)
    if elsewhere.any():
        columns_of.append("any other")
    else:
        cells = cells[:, :-1]
    return section(
        "Which classes are confused",
        *pairs_of_classes,
        paragraph(text),
        matrix(names, columns_of, cells.tolist()),
    )


def _classes(scores: Sequence[ClassScore]) -> Markup:
    """The table of the classes, those with the lowest recall first."""
    rows = []
    for score in sorted(scores, key=lambda score: score.recall):
        precision = "never answered"
        if score.precision is not None:
            precision = SHARE.text(score.precision)
        row = (
            printable_name(score.name),
            f"{score.images:,}",
            SHARE.text(score.recall),
            SHARE.range(*score.interval),
            precision,
            SHARE.text(score.f1),
            printable_name(score.taken_for),
        )
        rows.append(row)
    header = ("class", "images", "recall", "95 % interval", "precision", "F1", "most confused with")
    return join([table(rows[:ROWS], header), _rest(rows[ROWS:], header, "All other classes")])


def _rest(rows: Sequence[Sequence[str]], header: Sequence[str], title: str) -> Markup:
    """The end of a long table, folded; nothing if the table is short."""
    if not rows:
        return Markup()
    return folded(f"{title} ({len(rows):,})", table(rows, header))


# Mistakes


def mistakes_section(
    report: Report, source: Source, look: Look | None = None, folder: Path | None = None
) -> Markup:
    """The section with the most confident mistakes.

    look: draws each image; None shows it as it is.
    folder: the folder of the page, to which links to the images' files are relative.
    """
    text = (
        "The wrong answers with the highest probabilities: the answer with its probability, the true class, "
        "and the photograph's name. Look for wrong labels first."
    )
    if look is not None:
        text += (
            " Beside each, a copy is dark where the image has little influence on the answer, by "
            "attention rollout."
        )
    pictures = gallery(mistake_tiles(report, source, look), look is not None, folder)
    return section("Most confident mistakes", paragraph(text), pictures)


def mistake_tiles(report: Report, source: Source, look: Look | None = None) -> list[Tile]:
    """The most confident mistakes as tiles, each with the answer and the true class."""
    tiles = []
    for mistake in report.mistakes[:MISTAKES]:
        caption = f"{mistake.confidence:.0%} {printable_name(mistake.predicted)}"
        note = f"is {printable_name(mistake.true)}"
        picture = source.picture(mistake.index)
        pixels = picture_for_people(picture)
        if look is not None:
            pixels = look(picture)
        tiles.append(Tile(pixels, caption, False, note, mistake.image))
    return tiles


# Corrupted images


def robustness_section(found: Robustness) -> Markup:
    """The section about corrupted images: curves, and a table with a row for each corruption."""
    count = len(found.cells)
    mean = _curve(found.clean, found.by_severity)
    panels = [_panel(f"mean of {count}", {"": mean})]
    to_compare_with = Curve(mean.x, mean.y, dashed=True)  # without intervals
    for name, row in found.cells.items():
        curves = {f"mean of {count}": to_compare_with, "": _curve(found.clean, row)}
        panels.append(_panel(name.replace("_", " "), curves))

    header = ["top1 at severity", *(str(k + 1) for k in range(len(found.by_severity)))]
    mean_error, *errors = found.errors or [None] * (1 + count)
    if found.errors:
        header.append("CE")
    rows = []
    for (name, row), error in zip(found.cells.items(), errors, strict=True):
        rows.append(_row(name.replace("_", " "), row, error))
    rows.append(_row(f"mean of {count}", found.by_severity, mean_error))
    figure = drawing(plot(panels, 4), "top1 by severity, for each corruption")
    text = paragraph(_text(found))
    return section("Corrupted images", text, figure, table(rows, tuple(header)))


def _text(found: Robustness) -> str:
    """The paragraph that explains the figures."""
    if found.clean is None:
        return (
            f"ImageNet-C's files: top1 is {found.mean.text()}, the mean over all corruptions and "
            "severities. CE is the error under a corruption, the mean over severities, divided "
            f"by AlexNet's; its mean is {found.errors[0].text()}."
        )
    return (
        f"The same images, corrupted: top1 falls from {found.clean.text()} to {found.mean.text()}, "
        "the mean over all corruptions and severities. Severity 0 is the clean image. Images are "
        "corrupted at the model's image size; unlike ImageNet-C's, they are not compressed as JPEG "
        "afterwards."
    )


def _panel(title: str, curves: dict[str, Curve]) -> Panel:
    return Panel(title, "top1, %", curves, "severity", upwards=(0, 100))


def _curve(clean: Metric | None, row: Sequence[Metric]) -> Curve:
    """top1 in percent by severity, with intervals if all have one; severity 0 is the clean images."""
    metrics = list(row)
    severities = range(1, len(row) + 1)
    if clean is not None:
        metrics.insert(0, clean)
        severities = range(len(metrics))
    values = [SHARE.scale * metric.value for metric in metrics]
    intervals = [metric.interval for metric in metrics if metric.interval is not None]
    if len(intervals) < len(metrics):
        return Curve(severities, values)
    lower = [SHARE.scale * low for low, _ in intervals]
    upper = [SHARE.scale * high for _, high in intervals]
    return Curve(severities, values, lower, upper)


def _row(name: str, metrics: Sequence[Metric], error: Metric | None) -> tuple[str, ...]:
    """A row of the table: the metrics, then the error if there is one."""
    cells = list(metrics)
    if error is not None:
        cells.append(error)
    return (name, *(metric.unit.text(metric.value) for metric in cells))
