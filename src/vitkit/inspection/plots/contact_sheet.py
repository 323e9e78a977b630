"""A contact sheet: many small pictures with a line of text under each, as one PNG."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitkit.inspection.plots.figures import show_image
from vitkit.system.storage.files import MARK, write_where_said

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 28  # characters that are as wide as a picture
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
    note: str = ""
    """A second line, which is neither."""


def contact_sheet(tiles: Sequence[Tile], path: Path | str, columns: int = 8) -> Path:
    """Draw the tiles in rows of `columns` into a PNG file, and return its path.

    Makes the folders above it. Raises ValueError if there are no tiles, and for a file that vitkit
    did not write.
    """
    from matplotlib.figure import Figure

    if not tiles:
        raise ValueError("no pictures to put on a contact sheet")
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    height = 1.75
    if any(tile.note for tile in tiles):
        height = 2.0
    figure = Figure(figsize=(1.5 * columns, height * rows), dpi=120, layout="constrained")
    cells = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for axes in cells:
        axes.axis("off")
    for axes, tile in zip(cells, tiles, strict=False):  # the last row may have empty cells
        _draw_tile(axes, tile)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Comment": MARK})
    path = Path(path)
    write_where_said(path, buffer.getvalue())
    return path


def _draw_tile(axes: "Axes", tile: Tile) -> None:
    """A picture, with its lines below."""
    show_image(axes, tile.pixels)
    _write(axes, tile.caption, COLOURS[tile.right], line=0)
    _write(axes, tile.note, "black", line=1)


def _write(axes: "Axes", text: str, colour: str, line: int) -> None:
    """A line of text in the middle below the picture, at most LONGEST characters of it."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    axes.annotate(
        text.replace("$", r"\$"),  # which would begin a formula
        xy=(0.5, 0),
        xycoords="axes fraction",
        xytext=(0, -4 - 11 * line),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=8,
        color=colour,
    )
