"""Figures of photographs: contact sheets with captions, and photographs darkened by maps of attention.

Legend: B images, H W pixels of an image, (h, w) the grid of patches, (m, n) that of cells.
"""

import io
import math
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitkit.inspection.fonts import Line, drawable
from vitkit.inspection.plots import LIGHT, Theme, themed
from vitkit.models import Tiling
from vitkit.system.errors import BadData
from vitkit.system.storage.files import MARK, write_where_said

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Smaller images are enlarged without smoothing, so that their pixels are visible
SMALL = 100
GAP = 8  # pixels between a photograph and its map
LINE = 32  # pixels of a line of text below a picture
WIDEST = 6  # most pictures in a row
INCHES = 1.5  # width of a picture, and height of a contact sheet's cell without its text
POINTS = 8  # size of the letters below a picture
PADDING = 0.04  # inches around the picture of a cell
LETTERS = 0.25  # inches of the lines of text above and below a picture
MARGIN = 0.02  # share of a picture's width that is empty at its left and right


# A contact sheet


# Colours of captions: right, wrong, or neither
COLOURS = {True: "#1a7f37", False: "#c62828", None: "black"}


class Tile(NamedTuple):
    """A picture of a contact sheet."""

    pixels: np.ndarray
    """uint8 (h, w, 3)."""
    caption: str
    """Text below the picture."""
    right: bool | None = None
    """Whether the caption is right (green), wrong (red) or neither (black)."""
    note: str = ""
    """A second line, in black."""
    name: str = ""
    """Name of the photograph; on a page, a link to its file."""
    markable: bool = False
    """Whether the reader of a page may mark it, by its name."""


def contact_sheet(tiles: Sequence[Tile], path: Path | str, columns: int = 8) -> Path:
    """Draw tiles in rows of `columns` into a PNG file, and return its path.

    Creates missing folders. Raises VitkitError if there are no tiles, and for an existing file that vitkit
    did not write.
    """
    from matplotlib.figure import Figure

    if not tiles:
        raise BadData("no pictures to put on a contact sheet")
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    height = INCHES + LETTERS
    if any(tile.note for tile in tiles):
        height += LETTERS
    figure = Figure(figsize=(INCHES * columns, height * rows), dpi=120)
    # One pair of axes in inches: a pair for each picture takes most of the time of a large sheet
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.axis("off")
    sheet.set(xlim=(0, INCHES * columns), ylim=(height * rows, 0), autoscale_on=False)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        middle = INCHES * (column + 0.5)
        bottom = height * row + INCHES - PADDING
        # The longer side of a picture fills its cell
        down, across = tile.pixels.shape[:2]
        inches = (INCHES - 2 * PADDING) / max(down, across)
        left = middle - across * inches / 2
        extent = (left, left + across * inches, bottom, bottom - down * inches)
        interpolation = _interpolation(tile.pixels)
        sheet.imshow(tile.pixels, interpolation=interpolation, extent=extent, aspect="auto")
        lines = ((tile.caption, COLOURS[tile.right]), (tile.note, "black"))
        for j, (text, colour) in enumerate(lines):  # centred below the picture
            line = _below(text)
            sheet.annotate(
                line.text,
                xy=(middle, bottom),
                xytext=(0, -4 - 11 * j),
                textcoords="offset points",
                ha="center",
                va="top",
                font=line.font,
                fontsize=POINTS,
                color=colour,
            )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Comment": MARK})
    path = Path(path)
    write_where_said(path, buffer.getvalue())
    return path


def _below(text: str) -> Line:
    """As much of a text as fits below a picture, escaped so that matplotlib draws it literally."""
    fitting = _fitting(text, 72 * (INCHES - PADDING) / POINTS)
    return fitting._replace(text=fitting.text.replace("$", r"\$"))  # "$" would begin a formula


def _fitting(caption: str, width: float, size: int = 100) -> Line:
    """Shorten a text to a width in units of its letters' size. size: of the letters in pixels, as which they are
    measured."""
    text, file = drawable(caption)
    font = ImageFont.truetype(file, size)
    kept = text
    while kept and font.getlength(text) > width * size:
        kept = kept[:-1]
        text = f"{kept}..."
    return Line(text, file)


