"""Figures of numbers: curves in panels, mosaics of maps, dots by depth; light or dark, and written to files.

The colours are distinguishable with any form of colour vision (Okabe and Ito 2008; the colour maps viridis
and cividis, whose lightness increases uniformly).

Legend: L layers, H heads, (h, w) the grid of patches, C channels.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import MARK, write_where_said

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DPI = 150
FORMATS = ("png", "svg")


# Light and dark


@dataclass(frozen=True)
class Theme:
    """The colours of a figure."""

    paper: str
    """The background."""
    ink: str
    """Titles, labels and numbers."""
    faint: str
    """Axes, and reference lines."""
    first: str
    """Dots, and the first of several curves."""
    second: str
    """A mean of dots, and the second of several curves."""
    maps: str = "viridis"
    """matplotlib's colour map for numbers."""


LIGHT = Theme("#ffffff", "#1b1f24", "#8c959f", "#0072b2", "#d55e00")
DARK = Theme("#0d1117", "#e6edf3", "#6e7681", "#56b4e9", "#e69f00")
THEMES = {"light": LIGHT, "dark": DARK}


def themed(figure: "Figure", theme: Theme) -> "Figure":
    """Set the background, texts and axes of a figure to the theme's colours; returns the figure."""
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from matplotlib.text import Text

    figure.set_facecolor(theme.paper)
    for artist in list(_artists(figure)):
        if isinstance(artist, SubFigure):
            artist.set_facecolor(theme.paper)
        elif isinstance(artist, Text):
            artist.set_color(theme.ink)
        elif isinstance(artist, Axes):  # also those of a colour bar within others
            _theme_axes(artist, theme)
    return figure


def _theme_axes(axes: "Axes", theme: Theme) -> None:
    """Set the colours of axes, ticks and legend."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(which="both", colors=theme.ink, color=theme.faint)
    axes.tick_params(labelsize=8)
    for spine in axes.spines.values():
        spine.set_edgecolor(theme.faint)
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set(facecolor=theme.paper, edgecolor="none", alpha=0.7)


def _artists(artist: "Artist") -> Iterator["Artist"]:
    """An artist and all artists within it, except the ticks of axes: matplotlib creates these on access, which
    takes a fifth of the time of a figure with many panels."""
    from matplotlib.axis import Axis

    yield artist
    if isinstance(artist, Axis):
        yield artist.label
        yield artist.offsetText
        return
    for child in artist.get_children():
        yield from _artists(child)


def write_figure(figure: "Figure", path: Path | str) -> Path:
    """Write a figure as PNG or SVG, by the suffix of its path, and return the path.

    Creates missing folders. Raises OSError, and VitkitError for another suffix and for an existing file that
    vitkit did not write.
    """
    from matplotlib import rc_context

    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise BadSettings(
            f"{path} is to be a figure; its name must end in .{' or .'.join(FORMATS)}"
        )
    # Without the date, and with identifiers that are not random, so that equal figures are equal files
    metadata: dict[str, str | None] = {"Comment": MARK}
    if kind == "svg":
        metadata = {"Description": MARK, "Date": None}
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": MARK}):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    write_where_said(path, buffer.getvalue())
    return path


# Curves


@dataclass(frozen=True)
class Curve:
    """A line through points, optionally with an interval around each."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lower ends of the intervals; empty for none."""
    high: Sequence[float] = ()
    """Upper ends of the intervals."""
    dashed: bool = False
    """Whether the line is a reference, grey and without points."""


@dataclass(frozen=True)
class Panel:
    """One plot among several: curves that share their axes."""

    title: str
    axis: str
    """Label of the vertical axis, with its unit."""
    curves: Mapping[str, Curve]
    """Curves by name; "" leaves a curve out of the legend."""
    x: str = "step"
    """Label of the horizontal axis."""
    limits: tuple[float, float] | None = None
    """Limits of both axes; None fits the curves."""
    upwards: tuple[float, float] | None = None
    """Limits of the vertical axis, so that panels can be compared; None fits the curves."""


def plot(panels: Sequence[Panel], columns: int = 3) -> "Figure":
    """Panels side by side, at most `columns` in a row."""
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns, 3 * rows), layout="constrained")
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, axes in zip(panels, cells, strict=False):
        for name, curve in panel.curves.items():
            _draw_curve(axes, name, curve)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.axis)
        if panel.limits:
            axes.set(xlim=panel.limits, ylim=panel.limits)
        if panel.upwards:
            axes.set(ylim=panel.upwards)
        axes.spines[["top", "right"]].set_visible(False)
        if any(panel.curves):  # if any name is not empty
            axes.legend(fontsize=8, framealpha=0.7, edgecolor="none")
    for axes in cells[len(panels) :]:  # empty cells of the last row
        axes.axis("off")
    return figure


