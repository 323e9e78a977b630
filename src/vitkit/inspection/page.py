"""Self-contained HTML pages: one file that needs nothing else, and in which text from outside
cannot become markup.

A page is made of blocks; each function here makes one. Text that is not a block is escaped wherever
it is put.
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
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td + td, th + td { font-variant-numeric: tabular-nums } img { max-width: 100% }
pre { background: #f6f8fa; padding: 1rem; overflow: auto }
"""


class Block(str):
    """A piece of a page that is HTML already."""


def block(content: str) -> Block:
    """A block as it is, or text, escaped."""
    if isinstance(content, Block):
        return content
    return Block(html.escape(content))


def page(title: str, blocks: Iterable[Block]) -> str:
    """A whole page under its title."""
    head = f"<meta charset=utf-8><title>{block(title)}</title><style>{STYLE}</style>"
    body = f"<h1>{block(title)}</h1>{''.join(map(block, blocks))}"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>"


def write_page(path: Path, title: str, blocks: Iterable[Block]) -> Path:
    """Write a page, whole or not at all, and return its path. Raises OSError."""
    write_whole(path, page(title, blocks).encode())
    return path


def section(title: str, *blocks: str) -> Block:
    """Blocks under a heading."""
    return Block(f"<h2>{block(title)}</h2>{''.join(map(block, blocks))}")


def paragraph(text: str) -> Block:
    """A paragraph of text."""
    return Block(f"<p>{block(text)}</p>")


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> Block:
    """Rows of cells; the first cell of each is its heading."""
    lines = []
    if header:
        lines.append(f"<tr>{''.join(f'<th>{block(cell)}</th>' for cell in header)}</tr>")
    for first, *others in rows:
        cells = "".join(f"<td>{block(cell)}</td>" for cell in others)
        lines.append(f"<tr><th>{block(first)}</th>{cells}</tr>")
    return Block(f"<table>{''.join(lines)}</table>")


def pairs(values: Mapping[str, object]) -> Block:
    """A table of names and values."""
    return table((name, str(value)) for name, value in values.items())


def bullets(items: Iterable[str]) -> Block:
    """A list of texts."""
    return Block(f"<ul>{''.join(f'<li>{block(item)}</li>' for item in items)}</ul>")


def preformatted(text: str) -> Block:
    """Text with its spaces and lines as they are."""
    return Block(f"<pre>{block(text)}</pre>")


def picture(figure: "Figure", alt: str) -> Block:
    """A figure as an embedded PNG; `alt` says what is on it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    return Block(f'<img alt="{block(alt)}" src="data:image/png;base64,{data}">')