# Rows of images


def image_rows(columns: Mapping[str, np.ndarray]) -> "Figure":
    """A table of images: each column has a name and N images, uint8 (N, h, w, 3)."""
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
    """Draw an image, uint8 (h, w, 3), without axes."""
    axes.imshow(image, interpolation=_interpolation(image))
    axes.axis("off")


def _interpolation(image: np.ndarray) -> str:
    """How matplotlib enlarges an image, uint8 (h, w, 3)."""
    if max(image.shape) < SMALL:
        return "nearest"
    return "antialiased"


# Maps over photographs


def draw_looked(
    images: np.ndarray, maps: Mapping[str, Tensor], theme: Theme = LIGHT, names: Sequence[str] = ()
) -> "Figure":
    """Fig. 6 and 14: photographs, uint8 (B, H, W, 3), each beside copies that are darkened by non-negative
    maps (B, h, w), by title. names: text below each photograph."""
    figure, cells = cells_beside(images, tuple(maps), names)
    box = (0, 0, *images.shape[1:3])
    for i, image in enumerate(images):
        for axes, weights in zip(cells[i], maps.values(), strict=True):
            show_image(axes, darkened(image, weights[i].numpy(), box))
    return themed(figure, theme)


def darkened(
    pixels: np.ndarray, weights: np.ndarray, box: tuple[float, float, float, float]
) -> np.ndarray:
    """A photograph that is dark where a map has low values, as in Fig. 6: uint8 (H, W, 3).

    pixels: the photograph, uint8 (H, W, 3).
    weights: a map of the patches, (h, w), not negative.
    box: position of the patches in the photograph, (top, left, height, width) in its pixels
        (`Preprocessing.visible`); the rest is dark.

    The map is enlarged smoothly and divided by its maximum, whose pixels are unchanged.
    """
    # The map, enlarged to the size of its box
    largest = max(float(weights.max()), np.finfo(np.float32).tiny)
    share = Image.fromarray((weights / largest).astype(np.float32))
    rows, columns = whole_pixels(box, pixels.shape[:2])
    size = (columns.stop - columns.start, rows.stop - rows.start)
    enlarged = np.asarray(share.resize(size, Image.Resampling.BILINEAR))

    # Channel by channel, because a float copy of a large photograph takes four times its memory
    drawn = np.zeros_like(pixels)
    for channel in range(3):
        drawn[rows, columns, channel] = (pixels[rows, columns, channel] * enlarged).round()
    return drawn


def photograph_and_map(pixels: np.ndarray, weights: np.ndarray, least: int) -> np.ndarray:
    """A photograph, and on its right a copy that is dark where a map has low values: uint8
    (H, 2 W + GAP, 3).

    pixels: the prepared image, uint8 (h, w, 3).
    weights: a map of its patches, not negative.
    least: photographs are enlarged until the shorter side has about this number of pixels, small ones
        without smoothing.
    """
    photograph = enlarged(pixels, least)
    looked = darkened(photograph, weights, (0, 0, *photograph.shape[:2]))
    gap = np.full((len(photograph), GAP, 3), 255, np.uint8)
    return np.concatenate([photograph, gap, looked], 1)


def enlarged(pixels: np.ndarray, least: int) -> np.ndarray:
    """A photograph, uint8 (h, w, 3), enlarged until a side has about `least` pixels, a small one without
    smoothing: uint8 (H, W, 3)."""
    height, width = pixels.shape[:2]
    factor = max(1, round(least / min(height, width)))
    resample = Image.Resampling.BICUBIC
    if max(height, width) < SMALL:
        resample = Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(pixels).resize((width * factor, height * factor), resample))