def _draw_curve(axes: "Axes", name: str, curve: Curve) -> None:
    """A line, with dots if there are few points, and a band for its intervals."""
    if curve.dashed:
        axes.plot(curve.x, curve.y, "--", label=name or None, color="#8c959f", linewidth=1)
        return
    style = "-"
    if len(curve.x) <= 30:
        style = "o-"
    (line,) = axes.plot(curve.x, curve.y, style, label=name or None, markersize=4)
    if len(curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.15, lw=0)


# Parts of figures


def panels(*widths: float, height: float) -> tuple["Figure", list["Axes"]]:
    """A figure of panels side by side, with these widths in inches. Each panel is a subfigure, so a page can
    show them separately, below each other if there is no room."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    subfigures = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    return figure, [subfigure.subplots() for subfigure in subfigures]


def dots_by_depth(axes: "Axes", values: Tensor, layers: Sequence[str], theme: Theme) -> None:
    """A dot for each head of each layer, (L, H), and a line through the layers' means."""
    positions = np.arange(len(layers))
    across = positions.repeat(values.shape[1])
    axes.plot(
        across, values.flatten(), "o", markersize=4, alpha=0.6, color=theme.first, label="one head"
    )
    axes.plot(positions, values.mean(1), color=theme.second, label="mean of the heads")
    name_layers(axes, layers)


def name_layers(axes: "Axes", layers: Sequence[str]) -> None:
    """Name about twelve of the layers below the axis; names that are words are rotated."""
    axes.spines[["top", "right"]].set_visible(False)
    names = [name.removeprefix("layer ") for name in layers]
    step = -(-len(layers) // 12)
    axes.set_xticks(np.arange(len(layers))[::step], names[::step])
    if not all(name.isdigit() for name in names):
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("layer")


def draw_numbers(
    axes: "Axes", picture: np.ndarray, limits: tuple[float, float], theme: Theme
) -> "AxesImage":
    """Draw a picture of numbers between limits, (h, w), in the theme's colours; NaN are not drawn."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    low, high = limits
    return axes.imshow(picture, cmap=theme.maps, vmin=low, vmax=high, interpolation="nearest")


def mosaic(tiles: np.ndarray) -> np.ndarray:
    """Arrange tiles, (rows, columns, h, w) or (rows, columns, h, w, C), to one picture, with gaps of NaN a
    tenth of a tile wide: float32."""
    rows, columns, h, w = tiles.shape[:4]
    gap = gap_between(h, w)
    size = (rows * (h + gap) - gap, columns * (w + gap) - gap)
    picture = np.full((*size, *tiles.shape[4:]), np.nan, np.float32)
    for row in range(rows):
        for column in range(columns):
            top = row * (h + gap)
            left = column * (w + gap)
            picture[top : top + h, left : left + w] = tiles[row, column]
    return picture


def in_rows(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Arrange tiles, (n, h, w) or (n, h, w, C), to a mosaic with at most `columns` in a row; the last row may
    end in empty cells, NaN."""
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    cells = np.full((rows * columns, *tiles.shape[1:]), np.nan, np.float32)
    cells[: len(tiles)] = tiles
    return mosaic(cells.reshape(rows, columns, *tiles.shape[1:]))


def gap_between(h: int, w: int) -> int:
    """The gap between two tiles of a mosaic, in pixels of a tile."""
    return max(1, round(max(h, w) / 10))


def number_tiles(axes: "Axes", grid: tuple[int, int]) -> None:
    """Number the rows and columns of a mosaic of h x w tiles of h x w, from 1; about seven of them."""
    gap = gap_between(*grid)
    for count, set_ticks in zip(grid, (axes.set_yticks, axes.set_xticks), strict=True):
        step = -(-count // 7)
        shown = np.arange(0, count, step)
        set_ticks(shown * (count + gap) + (count - 1) / 2, [str(i + 1) for i in shown])
    axes.tick_params(length=0)


def of_images(count: int) -> str:
    """The number of images as text: "mean of 8 images", or "one image"."""
    if count == 1:
        return "one image"
    return f"mean of {count:,} images"
