"""Self-contained HTML pages: a single file, in which text from outside cannot become markup.

A page consists of blocks of HTML, which the functions here make. Other text is escaped when it is put into a
block.
"""

import base64
import hashlib
import html
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from PIL import Image

from vitkit.inspection.photographs import SMALL, Tile
from vitkit.inspection.plots import DARK, LIGHT, Theme
from vitkit.system.console.text import escaped, printable_name
from vitkit.system.storage.addresses import without_credentials
from vitkit.system.storage.files import MARK, as_utf8, write_where_said

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

    Panel = Figure | SubFigure

THUMBNAIL = 192  # pixels of a picture's longer side
QUALITY = 85  # of JPEGs
DPI = 144  # of a figure
CSS_PIXELS = 96  # of a page for an inch of a figure
MARGIN = 6  # empty pixels above and below the content of a figure


class Markup(str):
    """A part of a page that is already HTML, so it is not escaped again."""


def block(content: str) -> Markup:
    """Convert text to a block by escaping it; a block is unchanged. Control characters become visible
    escapes, and addresses lose user names, passwords and signatures."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(escaped(without_credentials(content))))


def tag(name: str, content: str, style: str = "") -> Markup:
    """An HTML element with this content; `style` is one of the classes of page.css."""
    attribute = ""
    if style:
        attribute = f" class={style}"
    return Markup(f"<{name}{attribute}>{block(content)}</{name}>")


def join(texts: Iterable[str]) -> Markup:
    """Concatenate blocks, and texts, which are escaped."""
    return Markup("".join(block(text) for text in texts))


def part(file: str) -> Markup:
    """The content of a file beside this one."""
    return Markup(Path(__file__).with_name(file).read_text("utf-8"))


def working_style() -> str:
    """The CSS that interactive pages share: colours, buttons, light and dark themes."""
    return part("working.css")


@dataclass(frozen=True)
class Active:
    """A script that makes a page interactive."""

    script: str
    """JavaScript. It may read `data` from the element with that id."""
    style: str
    """CSS of the page, in addition to page.css."""
    data: dict
    """Plain values."""


def marking(
    heading: str,
    file: str,
    following: str,
    images: Mapping[str, tuple[str, str]],
    classes: Sequence[str],
) -> Active:
    """The controls with which a reader marks photographs and saves the decisions as a list: to leave a
    photograph out, or to move it to another class.

    heading: first line of the list.
    file: name of the list.
    following: instruction on what to do with it.
    images: name of a photograph -> (its part of the data set, its class).
    """
    words = {"heading": heading, "file": file, "next": following}
    data = {**words, "images": dict(images), "classes": list(classes)}
    return Active(part("marking.js"), part("marking.css"), data)


def page(title: str, blocks: Iterable[Markup], active: Active | None = None) -> str:
    """A whole page with a title. It loads nothing, and runs no script but that of `active`."""
    allowed = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    # Light or dark like the reader's system; on a telephone, tables scroll and pictures are below each other
    style: str = part("page.css")
    body = [tag("h1", title), *blocks]
    if active is not None:
        digest = base64.b64encode(hashlib.sha256(active.script.encode()).digest()).decode()
        allowed += f"; script-src 'sha256-{digest}'"
        style += active.style
        # In a script element, "<" could begin the end tag; JSON has an escape for it
        data = json.dumps(active.data, allow_nan=False).replace("<", "\\u003c")
        body.append(Markup(f"<script type=application/json id=data>{data}</script>"))
        body.append(Markup(f"<script>{active.script}</script>"))
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv=Content-Security-Policy content="{allowed}">'
        f"{tag('title', title)}<style>\n{style}</style>"
    )
    return (
        f"<!doctype html><!-- {MARK} --><html lang=en><head>{head}</head>"
        f"<body>{join(body)}</body></html>"
    )


def write_page(
    path: Path, title: str, blocks: Iterable[Markup], active: Active | None = None
) -> Path:
    """Write a page, completely or not at all, and return its path. Raises OSError, and VitkitError for an
    existing file that vitkit did not write."""
    write_where_said(path, as_utf8(page(title, blocks, active)))
    return path


def section(title: str, *blocks: str) -> Markup:
    """Blocks under a heading."""
    return join([tag("h2", title), *blocks])


def paragraph(text: str, style: str = "") -> Markup:
    """A paragraph of text."""
    return tag("p", text, style)


def columns(*blocks: Markup) -> Markup:
    """Blocks side by side, as many as fit on the page."""
    return tag("div", join(tag("div", content) for content in blocks), "columns")


def folded(title: str, *blocks: str) -> Markup:
    """Blocks that are shown after a click on the title."""
    return tag("details", join([tag("summary", title), *blocks]))


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), wraps: bool = False) -> Markup:
    """A table; the first cell of each row is its heading. wraps: break lines in cells that contain
    sentences."""
    lines = []
    if header:
        lines.append(tag("tr", join(tag("th", cell) for cell in header)))
    for first, *others in rows:
        cells = join(tag("td", cell) for cell in others)
        lines.append(tag("tr", join([tag("th", first), cells])))
    style = "wraps" if wraps else ""
    return tag("div", tag("table", join(lines), style), "scrolls")


def pairs(values: Mapping[str, object]) -> Markup:
    """A table of names and values."""
    return table(((name, str(value)) for name, value in values.items()), wraps=True)


def bullets(items: Iterable[str]) -> Markup:
    """A list of texts."""
    return tag("ul", join(tag("li", item) for item in items))


def matrix(names: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[int]]) -> Markup:
    """A table of counts, with darker backgrounds for larger shares of a row. Zeros are empty."""
    header = join(tag("th", name) for name in ("", *columns))
    lines = [tag("tr", header)]
    for name, row in zip(names, cells, strict=True):
        total = max(sum(row), 1)
        line = [tag("th", name)]
        for count in row:
            text = f"{count:,}" if count else ""
            colour = f"rgb(var(--accent) / {0.8 * count / total:.2f})"
            line.append(Markup(f'<td style="background: {colour}">{text}</td>'))
        lines.append(tag("tr", join(line)))
    return tag("div", tag("table", join(lines), "matrix"), "scrolls")


def gallery(tiles: Iterable[Tile], wide: bool = False, folder: Path | None = None) -> Markup:
    """A contact sheet whose rows fit the reader's window: pictures with captions.

    wide: pictures are about twice as wide as high.
    folder: of the page; names link to files relative to it.
    """
    longest = THUMBNAIL
    if wide:
        longest *= 2
    figures = []
    for tile in tiles:
        style = ""
        if max(tile.pixels.shape[:2]) < SMALL:
            style = "class=small "
        alt = ": ".join(
            filter(None, [tile.name, ", ".join(filter(None, [tile.caption, tile.note]))])
        )
        image = Markup(f'<img {style}alt="{block(alt)}" src="{embedded(tile.pixels, longest)}">')
        style = {True: "right", False: "wrong", None: ""}[tile.right]
        caption = tag("figcaption", tile.caption, style)
        note = tag("small", tile.note)
        parts = [image, caption, note]
        if tile.name:
            parts.append(named(tile.name, folder))
        attribute = ""
        if tile.markable:
            attribute = f' data-image="{block(tile.name)}"'
        figures.append(Markup(f"<figure{attribute}>{join(parts)}</figure>"))
    style = "gallery"
    if wide:
        style = '"gallery pairs"'
    return tag("div", join(figures), style)


def named(name: str, folder: Path | None) -> Markup:
    """The name of a photograph: its last two parts, as a link if it is a file. The link is relative to the
    page's folder, so a page does not reveal folders above both."""
    short = "/".join(Path(name).parts[-2:])
    if folder is None or not Path(name).is_file():
        return tag("small", printable_name(short), "name")
    address = quote(os.fsencode(os.path.relpath(Path(name).resolve(), folder.resolve())))
    link = f'<a href="{block(address)}">{block(printable_name(short))}</a>'
    return Markup(f"<small class=name>{link}</small>")


