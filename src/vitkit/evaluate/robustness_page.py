"""Accuracy on corrupted images, as a section of a page: the curve of each corruption and of their
mean, and the numbers."""

from collections.abc import Sequence

from vitkit.evaluate.corruptions import Robustness
from vitkit.evaluate.metric import SHARE, Metric
from vitkit.inspection.figures import Curve, Panel, plot
from vitkit.inspection.page import Block, drawing, paragraph, section, table


def robustness_section(found: Robustness) -> Block:
    """Curves, and a table with a row for each corruption."""
    count = len(found.cells)
    mean = _curve(found.clean, found.by_severity)
    panels = [_panel(f"mean of {count}", {"": mean})]
    for name, row in found.cells.items():
        curves = {f"mean of {count}": _line(mean), "": _curve(found.clean, row)}
        panels.append(_panel(name.replace("_", " "), curves))

    rows = [_row(name.replace("_", " "), row) for name, row in found.cells.items()]
    rows.append(_row(f"mean of {count}", found.by_severity))
    header = ("top1 at severity", *(str(k + 1) for k in range(len(found.by_severity))))
    text = (
        f"The same images, corrupted: top1 falls from {found.clean.text()} to {found.mean.text()}, "
        "the mean over all corruptions and severities. Severity 0 is the image as it is. Images are "
        "corrupted at the size at which the model gets them; unlike ImageNet-C's, they are not "
        "stored as JPEG afterwards."
    )
    figure = drawing(plot(panels, 4), "top1 by severity, for each corruption")
    return section("Corrupted images", paragraph(text), figure, table(rows, header))


def _panel(title: str, curves: dict[str, Curve]) -> Panel:
    return Panel(title, "top1, %", curves, "severity", upwards=(0, 100))


def _curve(clean: Metric, row: Sequence[Metric]) -> Curve:
    """top1 in percent at severities from 0 on, with intervals if all have one."""
    metrics = (clean, *row)
    ends: list[tuple[float, ...]] = [(), ()]
    if all(metric.interval is not None for metric in metrics):
        ends = [tuple(SHARE.scale * metric.interval[end] for metric in metrics) for end in (0, 1)]
    return Curve(
        range(len(metrics)), [SHARE.scale * metric.value for metric in metrics], ends[0], ends[1]
    )


def _line(curve: Curve) -> Curve:
    """The same without intervals, to compare others with."""
    return Curve(curve.x, curve.y, dashed=True)


def _row(name: str, metrics: Sequence[Metric]) -> tuple[str, ...]:
    return (name, *(metric.unit.text(metric.value) for metric in metrics))
