"""A contact sheet: many small pictures with a line of text under each, as one PNG."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

COLOURS = {True: "#1a7f37", False: "#c62828", None: "black"}


class Tile(NamedTuple):
    """One picture: pixels uint8 (h, w, 3), its caption, and whether that is right (green), wrong (red) or neither."""

    pixels: np.ndarray
    caption: str
    right: bool | None = None


def contact_sheet(tiles: Sequence[Tile], path: Path | str, columns: int = 8) -> Path:
    """Draw the tiles in rows into a PNG file and return its path. Raises ValueError when there are none."""
    from matplotlib.figure import Figure

    if not tiles:
        raise ValueError("no pictures to put on a contact sheet")
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    figure = Figure(figsize=(1.5 * columns, 1.75 * rows), dpi=120, layout="constrained")
    cells = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for axes in cells:
        axes.axis("off")
    for axes, tile in zip(cells, tiles, strict=False):  # the last row may have empty cells
        _draw(axes, tile)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw(axes, tile: Tile) -> None:
    """A picture, with its caption below."""
    small = max(tile.pixels.shape) < 64
    interpolation = "nearest" if small else "antialiased"
    axes.imshow(tile.pixels, interpolation=interpolation)
    axes.text(
        0.5,
        -0.04,
        tile.caption.replace("$", r"\$"),  # no mathematics
        ha="center",
        va="top",
        fontsize=8,
        color=COLOURS[tile.right],
        transform=axes.transAxes,
    )