def embedded(pixels: np.ndarray, longest: int) -> str:
    """A picture, uint8 (h, w, 3), as a data URL: a small one as PNG, others as a JPEG with at most `longest`
    pixels along the longer side."""
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    if max(image.size) < SMALL:
        image.save(buffer, "PNG")
        return _embedded(buffer, "png")
    image.thumbnail((longest, longest))
    image.save(buffer, "JPEG", quality=QUALITY)
    return _embedded(buffer, "jpeg")


def picture(figure: "Figure", alt: str, style: str = "photographs") -> Markup:
    """A figure of photographs as an embedded PNG. alt: description of its content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return Markup(f'<img class={style} alt="{block(alt)}" src="{_embedded(buffer, "png")}">')


def drawing(figure: "Figure", alt: str) -> Markup:
    """A figure of lines as an embedded PNG, whose black and white are swapped on a dark page."""
    return picture(figure, alt, "drawing")


def themed_figure(
    draw: Callable[[Theme], "Figure"], alt: str, of_photographs: bool = False
) -> Markup:
    """A figure in the colours of light and dark themes, below its title. Its subfigures become separate
    pictures, side by side if the reader's window has room for them, otherwise below each other.

    Each picture is embedded twice, light and dark, and the reader's system chooses. They are PNGs, or JPEGs if
    most of the figure is photographs.
    """
    figures = [draw(theme) for theme in (LIGHT, DARK)]
    title = figures[0].get_suptitle()
    whole = [_drawn(figure) for figure in figures]  # (light, dark)
    kind = "png"
    if of_photographs:
        kind = "jpeg"

    def embed(panel: "Panel") -> Markup:
        rows, columns = _area(panel, len(whole[0]))
        light, dark = (_encoded(pixels[rows, columns], kind) for pixels in whole)
        about = ", ".join([alt, *filter(None, (axes.get_title() for axes in panel.axes))])
        width = round((columns.stop - columns.start) * CSS_PIXELS / DPI)
        return Markup(
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img width={width} alt="{block(about)}" src="{light}"></picture>'
        )

    pictures = tag("div", _by_panel(figures[0], embed), "panels")
    if not title:
        return pictures
    return join([paragraph(title, "faint"), pictures])


def _drawn(figure: "Figure") -> np.ndarray:
    """The pixels of a figure without its title: uint8 (h, w, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.suptitle("")
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def _by_panel(figure: "Panel", embed: Callable[["Panel"], Markup]) -> Markup:
    """The subfigures of a figure, recursively. Those with content and without subfigures are embedded."""
    parts = []
    for panel in figure.subfigs:
        if panel.subfigs:
            parts.append(tag("div", _by_panel(panel, embed), "panels"))
        elif panel.axes:
            parts.append(embed(panel))
    return join(parts)


def _area(panel: "Panel", height: int) -> tuple[slice, slice]:
    """The rows and columns of a panel in the pixels of its figure, which has this height, without empty space
    above and below."""
    left, bottom, right, top = panel.bbox.extents  # upwards
    drawn = panel.get_tightbbox()
    top = min(top, drawn.y1 + MARGIN)
    bottom = max(bottom, drawn.y0 - MARGIN)
    rows = slice(max(height - round(top), 0), height - round(bottom))
    return rows, slice(round(left), round(right))


def _encoded(pixels: np.ndarray, kind: str) -> str:
    """Pixels of a figure, uint8 (h, w, 3), as a data URL of a PNG or a JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, quality=QUALITY)
    return _embedded(buffer, kind)


def _embedded(buffer: io.BytesIO, kind: str) -> str:
    """The content of a file as a data URL."""
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind};base64,{data}"
