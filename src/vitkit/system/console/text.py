"""Text for a terminal: counts and numbers in readable form, lines wrapped to its width, and no control
characters in names from downloaded files."""

import math
import re
import shlex
import traceback
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill as fill_lines
from textwrap import wrap

from vitkit.system.storage.addresses import without_credentials

NOUNS = r"\b(file|folder|image|example|member|link)s\b"
LONGEST = 2000  # characters of a sentence
LONGEST_TRACEBACK = 100_000
LONGEST_NAME = 200  # characters of the name of a class or a file
CONTROL = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control, surrogates, line separators
DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str, longest: int = LONGEST) -> str:
    """Make a text printable: control characters become escapes, as in "\\\\x1b", and a text that is longer than
    `longest` loses its middle.

    Names of classes and files, and messages that contain them, may include characters that move a terminal's
    cursor, clear its screen or change the direction of writing. Users, passwords and signatures are removed
    from addresses.
    """
    text = without_credentials(text)
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"
    return escaped(text)


def printable_traceback(error: BaseException) -> str:
    """The traceback of an error for a terminal; it may contain addresses and untrusted names."""
    text = "".join(traceback.format_exception(error))
    return printable(text, LONGEST_TRACEBACK).rstrip("\n")


def escaped(text: str) -> str:
    """The text with escapes in place of control characters except line ends."""
    return "".join(map(_shown, text))


def printable_name(name: str) -> str:
    """A printable name of a class or a file, in one line."""
    return printable(name, LONGEST_NAME).replace("\n", "\\n")


def quoted(value: object) -> str:
    """The value as Python code, for a message: in one line, and without its middle if it is long."""
    return printable(repr(value), LONGEST_NAME)


def counted(count: int, thing: str) -> str:
    """A count with its noun: "1 image", "2,000 images", "10 classes"."""
    if count == 1:
        return f"1 {thing}"
    ending = "es" if thing.endswith("s") else "s"
    return f"{count:,} {thing}{ending}"


def counted_kind(count: int, things: str) -> str:
    """A count with a plural that may have other words around it: "1 .txt file", "2 hidden folders", "1 example
    without an image"."""
    if count != 1:
        return f"{count:,} {things}"
    thing = re.sub(NOUNS, r"\1", things, count=1)
    return f"1 {thing}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of several names: "cat, dog, ..."."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += ", ..."
    return text


def readable(value: float) -> str:
    """A number above 0 with three digits, without an exponent: 1,567, 12.3 or 0.0042."""
    if value >= 100:
        return f"{value:,.0f}"
    if value <= 0:
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(value))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def as_word(path: Path | str) -> str:
    """A path, or the name of a model or of data, quoted for a shell."""
    return printable(shlex.quote(str(path)))


def terminal_width() -> int:
    """The width of the terminal, or $COLUMNS; at least 40."""
    return max(get_terminal_size().columns, 40)


def fill(text: str, margin: int = 0) -> str:
    """A paragraph, wrapped to the terminal's width minus `margin`."""
    return fill_lines(text, terminal_width() - margin, break_on_hyphens=False)


Row = tuple[str, str]
"""A name and a sentence."""


def two_columns(rows: Sequence[Row], beside: Sequence[Row] = ()) -> list[str]:
    """Lines with a name and a sentence for each row.

    The sentence is printed beside its name and wrapped to the terminal, or below its name if the terminal is
    narrow. The names of `beside` are included in the column's width, so that several such lists are aligned.
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
    """Groups of rows in two aligned columns, each below its title and an empty line."""
    everything = [row for rows in groups.values() for row in rows]
    lines = []
    for title, rows in groups.items():
        lines += ["", f"{title}:", *two_columns(rows, everything)]
    return lines


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line, to be wrapped later."""
    lines = [line.strip() for line in text.strip().splitlines()]
    parts = "\n".join(lines).split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _shown(character: str) -> str:
    """A character, or its escape if it is a control character."""
    if character == "\n":
        return character
    if unicodedata.category(character) not in CONTROL and character not in DIRECTION:
        return character
    return character.encode("unicode_escape").decode("ascii")
