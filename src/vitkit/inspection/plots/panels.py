"""Parts of figures that several drawings share: mosaics, panels side by side, dots by depth.

Legend: L layers, H heads, (h, w) the grid of patches, C channels.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vitkit.inspection.plots.themes import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def mosaic(tiles: np.ndarray) -> np.ndarray:
    """Tiles in rows and columns, (rows, columns, h, w) or (rows, columns, h, w, C), as one picture
    with gaps of NaN a tenth of a tile wide: float32."""
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


def gap_between(h: int, w: int) -> int:
    """Between two tiles of a mosaic, in numbers of a tile."""
    return max(1, round(max(h, w) / 10))


def draw_numbers(
    axes: "Axes", picture: np.ndarray, limits: tuple[float, float], theme: Theme
) -> "AxesImage":
    """A picture of numbers between limits, (h, w), in the theme's colours; NaN are not drawn."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    low, high = limits
    return axes.imshow(picture, cmap=theme.maps, vmin=low, vmax=high, interpolation="nearest")


def number_tiles(axes: "Axes", grid: tuple[int, int]) -> None:
    """Number the rows and columns of a mosaic of h x w tiles of h x w, from 1; about seven of
    them."""
    gap = gap_between(*grid)
    for count, set_ticks in zip(grid, (axes.set_yticks, axes.set_xticks), strict=True):
        step = -(-count // 7)
        shown = np.arange(0, count, step)
        set_ticks(shown * (count + gap) + (count - 1) / 2, [str(i + 1) for i in shown])
    axes.tick_params(length=0)


def one_panel(size: tuple[float, float]) -> tuple["Figure", "Axes"]:
    """A figure of (width, height) inches with one panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def panels(count: int) -> tuple["Figure", Sequence["Axes"]]:
    """A figure of panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * count + 0.4, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


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
    """Name about twelve of the layers below the axis; whole words stand aslant."""
    axes.spines[["top", "right"]].set_visible(False)
    names = [name.removeprefix("layer ") for name in layers]
    step = -(-len(layers) // 12)
    axes.set_xticks(np.arange(len(layers))[::step], names[::step])
    if not all(name.isdigit() for name in names):
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("layer")


def of_images(count: int) -> str:
    """ "mean of 8 images", or "one image"."""
    if count == 1:
        return "one image"
    return f"mean of {count:,} images"
