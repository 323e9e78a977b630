"""Self-contained HTML pages: one file that needs nothing else, and in which text from outside
cannot become markup.

A page is made of blocks of HTML, and each function here makes one. Any other text is escaped where
it is put into a block.
"""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.system.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body {
  font: 16px/1.5 system-ui, sans-serif; color: #1b1f24;
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
}
h1 { font-size: 1.5rem }
h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td + td, th + td { font-variant-numeric: tabular-nums }
img { max-width: 100% }
pre { background: #f6f8fa; padding: 1rem; overflow: auto }
"""


class Block(str):
    """A piece of a page that is HTML already, and so is not escaped again."""


def block(content: str) -> Block:
    """A block as it is; any other text escaped, which makes it one."""
    if isinstance(content, Block):
        return content
    return Block(html.escape(content))


def tag(name: str, content: str) -> Block:
    """An HTML element with this content."""
    return Block(f"<{name}>{block(content)}</{name}>")


def join(texts: Iterable[str]) -> Block:
    """Blocks, or texts that are escaped, one after the other."""
    return Block("".join(block(text) for text in texts))


def page(title: str, blocks: Iterable[Block]) -> str:
    """A whole page under its title."""
    head = f"<meta charset=utf-8>{tag('title', title)}<style>{STYLE}</style>"
    body = join([tag("h1", title), *blocks])
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>"


def write_page(path: Path, title: str, blocks: Iterable[Block]) -> Path:
    """Write a page, whole or not at all, and return its path. Raises OSError."""
    write_whole(path, page(title, blocks).encode())
    return path


def section(title: str, *blocks: str) -> Block:
    """Blocks under a heading."""
    return join([tag("h2", title), *blocks])


def paragraph(text: str) -> Block:
    """A paragraph of text."""
    return tag("p", text)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> Block:
    """Rows of cells; the first cell of each is its heading."""
    lines = []
    if header:
        lines.append(tag("tr", join(tag("th", cell) for cell in header)))
    for first, *others in rows:
        cells = join(tag("td", cell) for cell in others)
        lines.append(tag("tr", join([tag("th", first), cells])))
    return tag("table", join(lines))


def pairs(values: Mapping[str, object]) -> Block:
    """A table of names and values."""
    return table((name, str(value)) for name, value in values.items())


def bullets(items: Iterable[str]) -> Block:
    """A list of texts."""
    return tag("ul", join(tag("li", item) for item in items))


def preformatted(text: str) -> Block:
    """Text with its spaces and lines as they are."""
    return tag("pre", text)


def picture(figure: "Figure", alt: str) -> Block:
    """A figure as an embedded PNG; `alt` says what is on it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    return Block(f'<img alt="{block(alt)}" src="data:image/png;base64,{data}">')
