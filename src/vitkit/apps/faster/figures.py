"""The Pareto front of a search as a figure and as a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.inspection import (
    LIGHT,
    Markup,
    paragraph,
    section,
    table,
    themed,
    themed_figure,
    write_figure,
)
from vitkit.inspection import write_page as write_html
from vitkit.inspection.plots import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.5  # inches
HEIGHT = 4.5
TICKS = 8
OFFSET = (5, 5)  # offset of a number from its dot, in typographic points
HEADER = ("model", "ms an image", "times", "MB", "points lost", "at most")


def line_figure(line: ParetoLine, chosen: Point, theme: Theme = LIGHT) -> "Figure":
    """The accuracy lost, in percentage points, against the time per image: every measured model,
    the Pareto front numbered from the slowest on, and the confidence interval and limit of each."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subfigures().subplots()  # type: ignore[union-attr]  # a single subfigure, not an array
    best = line.best

    # All measured models
    others = [point for point in line.points if point not in best]
    _draw_points(axes, [line.reference], theme.faint, "s", "the whole model in PyTorch")
    if others:
        _draw_points(axes, others, theme.faint, "o", "others")

    # The front with intervals and limits, and the chosen model
    times = [point.milliseconds for point in best]
    lost = [100 * point.loss.lost for point in best]
    below = [100 * (point.loss.lost - point.loss.low) for point in best]
    above = [100 * (point.loss.high - point.loss.lost) for point in best]
    axes.errorbar(
        times,
        lost,
        [below, above],
        fmt="o-",
        label="the line, at 95 %",
        color=theme.first,
        capsize=2,
        elinewidth=0.8,
    )
    promises = [100 * point.loss.at_most for point in best]
    axes.plot(times, promises, "_", color=theme.second, label="at most")
    axes.plot(
        [chosen.milliseconds],
        [100 * chosen.loss.lost],
        "*",
        markersize=14,
        color=theme.second,
        label=f"chosen: {chosen.name}",
    )
    for number, point in enumerate(best, start=1):
        place = (point.milliseconds, 100 * point.loss.lost)
        axes.annotate(str(number), place, OFFSET, textcoords="offset points", fontsize=8)

    # Axes
    axes.axhline(0, color=theme.faint, linewidth=0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"milliseconds of an image, {line.batch} at a time")
    axes.set_ylabel(f"points of accuracy lost, on {line.tested:,} images")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return themed(figure, theme)


def _draw_points(axes: "Axes", points: "list[Point]", colour: str, marker: str, label: str) -> None:
    """Draw some models as dots."""
    times = [point.milliseconds for point in points]
    lost = [100 * point.loss.lost for point in points]
    axes.plot(times, lost, marker, color=colour, markersize=4, label=label)


def cells(point: Point) -> tuple[str, ...]:
    """The table row of a model, with the columns of HEADER."""
    loss = point.loss
    lost = f"{100 * loss.lost:.1f} ({100 * loss.low:.1f} to {100 * loss.high:.1f})"
    at_most = f"{100 * loss.at_most:.2f}"
    if loss.at_most == 0:
        lost = "the same numbers"
        at_most = "0"
    return (
        point.name,
        f"{point.milliseconds:.1f}",
        f"{point.times:.2f}",
        f"{point.megabytes:.1f}",
        lost,
        at_most,
    )


def draw(path: Path, line: ParetoLine, chosen: Point) -> Path:
    """Write the figure as PNG or SVG. Raises OSError, and VitkitError for an existing file that
    vitkit did not write."""
    return write_figure(line_figure(line, chosen), path)


def write_page(path: Path, line: ParetoLine, chosen: Point, sentences: list[str]) -> Path:
    """Write the page: the chosen model, the figure, and all measured models. Raises OSError, and
    VitkitError for an existing file that vitkit did not write."""
    return write_html(path, "Faster", _blocks(line, chosen, sentences))


def _blocks(line: ParetoLine, chosen: Point, sentences: list[str]) -> Iterator[Markup]:
    """The blocks of the page."""
    for sentence in sentences:
        yield paragraph(sentence)
    alt = f"points lost against milliseconds; chosen: {chosen.name}"
    yield themed_figure(lambda theme: line_figure(line, chosen, theme), alt)
    rows = []
    for point in line.shown:
        number = ""
        if point in line.best:
            number = f"{line.best.index(point) + 1}. "
        name, *others = cells(point)
        rows.append((number + name, *others))
    yield section("The line", table(rows, HEADER))
    rest = [cells(point) for point in line.points if point not in line.best]
    if rest:
        yield section("Others that were measured", table(rest, HEADER))
