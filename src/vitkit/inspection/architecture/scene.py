"""A drawing of boxes, texts and lines, and its conversion to SVG and PNG.

A unit is a pixel of a telephone's screen, so text of size 11 is legible there. x points to the right and
y downwards, as in SVG.
"""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from vitkit.system.storage.files import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

SMALL = 11.0  # size of text
LARGE = 13.0
DPI = 216  # of a PNG file, with 72 units to an inch
DISPLAYED = 1.5  # pixels to a unit, if there is room

# Colours of boxes, text and lines, on white and on black. Those of boxes are from Figure 1
COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1b1f24", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "line": ("#59636e", "#9198a1"),
    "panel": ("#f2f4f6", "#1a212a"),
    "image": ("#dde7f0", "#2c3a48"),
    "backbone": ("#e4e1f5", "#353056"),
    "projection": ("#fadbe6", "#5a2c42"),
    "position": ("#e5d3ef", "#4b3261"),
    "norm": ("#f6efc7", "#4c4620"),
    "attention": ("#d9ecd3", "#27492a"),
    "mlp": ("#cfe4f2", "#1f4460"),
    "pool": ("#f9e3cb", "#57401f"),
    "head": ("#fbd5bd", "#633a1e"),
}


@dataclass(frozen=True)
class Box:
    """A rectangle; `corner` is the radius of its corners."""

    left: float
    top: float
    width: float
    height: float
    colour: str
    corner: float = 5.0


@dataclass(frozen=True)
class Text:
    """A line of text. (x, y) is the point of its vertical centre that `anchor` selects."""

    x: float
    y: float
    text: str
    size: float = SMALL
    anchor: Anchor = "middle"
    bold: bool = False
    colour: str = "ink"


@dataclass(frozen=True)
class Polyline:
    """A line through points, optionally with an arrow head at its end, or dashed."""

    points: tuple[Point, ...]
    arrow: bool = True
    dashed: bool = False


@dataclass
class Scene:
    """The shapes of a drawing, in the order in which they are drawn."""

    width: float
    title: str
    shapes: list[Box | Text | Polyline] = field(default_factory=list)

    def box(
        self, left: float, top: float, width: float, colour: str, lines: Sequence[str]
    ) -> float:
        """Draw a box that fits its lines of text, the first of them bold; returns its bottom."""
        height = box_height(lines)
        self.shapes.append(Box(left, top, width, height, colour))
        self.lines(left + width / 2, top + 5, lines, "middle")
        return top + height

    def lines(self, x: float, top: float, lines: Sequence[str], anchor: Anchor = "start") -> float:
        """Write lines of text below each other, the first of them bold; returns their bottom."""
        for i, line in enumerate(lines):
            y = top + (i + 0.5) * LINE
            self.shapes.append(Text(x, y, line, anchor=anchor, bold=i == 0))
        return top + LINE * len(lines)

    def arrow(self, *points: Point, dashed: bool = False, head: bool = True) -> None:
        """Draw a line through points, with an arrow head if `head`."""
        self.shapes.append(Polyline(points, head, dashed))

    def extent(self) -> tuple[float, float]:
        """The smallest and the largest y of all shapes."""
        heights = []
        for shape in self.shapes:
            if isinstance(shape, Box):
                heights += [shape.top, shape.top + shape.height]
            elif isinstance(shape, Text):
                heights += [shape.y - shape.size / 2, shape.y + shape.size / 2]
            else:
                heights += [y for _, y in shape.points]
        return min(heights), max(heights)


LINE = 15.0  # distance between lines of text


def box_height(lines: Sequence[str]) -> float:
    """The height of a box with this many lines of text."""
    return LINE * len(lines) + 10


# SVG


