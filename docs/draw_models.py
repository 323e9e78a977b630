"""Draws the pictures of docs/models.md: `python docs/draw_models.py`.

models.png is how a model is put together: it has a column for each part of a Vision Transformer, with
the values that it may take. The others are what `vitkit show --draw` makes of two models.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from vitkit.inspection import write_architecture
from vitkit.models import named

INK = "#20303f"
FAINT = "#5b6b7a"
WIDTH = 2.7  # of a column
GAP = 0.5  # between two columns
LEFT = 0.35  # edge of the first column
LINE = 0.34  # height of a line of text
MIDDLE = 1.75  # height of the arrows


class Column(NamedTuple):
    """A part of a model."""

    title: str
    settings: str
    """The fields of ViTConfig that choose it."""
    values: tuple[str, ...]
    """From the paper's default down."""
    colour: str


COLUMNS = (
    Column(
        "Stem",
        "stem, patch",
        ("patches of the image", "ResNet (hybrid), then\npatches of its map"),
        "#dbe9f6",
    ),
    Column(
        "Positions",
        "positions, inject",
        ("learned, 1-D", "learned, x and y", "relative, rotary", "sines and cosines", "none"),
        "#e3f1df",
    ),
    Column(
        "Blocks",
        "mixer, depth, width",
        ("all tokens", "axial: a token's row,\nthen its column"),
        "#fdeccf",
    ),
    Column(
        "Pooling",
        "pool",
        (
            "class token",
            "mean of the patches",
            "attention (MAP)",
            "first patch",
            "none: every token",
        ),
        "#f7dede",
    ),
)


def draw(path: Path) -> None:
    """Write the picture: images, an arrow to each column, and the head."""
    figure, axes = plt.subplots(figsize=(12.6, 4.0), dpi=110)
    axes.set(xlim=(-1.0, 13.6), ylim=(-1.05, 3.45))
    axes.axis("off")
    axes.text(-0.95, MIDDLE, "images", color=INK, fontsize=11, va="center")
    begin = 0.0
    for number, column in enumerate(COLUMNS):
        left = left_of(number)
        draw_arrow(axes, begin, left - 0.05)
        draw_column(axes, left, column)
        begin = left + WIDTH + 0.05
    draw_arrow(axes, begin, begin + 0.33)
    axes.text(begin + 0.37, MIDDLE, "head", color=INK, fontsize=11, va="center")
    draw_positions_in_blocks(axes)
    figure.savefig(path, bbox_inches="tight", facecolor="white")


def left_of(number: int) -> float:
    """The left edge of a column."""
    return LEFT + number * (WIDTH + GAP)


def draw_column(axes: plt.Axes, left: float, column: Column) -> None:
    """A box with a title, settings, and values, the first of them in bold."""
    axes.add_patch(
        FancyBboxPatch(
            (left, 0.2),
            WIDTH,
            3.0,
            boxstyle="round,pad=0,rounding_size=0.12",
            fc=column.colour,
            ec=INK,
            lw=1,
        )
    )
    centred = {"ha": "center", "va": "center"}
    centre = left + WIDTH / 2
    axes.text(centre, 2.9, column.title, fontsize=13, weight="bold", color=INK, **centred)
    axes.text(centre, 2.57, column.settings, fontsize=9, family="monospace", color=FAINT, **centred)
    top = 2.2
    weight = "bold"
    for value in column.values:
        axes.text(
            left + 0.15,
            top,
            value,
            va="top",
            fontsize=10,
            color=INK,
            weight=weight,
            linespacing=1.15,
        )
        top -= LINE * (value.count("\n") + 1) + 0.06
        weight = "normal"


def draw_arrow(axes: plt.Axes, begin: float, end: float) -> None:
    """One step of the forward pass."""
    axes.add_patch(
        FancyArrowPatch(
            (begin, MIDDLE),
            (end, MIDDLE),
            arrowstyle="-|>",
            mutation_scale=13,
            color=INK,
            lw=1.2,
        )
    )


def draw_positions_in_blocks(axes: plt.Axes) -> None:
    """A dashed arrow below, from Positions to Blocks: positions may also enter every block."""
    begin = left_of(1) + WIDTH / 2
    end = left_of(2) + WIDTH / 2
    axes.add_patch(
        FancyArrowPatch(
            (begin, 0.18),
            (end, 0.18),
            connectionstyle="arc3,rad=0.25",
            arrowstyle="-|>",
            mutation_scale=13,
            color=FAINT,
            lw=1,
            ls="--",
        )
    )
    note = "or into every block: a table of its own, or one for all"
    axes.text((begin + end) / 2, -0.55, note, ha="center", fontsize=9.5, color=FAINT)


if __name__ == "__main__":
    docs = Path(__file__).parent
    draw(docs / "models.png")
    write_architecture(docs / "architecture.svg", named("B/16"))
    write_architecture(docs / "architecture-hybrid.svg", named("R50+B/16"))