def captioned(pixels: np.ndarray, caption: str) -> np.ndarray:
    """A picture with a line of text below it, black on white: uint8 (H, W, 3) -> (H + LINE, W, 3)."""
    height, width = pixels.shape[:2]
    page = Image.new("RGB", (width, height + LINE), "white")
    page.paste(Image.fromarray(pixels), (0, 0))
    text, file = _fitting(caption, (width - 2 * GAP) / (LINE // 2), LINE // 2)
    font = ImageFont.truetype(file, LINE // 2)
    draw = ImageDraw.Draw(page)
    draw.text((GAP, height + LINE // 2), text, "black", font, anchor="lm")
    return np.asarray(page)


def whole_pixels(
    box: tuple[float, float, float, float], size: tuple[int, int]
) -> tuple[slice, slice]:
    """The rows and columns of an image of `size` (height, width) that a box (top, left, height, width)
    covers, at least one each."""
    ranges = []
    for start, length, side in zip(box[:2], box[2:], size, strict=True):
        first = min(max(round(start), 0), side - 1)
        end = min(max(round(start + length), first + 1), side)
        ranges.append(slice(first, end))
    return ranges[0], ranges[1]


def clipped(maps: Tensor, share: float = 0.02) -> Tensor:
    """Clip each map (B, h, w) at its highest values, a share of the patches: often a single value is many
    times larger than the others, which would all be black."""
    limits = maps.flatten(1).quantile(1 - share, dim=1)  # (B,)
    return maps.minimum(limits[:, None, None])


def over_image(maps: Tensor, tiling: Tiling) -> Tensor:
    """Convert maps of patches (B, h, w) to maps of cells (B, m, n): the mean of the patches that contain a
    cell. Cells have equal sizes and cover the image; without overlap they are the patches."""
    if not tiling.overlaps:
        return maps
    down = membership(maps.shape[1], tiling.size[0], tiling.stride[0]).to(maps)  # (m, h)
    across = membership(maps.shape[2], tiling.size[1], tiling.stride[1]).to(maps)  # (n, w)
    return down @ maps @ across.T


def membership(count: int, size: int, stride: int) -> Tensor:
    """The weight of each patch along one side in a cell's mean: float32 (cells, count); rows sum to 1."""
    cell = gcd(size, stride)  # pixels
    first = torch.arange(count) * (stride // cell)  # first cell of each patch
    number = torch.arange((size + (count - 1) * stride) // cell)[:, None]
    inside = (number >= first) & (number < first + size // cell)
    return inside / inside.sum(1, keepdim=True)


def cells_beside(
    images: np.ndarray, titles: Sequence[str], names: Sequence[str]
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with each photograph and empty axes beside it; returns these axes, image by image. Several
    photographs are in a row if there is room.

    A photograph and its axes are a subfigure, and each of its pictures a subfigure within: a page shows
    them separately, as many in a row as there is room for.
    """
    from matplotlib.figure import Figure

    group = 1 + len(titles)  # pictures for a photograph
    in_a_row = min(max(WIDEST // group, 1), len(images))
    rows = -(-len(images) // in_a_row)
    picture = INCHES * (1 - 2 * MARGIN) * images.shape[1] / images.shape[2]
    height = picture + 2 * LETTERS
    box = (MARGIN, LETTERS / height, 1 - 2 * MARGIN, picture / height)

    figure = Figure(figsize=(INCHES * group * in_a_row, height * rows))
    groups = figure.subfigures(rows, in_a_row, squeeze=False).flat
    cells = []
    for i, image in enumerate(images):
        photograph, *beside = [
            subfigure.add_axes(box)
            for subfigure in groups[i].subfigures(1, group, squeeze=False)[0]
        ]
        show_image(photograph, image)
        photograph.set_title("input", fontsize=9)
        if names:
            name = _below(names[i])
            photograph.text(
                0.5,
                -0.03,
                name.text,
                font=name.font,
                fontsize=POINTS,
                ha="center",
                va="top",
                transform=photograph.transAxes,
            )
        for axes, title in zip(beside, titles, strict=True):
            axes.set_title(title, fontsize=9)
        cells.append(beside)
    return figure, cells


def aspect(images: np.ndarray, maps: Tensor) -> float:
    """The ratio of height to width of a map's cells, so that the map (B, h, w, ...) has the aspect ratio of
    its image, (B, H, W, 3)."""
    down = images.shape[1] / maps.shape[1]
    across = images.shape[2] / maps.shape[2]
    return down / across
