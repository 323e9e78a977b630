"""Accuracy on corrupted images, as a section of a page: the curve of each corruption and of their
mean, and the numbers."""

from collections.abc import Sequence

from vitkit.evaluation.benchmarks.corruptions import Robustness
from vitkit.evaluation.metrics.metric import SHARE, Metric
from vitkit.inspection import Block, Curve, Panel, drawing, paragraph, plot, section, table


def robustness_section(found: Robustness) -> Block:
    """Curves, and a table with a row for each corruption."""
    count = len(found.cells)
    mean = _curve(found.clean, found.by_severity)
    panels = [_panel(f"mean of {count}", {"": mean})]
    for name, row in found.cells.items():
        curves = {f"mean of {count}": _line(mean), "": _curve(found.clean, row)}
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
    """What a reader should know of the figures."""
    if found.clean is None:
        return (
            f"ImageNet-C's files: top1 is {found.mean.text()}, the mean over all corruptions and "
            "severities. CE is the error under a corruption, the mean over severities, in proportion "
            f"to AlexNet's, which has 100 %; its mean is {found.errors[0].text()}."
        )
    return (
        f"The same images, corrupted: top1 falls from {found.clean.text()} to {found.mean.text()}, "
        "the mean over all corruptions and severities. Severity 0 is the image as it is. Images are "
        "corrupted at the size at which the model gets them; unlike ImageNet-C's, they are not "
        "stored as JPEG afterwards."
    )


def _panel(title: str, curves: dict[str, Curve]) -> Panel:
    return Panel(title, "top1, %", curves, "severity", upwards=(0, 100))


def _curve(clean: Metric | None, row: Sequence[Metric]) -> Curve:
    """top1 in percent by severity, with intervals if all have one; 0 is the images as they are."""
    metrics = list(row)
    severities = range(1, len(row) + 1)
    if clean is not None:
        metrics.insert(0, clean)
        severities = range(len(metrics))
    ends: list[tuple[float, ...]] = [(), ()]
    if all(metric.interval is not None for metric in metrics):
        ends = [tuple(SHARE.scale * metric.interval[end] for metric in metrics) for end in (0, 1)]
    values = [SHARE.scale * metric.value for metric in metrics]
    return Curve(severities, values, ends[0], ends[1])


def _line(curve: Curve) -> Curve:
    """The same without intervals, to compare others with."""
    return Curve(curve.x, curve.y, dashed=True)


def _row(name: str, metrics: Sequence[Metric], error: Metric | None) -> tuple[str, ...]:
    """A row of the table; the error stands last, if there is one."""
    cells = list(metrics)
    if error is not None:
        cells.append(error)
    return (name, *(metric.unit.text(metric.value) for metric in cells))
