"""Text for a terminal: sentences beside their names, wrapped to its width."""

from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from textwrap import fill as fill_lines
from textwrap import wrap


def terminal_width() -> int:
    """Columns of the terminal, or of $COLUMNS; at least 40."""
    return max(get_terminal_size().columns, 40)


def fill(text: str, margin: int = 0) -> str:
    """A paragraph, wrapped to the terminal, with `margin` columns left free."""
    return fill_lines(text, terminal_width() - margin, break_on_hyphens=False)


Row = tuple[str, str]
"""A name and a sentence."""


def two_columns(rows: Sequence[Row], beside: Sequence[Row] = ()) -> list[str]:
    """Lines with a name and a sentence for each row.

    The sentence stands beside its name and is wrapped to the terminal. In a narrow terminal, it
    stands below its name. There is room for the names of `beside` too, so that several such lists
    line up.
    """
    width = terminal_width()
    indent = max(len(name) for name, _ in (*rows, *beside)) + 5
    lines = []
    if indent > width // 2:
        for name, sentence in rows:
            lines.append(f"  {name}")
            lines += wrap(sentence, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
        return lines
    for name, sentence in rows:
        first, *others = wrap(sentence, width - indent) or [""]
        lines.append(f"  {name:{indent - 2}}{first}".rstrip())
        lines += [" " * indent + line for line in others]
    return lines


def titled(groups: Mapping[str, Sequence[Row]]) -> list[str]:
    """Groups of rows in two columns that line up, each below its title and an empty line."""
    everything = [row for rows in groups.values() for row in rows]
    lines = []
    for title, rows in groups.items():
        lines += ["", f"{title}:", *two_columns(rows, everything)]
    return lines


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line, for whoever wraps it to the terminal."""
    lines = [line.strip() for line in text.strip().splitlines()]
    parts = "\n".join(lines).split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)
