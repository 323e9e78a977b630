"""Light and dark figures, in colours that people with any sort of colour vision tell apart (Okabe
and Ito 2008; the maps viridis and cividis, whose lightness grows evenly)."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.system.storage.files import MARK, write_where_said

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
FORMATS = ("png", "svg")


@dataclass(frozen=True)
class Theme:
    """The colours of a figure."""

    paper: str
    """The ground."""
    ink: str
    """Titles, labels and numbers."""
    faint: str
    """Axes, and lines to compare with."""
    first: str
    """Dots, and the first of several curves."""
    second: str
    """A mean among dots, and the second of several curves."""
    maps: str = "viridis"
    """matplotlib's name for the colours of numbers in a map."""


LIGHT = Theme("#ffffff", "#1b1f24", "#8c959f", "#0072b2", "#d55e00")
DARK = Theme("#0d1117", "#e6edf3", "#6e7681", "#56b4e9", "#e69f00")
THEMES = {"light": LIGHT, "dark": DARK}


def themed(figure: "Figure", theme: Theme) -> "Figure":
    """The same figure, with its ground, texts and axes in the theme's colours."""
    from matplotlib.text import Text

    figure.set_facecolor(theme.paper)
    for text in figure.findobj(Text):
        text.set_color(theme.ink)
    for axes in figure.axes:
        _theme_axes(axes, theme)
    return figure


def _theme_axes(axes: "Axes", theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, color=theme.faint, labelsize=8)
    for spine in axes.spines.values():
        spine.set_edgecolor(theme.faint)
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set(facecolor=theme.paper, edgecolor="none", alpha=0.7)


def write_figure(figure: "Figure", path: Path | str) -> Path:
    """Write a figure as PNG or SVG, as the ending of its path says, and return the path.

    Makes the folders above it. Raises OSError, and ValueError for another ending and for a file that
    vitkit did not write.
    """
    from matplotlib import rc_context

    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"{path} is to be a figure; its name ends in .{' or .'.join(FORMATS)}")
    # Without the date, and with identifiers that are no random numbers: the same figure is the same
    # file
    metadata = {"Comment": MARK}
    if kind == "svg":
        metadata = {"Description": MARK, "Date": None}
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": MARK}):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    write_where_said(path, buffer.getvalue())
    return path
