"""Draws docs/models.png, how a model is put together: `python docs/draw_models.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, FAINT = "#20303f", "#5b6b7a"
COLUMNS = [  # title, its settings, their values from the paper's default down, colour
    (
        "Stem",
        "stem, patch",
        ["patches of the image", "ResNet (hybrid), then\npatches of its map"],
        "#dbe9f6",
    ),
    (
        "Positions",
        "positions, inject",
        ["learned, 1-D", "learned, x and y", "relative, rotary", "sines and cosines", "none"],
        "#e3f1df",
    ),
    (
        "Blocks",
        "mixer, depth, width",
        ["all tokens", "axial: a token's row,\nthen its column"],
        "#fdeccf",
    ),
    (
        "Pooling",
        "pool",
        [
            "class token",
            "mean of the patches",
            "attention (MAP)",
            "first patch",
            "none: every token",
        ],
        "#f7dede",
    ),
]
WIDTH, GAP, LINE = 2.7, 0.5, 0.34


def draw(path: Path) -> None:
    """Four columns of boxes with arrows between them, and where positions enter below."""
    figure, axes = plt.subplots(figsize=(12.6, 4.0), dpi=110)
    axes.set(xlim=(-1.0, 13.6), ylim=(-1.05, 3.45))
    axes.axis("off")
    axes.text(-0.95, 1.75, "images", color=INK, fontsize=11, va="center")
    left = 0.35
    for title, setting, values, colour in COLUMNS:
        box = FancyBboxPatch(
            (left, 0.2),
            WIDTH,
            3.0,
            boxstyle="round,pad=0,rounding_size=0.12",
            fc=colour,
            ec=INK,
            lw=1,
        )
        axes.add_patch(box)
        axes.text(
            left + WIDTH / 2,
            2.9,
            title,
            ha="center",
            va="center",
            fontsize=13,
            weight="bold",
            color=INK,
        )
        axes.text(
            left + WIDTH / 2,
            2.57,
            setting,
            ha="center",
            va="center",
            fontsize=9,
            family="monospace",
            color=FAINT,
        )
        top = 2.2
        for i, value in enumerate(values):
            lines = value.count("\n") + 1
            weight = "bold" if i == 0 else "normal"
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
            top -= LINE * lines + 0.06
        arrow(axes, (left - GAP + 0.05 if left > 1 else 0.0, 1.75), (left - 0.05, 1.75))
        left += WIDTH + GAP
    arrow(axes, (left - GAP + 0.05, 1.75), (left - 0.12, 1.75))
    axes.text(left - 0.08, 1.75, "head", color=INK, fontsize=11, va="center")
    start, end = 0.35 + 1.5 * WIDTH + GAP, 0.35 + 2.5 * WIDTH + 2 * GAP
    below = {"arrowstyle": "-|>", "mutation_scale": 13, "color": FAINT, "lw": 1, "ls": "--"}
    axes.add_patch(
        FancyArrowPatch((start, 0.18), (end, 0.18), connectionstyle="arc3,rad=0.25", **below)
    )
    note = "or into every block: a table of its own, or one for all"
    axes.text((start + end) / 2, -0.55, note, ha="center", fontsize=9.5, color=FAINT)
    figure.savefig(path, bbox_inches="tight", facecolor="white")


def arrow(axes: plt.Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """One step of the forward pass."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=INK, lw=1.2)
    )


if __name__ == "__main__":
    draw(Path(__file__).with_name("models.png"))
