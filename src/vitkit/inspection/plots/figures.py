"""Arrays to figures: curves in panels, rows of images, and maps over photographs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Images with shorter sides are enlarged without smoothing, so that their pixels are seen.
SMALL = 100
GAP = 8  # pixels between a photograph and its map


@dataclass(frozen=True)
class Curve:
    """A line through points, and an interval around each of them if there is one."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lower ends of the intervals; empty for none."""
    high: Sequence[float] = ()
    """Upper ends of the intervals."""
    dashed: bool = False
    """Whether it is a line to compare others with, grey and without points."""


@dataclass(frozen=True)
class Panel:
    """One plot among several: curves that share their axes."""

    title: str
    axis: str
    """What is drawn upwards, and its unit."""
    curves: Mapping[str, Curve]
    """By their names in the legend; a curve named "" is not in it."""
    x: str = "step"
    """What is drawn to the right."""
    limits: tuple[float, float] | None = None
    """Where both axes begin and end; None is where the curves do."""
    upwards: tuple[float, float] | None = None
    """Where the upward axis begins and ends, so that panels can be compared; None is where the curves
    do."""


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
        if any(panel.curves):  # any name that is not empty
            axes.legend(fontsize=8, framealpha=0.7, edgecolor="none")
    for axes in cells[len(panels) :]:  # the rest of the last row is empty
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


def image_rows(columns: Mapping[str, np.ndarray]) -> "Figure":
    """A table of images: columns by their names, N images uint8 (N, h, w, 3) each, in N rows."""
    from matplotlib.figure import Figure

    count = len(next(iter(columns.values())))
    size = (1.6 * len(columns), 1.6 * count + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count, len(columns), squeeze=False)
    for j, (name, images) in enumerate(columns.items()):
        grid[0, j].set_title(name, fontsize=9)
        for i, image in enumerate(images):
            show_image(grid[i, j], image)
    return figure


def show_image(axes: "Axes", image: np.ndarray) -> None:
    """Draw an image, uint8 (h, w, 3), without axes around it."""
    interpolation = "antialiased"
    if max(image.shape) < SMALL:
        interpolation = "nearest"
    axes.imshow(image, interpolation=interpolation)
    axes.axis("off")


def darkened(
    pixels: np.ndarray, weights: np.ndarray, box: tuple[float, float, float, float]
) -> np.ndarray:
    """A photograph that is dark where a map has little weight, as Fig. 6 has it: uint8 (H, W, 3).

    pixels: the photograph, uint8 (H, W, 3). weights: a map of the patches, (h, w), not negative.
    box: where in the photograph the patches lie, (top, left, height, width) in its pixels, as
    `Preprocessing.visible` says; around it all is dark.

    The map is enlarged smoothly and divided by its maximum, which keeps its pixels as they are.
    """
    # The map at the size of its box
    largest = max(float(weights.max()), np.finfo(np.float32).tiny)
    share = Image.fromarray((weights / largest).astype(np.float32))
    rows, columns = whole_pixels(box, pixels.shape[:2])
    size = (columns.stop - columns.start, rows.stop - rows.start)
    enlarged = np.asarray(share.resize(size, Image.Resampling.BILINEAR))

    # Channel by channel, as photographs are large and floating point numbers four times as large
    drawn = np.zeros_like(pixels)
    for channel in range(3):
        drawn[rows, columns, channel] = (pixels[rows, columns, channel] * enlarged).round()
    return drawn


def beside(pixels: np.ndarray, weights: np.ndarray, least: int) -> np.ndarray:
    """A photograph, and on its right the same, dark where a map has little weight: uint8
    (H, 2 W + GAP, 3).

    pixels: what the model got, uint8 (h, w, 3). weights: a map of its patches, not negative. least:
    photographs are enlarged until a side has about so many pixels, small ones without smoothing.
    """
    height, width = pixels.shape[:2]
    factor = max(1, round(least / min(height, width)))
    resample = Image.Resampling.BICUBIC
    if max(height, width) < SMALL:
        resample = Image.Resampling.NEAREST
    size = (width * factor, height * factor)
    photograph = np.asarray(Image.fromarray(pixels).resize(size, resample))
    looked = darkened(photograph, weights, (0, 0, *photograph.shape[:2]))
    gap = np.full((len(photograph), GAP, 3), 255, np.uint8)
    return np.concatenate([photograph, gap, looked], 1)


def whole_pixels(
    box: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[slice, slice]:
    """The rows and columns of an image of `size` (height, width) that a box (top, left, height,
    width) covers, at least one of each."""
    ranges = []
    for start, length, side in zip(box[:2], box[2:], size, strict=True):
        first = min(max(round(start), 0), side - 1)
        end = min(max(round(start + length), first + 1), side)
        ranges.append(slice(first, end))
    return ranges[0], ranges[1]
