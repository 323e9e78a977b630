"""Arrays to pictures: curves, and rows of images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 100  # pixels of a side below which they are shown as squares


@dataclass(frozen=True)
class Curve:
    """Points of one line."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """The lower and the upper end of an interval around each point; empty for none."""
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One plot among several: curves that share an axis."""

    title: str
    axis: str
    """What is drawn upwards, and its unit."""
    curves: Mapping[str, Curve]
    """By what the legend calls them; a single one without a name has no legend."""
    x: str = "step"


def plot(panels: Sequence[Panel], columns: int = 3) -> "Figure":
    """Panels side by side, `columns` in a row."""
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns, 3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for panel, axes in zip(panels, grid, strict=False):
        for name, curve in panel.curves.items():
            _draw(axes, name, curve)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.axis)
        axes.spines[["top", "right"]].set_visible(False)
        if any(panel.curves):
            axes.legend(fontsize=8, framealpha=0.7, edgecolor="none")
    for axes in grid:  # the rest of the last row
        axes.axis("off")
    return figure


def _draw(axes, name: str, curve: Curve) -> None:
    """One curve: dots where there are few points, and a band for its interval."""
    style = "o-" if len(curve.x) <= 30 else "-"
    (line,) = axes.plot(curve.x, curve.y, style, label=name or None, markersize=4)
    if len(curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.15, lw=0)


def image_rows(columns: Mapping[str, np.ndarray]) -> "Figure":
    """Columns of images under their names, uint8 (N, h, w, 3) each: a row for each of the N."""
    from matplotlib.figure import Figure

    count = len(next(iter(columns.values())))
    size = (1.6 * len(columns), 1.6 * count + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count, len(columns), squeeze=False)
    for j, (name, images) in enumerate(columns.items()):
        grid[0, j].set_title(name, fontsize=9)
        for i, image in enumerate(images):
            smooth = "nearest" if max(image.shape) < SMALL else "antialiased"
            grid[i, j].imshow(image, interpolation=smooth)
            grid[i, j].axis("off")
    return figure