def svg(scene: Scene) -> str:
    """The drawing as SVG, with text as text. It follows the light or dark theme of the reader's system."""
    top, bottom = scene.extent()
    top -= 10
    height = bottom + 10 - top
    drawn = [_svg_shape(shape) for shape in scene.shapes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="architecture" role="img" '
        f'viewBox="0 {top:g} {scene.width:g} {height:g}" '
        f'width="{scene.width * DISPLAYED:g}" height="{height * DISPLAYED:g}">\n'
        f"<!-- {MARK} -->\n<title>{html.escape(scene.title)}</title>\n<style>\n{_css()}</style>\n"
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path class="head-of-arrow" d="M0 0 8 4 0 8z"/></marker>'
        f'</defs>\n<rect class="paper ground" x="0" y="{top:g}" width="{scene.width:g}" '
        f'height="{height:g}" rx="8"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _css() -> str:
    """The colours as CSS rules for a light and a dark theme."""
    light: list[str] = []
    dark: list[str] = []
    for name, (on_white, on_black) in COLOURS.items():
        for rules, colour in ((light, on_white), (dark, on_black)):
            rules.append(f".architecture .{name} {{ fill: {colour} }}")
    for rules, colour in zip((light, dark), COLOURS["line"], strict=True):
        rules.append(f".architecture .line {{ fill: none; stroke: {colour} }}")
        rules.append(f".architecture .head-of-arrow {{ fill: {colour} }}")
        rules.append(f".architecture rect {{ stroke: {colour}; stroke-width: .6 }}")
        rules.append(".architecture .ground, .architecture .panel { stroke: none }")
    return (
        ".architecture { max-width: 100%; height: auto }\n"
        ".architecture text { font-family: system-ui, 'DejaVu Sans', Arial, sans-serif }\n"
        + "\n".join(light)
        + "\n@media (prefers-color-scheme: dark) {\n"
        + "\n".join(dark)
        + "\n}\n"
    )


def _svg_shape(shape: Box | Text | Polyline) -> str:
    """A shape as an SVG element."""
    if isinstance(shape, Box):
        return (
            f'<rect class="{shape.colour}" x="{shape.left:g}" y="{shape.top:g}" '
            f'width="{shape.width:g}" height="{shape.height:g}" rx="{shape.corner:g}"/>'
        )
    if isinstance(shape, Text):
        weight = ""
        if shape.bold:
            weight = ' font-weight="600"'
        baseline = shape.y + 0.35 * shape.size  # some programs do not support dominant-baseline
        return (
            f'<text class="{shape.colour}" x="{shape.x:g}" y="{baseline:g}" '
            f'font-size="{shape.size:g}" text-anchor="{shape.anchor}"{weight}>'
            f"{html.escape(shape.text)}</text>"
        )
    points = " ".join(f"{x:g},{y:g}" for x, y in shape.points)
    more = ""
    if shape.arrow:
        more += ' marker-end="url(#head)"'
    if shape.dashed:
        more += ' stroke-dasharray="3 3"'
    return f'<polyline class="line" points="{points}"{more}/>'


# PNG

ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def png(scene: Scene) -> bytes:
    """The drawing as PNG, on white."""
    from matplotlib.figure import Figure

    top, bottom = scene.extent()
    top -= 10
    bottom += 10
    figure = Figure((scene.width / 72, (bottom - top) / 72), facecolor=_on_white("paper"))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, scene.width), ylim=(bottom, top))
    axes.axis("off")
    for shape in scene.shapes:
        _draw(axes, shape)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Comment": MARK})
    return buffer.getvalue()


def _on_white(colour: str) -> str:
    """The value of a colour on white."""
    on_white, _ = COLOURS[colour]
    return on_white


def _draw(axes: "Axes", shape: Box | Text | Polyline) -> None:
    """Draw a shape with matplotlib, whose points are the units of the drawing."""
    from matplotlib.patches import FancyBboxPatch

    line = _on_white("line")
    if isinstance(shape, Box):
        edge = line
        if shape.colour == "panel":
            edge = "none"
        axes.add_patch(
            FancyBboxPatch(
                (shape.left, shape.top),
                shape.width,
                shape.height,
                boxstyle=f"round,pad=0,rounding_size={shape.corner}",
                facecolor=_on_white(shape.colour),
                edgecolor=edge,
                linewidth=0.6,
            )
        )
    elif isinstance(shape, Text):
        axes.text(
            shape.x,
            shape.y,
            shape.text,
            fontsize=shape.size,
            color=_on_white(shape.colour),
            weight="bold" if shape.bold else "normal",
            horizontalalignment=ALIGNED[shape.anchor],
            verticalalignment="center_baseline",
        )
    else:
        style: str | tuple[int, tuple[int, int]] = "-"
        if shape.dashed:
            style = (0, (3, 3))
        x, y = zip(*shape.points, strict=True)
        axes.plot(x, y, color=line, linewidth=1, linestyle=style)
        if shape.arrow:
            axes.annotate(
                "",
                shape.points[-1],
                shape.points[-2],
                arrowprops={"arrowstyle": "-|>", "color": line, "linewidth": 0.1},
            )
