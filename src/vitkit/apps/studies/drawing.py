"""Shared drawing functions of the studies' figures: panels, and points with error bars.

Shares are drawn in percent. A point is the mean over the seeds, its error bar their standard deviation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vitkit.apps.studies.laws import REACH, Fit
from vitkit.apps.studies.uncertainty import mean_and_deviation
from vitkit.evaluation import Metric

MARKERS = "osD^vPX*<>"


def panels(titles: Sequence[str], height: float = 3.4, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, in rows of equal length.

    height: of a row, in inches.
    """
    columns = len(titles) // rows
    figure = Figure(figsize=(4.6 * columns, height * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, list(every)


def line(
    axes: Axes,
    points: Mapping[int, Sequence[Metric]] | Mapping[float, Sequence[Metric]],
    label: str,
    number: int,
    joined: bool = True,
) -> None:
    """Draw means with standard deviations, joined by a line if `joined`."""
    xs = []
    means = []
    deviations = []
    for x, metrics in sorted(points.items()):
        if not metrics:
            continue
        mean, deviation = mean_and_deviation(metrics)
        scale = metrics[0].unit.scale
        xs.append(x)
        means.append(mean * scale)
        deviations.append(deviation * scale)
    linestyle = "none"
    if joined:
        linestyle = "-"
    axes.errorbar(
        xs,
        means,
        deviations,
        label=label,
        marker=MARKERS[number % len(MARKERS)],
        color=f"C{number}",
        markersize=5,
        linestyle=linestyle,
        linewidth=1.3,
        capsize=3,
    )


def curve(
    axes: Axes, points: Mapping[int, float] | Mapping[float, float], label: str, number: int
) -> None:
    """Draw a curve through values that the paper prints."""
    xs, ys = zip(*sorted(points.items()), strict=True)
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(xs, ys, marker=marker, color=f"C{number}", label=label, markersize=5, linewidth=1.3)


def dots(axes: Axes, names: Sequence[str], groups: Sequence[Sequence[Metric]]) -> None:
    """Draw a row for each name: the mean of its runs with their standard deviation, and each run as
    a small dot."""
    for row, metrics in enumerate(groups):
        if not metrics:
            continue
        scale = metrics[0].unit.scale
        mean, deviation = mean_and_deviation(metrics)
        values = [metric.value * scale for metric in metrics]
        axes.plot(values, [row] * len(values), ".", color="0.6", markersize=5)
        axes.errorbar(
            [mean * scale], [row], xerr=[deviation * scale], fmt="o", color="C0", capsize=3
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def legend(axes: Axes) -> None:
    """Add the legend, if there are labelled lines."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def titles(axes: Axes, across: str, groups: Mapping[Any, Sequence[Metric]]) -> None:
    """Label both axes, y by the metric of the groups, and add the legend."""
    axes.set_xlabel(across)
    axes.set_ylabel(axis_title(groups))
    legend(axes)


def beside_the_paper(
    subtitles: Sequence[str],
    here: Mapping[str, Sequence[Metric]],
    percent: Sequence[float],
    names: Sequence[str] = (),
) -> Figure:
    """Two panels of dots with a row for each name: the runs here, and the values that the paper prints.
    names: the paper's names of the rows, if they differ."""
    figure, (left, right) = panels(subtitles)
    dots(left, list(here), list(here.values()))
    left.set_xlabel(axis_title(here))
    right.plot(percent, range(len(percent)), "o", color="C1")
    right.set_yticks(range(len(percent)), names or [""] * len(percent))
    right.invert_yaxis()
    right.set_xlabel("top1, %")
    return figure


def logarithmic(axes: Axes) -> None:
    """A logarithmic x axis with plain numbers, at 1 and 3 of each decade."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def axis_title(groups: Mapping[Any, Sequence[Metric]]) -> str:
    """The title of an axis for the metric of the runs: "top1, %"; empty if there are no runs."""
    for metrics in groups.values():
        for metric in metrics:
            return f"{metric.name}, {metric.unit.axis}"
    return ""


def law(axes: Axes, fitted: Fit | None, number: int) -> None:
    """Draw a fitted law as a thin line with its interval, as far as it may be extrapolated."""
    if fitted is None:
        return
    xs = np.geomspace(fitted.low, REACH * fitted.high, 60)
    intervals = np.array([fitted.interval(x) for x in xs])  # (60, 2), of the error
    high, low = 100 * (1 - intervals.T)
    axes.plot(xs, 100 * (1 - fitted.law.error(xs)), "--", color=f"C{number}", linewidth=0.9)
    axes.fill_between(xs, low, high, color=f"C{number}", alpha=0.12, linewidth=0)
