"""A contact sheet: many small pictures with a line of text under each, as one PNG."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


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
    for place, axes in enumerate(np.ravel(figure.subplots(rows, columns, squeeze=False))):
        axes.axis("off")
        if place < len(tiles):
            tile = tiles[place]
            axes.imshow(
                tile.pixels,
                interpolation="nearest" if max(tile.pixels.shape) < 64 else "antialiased",
            )
            colour = {True: "#1a7f37", False: "#c62828", None: "black"}[tile.right]
            caption = tile.caption.replace("$", r"\$")
            axes.text(
                0.5,
                -0.04,
                caption,
                ha="center",
                va="top",
                fontsize=8,
                color=colour,
                transform=axes.transAxes,
            )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
