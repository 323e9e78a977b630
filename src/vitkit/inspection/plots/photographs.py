"""What the arrays of this room say of photographs, drawn beside or over them: each function makes a
figure of matplotlib's; themes.py writes it.

Legend: B images, H W pixels of an image, (h, w) the grid of patches, S steps.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from vitkit.inspection.figures.occlusion import Occlusion
from vitkit.inspection.plots.figures import darkened, show_image
from vitkit.inspection.plots.panels import draw_numbers, panels
from vitkit.inspection.plots.themes import LIGHT, Theme, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 6  # pictures in a row
INCHES = 1.9  # width of a picture
LONGEST = 30  # characters below a picture


def draw_looked(
    images: np.ndarray, maps: Mapping[str, Tensor], theme: Theme = LIGHT, names: Sequence[str] = ()
) -> "Figure":
    """Fig. 6 and 14: photographs, uint8 (B, H, W, 3), each beside itself darkened by maps (B, h, w)
    that are not negative, by their titles. names: a line below each photograph."""
    figure, cells = _cells(images, tuple(maps), names)
    box = (0, 0, *images.shape[1:3])
    for i, image in enumerate(images):
        for axes, weights in zip(cells[i], maps.values(), strict=True):
            show_image(axes, darkened(image, weights[i].numpy(), box))
    return themed(figure, theme)


def clipped(maps: Tensor, share: float = 0.02) -> Tensor:
    """Maps, (B, h, w), in which the highest patches of each, so many of all, are drawn alike: a single
    one often has many times as much as the others, which would all be black."""
    limits = maps.flatten(1).quantile(1 - share, dim=1)  # (B,)
    return maps.minimum(limits[:, None, None])


def draw_similarity(
    images: np.ndarray,
    maps: Tensor,
    patch: tuple[int, int],
    theme: Theme = LIGHT,
    names: Sequence[str] = (),
) -> "Figure":
    """Photographs, uint8 (B, H, W, 3), each beside the cosines (B, h, w), from -1 to 1, of its patches
    with a chosen one, (row, column), which has a ring."""
    figure, cells = _cells(images, ("similarity to the ring",), names)
    for i in range(len(images)):
        axes = cells[i][0]
        image = draw_numbers(axes, maps[i].numpy(), (-1, 1), theme)
        axes.plot(patch[1], patch[0], "o", markersize=9, fillstyle="none", color="white")
        axes.set_aspect(_aspect(images, maps))
        axes.axis("off")
    figure.colorbar(image, ax=figure.axes, label="cosine similarity", shrink=0.6)
    return themed(figure, theme)


def draw_colours(
    images: np.ndarray, colours: Tensor, theme: Theme = LIGHT, names: Sequence[str] = ()
) -> "Figure":
    """Photographs, uint8 (B, H, W, 3), each beside its patches' principal components as red, green and
    blue, (B, h, w, 3) from 0 to 1."""
    figure, cells = _cells(images, ("three principal components",), names)
    for i in range(len(images)):
        axes = cells[i][0]
        axes.imshow(colours[i].numpy(), interpolation="nearest", aspect=_aspect(images, colours))
        axes.axis("off")
    return themed(figure, theme)


def draw_occlusion(occlusion: Occlusion, title: str = "", theme: Theme = LIGHT) -> "Figure":
    """How the answer goes as patches are covered, and as they are shown: in the order of a map, and
    at random, each the mean of the images with its area. title: which map."""
    figure, cells = panels(2)
    ways = {
        "covered, the highest first": (occlusion.deletion, occlusion.random_deletion),
        "shown, the highest first": (occlusion.insertion, occlusion.random_insertion),
    }
    corners = ("upper right", "lower right")  # where there are no curves
    for axes, (way, curves), corner in zip(cells, ways.items(), corners, strict=True):
        colours = (theme.first, theme.faint)
        for name, curve, colour in zip(("map", "random"), curves, colours, strict=True):
            area = float(occlusion.area(curve).mean())
            style = "o-"
            if name == "random":
                style = "--"
            axes.plot(
                100 * occlusion.shares, curve.mean(0), style, markersize=4, color=colour,
                label=f"{name}, area {area:.2f}",
            )  # fmt: skip
        axes.set(xlabel=f"patches {way} (%)", ylabel="the class's probability", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, loc=corner)
    count = len(occlusion.classes)
    gain = float(occlusion.gain.mean())
    figure.suptitle(
        f"Occlusion by {title or 'the map'}, {count:,} images: {gain:+.2f} against random",
        fontsize=11,
    )
    return themed(figure, theme)


def _cells(
    images: np.ndarray, titles: Sequence[str], names: Sequence[str]
) -> tuple["Figure", list[Sequence["Axes"]]]:
    """A figure with each photograph, and empty panels beside it: those, image by image. Several
    photographs are in a row if there is room."""
    from matplotlib.figure import Figure

    group = 1 + len(titles)  # panels of a photograph
    in_a_row = min(max(WIDEST // group, 1), len(images))
    rows = -(-len(images) // in_a_row)
    height = INCHES * images.shape[1] / images.shape[2] + 0.25
    size = (INCHES * group * in_a_row, height * rows + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, group * in_a_row, squeeze=False)
    cells = []
    for i, image in enumerate(images):
        row, column = divmod(i, in_a_row)
        photograph, *beside = grid[row, group * column : group * (column + 1)]
        show_image(photograph, image)
        if names:
            _write_below(photograph, names[i])
        if row == 0:
            photograph.set_title("input", fontsize=9)
            for axes, title in zip(beside, titles, strict=True):
                axes.set_title(title, fontsize=9)
        cells.append(beside)
    for axes in list(grid.flat)[group * len(images) :]:  # the rest of the last row
        axes.axis("off")
    return figure, cells


def _aspect(images: np.ndarray, maps: Tensor) -> float:
    """How high a number of a map (B, h, w, ...) is by its width, so that the map has the proportions of
    its image, (B, H, W, 3), whatever those of a patch are."""
    down = images.shape[1] / maps.shape[1]
    across = images.shape[2] / maps.shape[2]
    return down / across


def _write_below(axes: "Axes", text: str) -> None:
    """A line of text below a photograph."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    text = text.replace("$", r"\$")  # which would begin a formula
    place = axes.transAxes
    axes.text(0.5, -0.02, text, fontsize=7, ha="center", va="top", transform=place)
