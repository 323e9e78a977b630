"""A contact sheet: many small pictures with a line of text under each, as one PNG."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitkit.inspection.figures import show_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of a caption: right, wrong, or neither
COLOURS = {True: "#1a7f37", False: "#c62828", None: "black"}


class Tile(NamedTuple):
    """One picture of the sheet."""

    pixels: np.ndarray
    """uint8 (h, w, 3)."""
    caption: str
    """The line of text under it."""
    right: bool | None = None
    """Whether that is right (drawn in green), wrong (in red) or neither (in black)."""


def contact_sheet(tiles: Sequence[Tile], path: Path | str, columns: int = 8) -> Path:
    """Draw the tiles in rows of `columns` into a PNG file, and return its path.

    Makes the folders above it. Raises ValueError if there are no tiles.
    """
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
        _draw_tile(axes, tile)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw_tile(axes: "Axes", tile: Tile) -> None:
    """A picture, with its caption below."""
    show_image(axes, tile.pixels)
    axes.text(
        0.5,
        -0.04,
        tile.caption.replace("$", r"\$"),  # which would begin a formula
        ha="center",
        va="top",
        fontsize=8,
        color=COLOURS[tile.right],
        transform=axes.transAxes,
    )
