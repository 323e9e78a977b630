"""Text for a terminal: counted things and numbers as people write them, lines as wide as it is, and
nothing in the names from files of strangers that could control it."""

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
CONTROL = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories: control, surrogates, separators of lines
DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str, longest: int = LONGEST) -> str:
    """Makes a text printable: control characters become escapes, as in "\\\\x1b",
    and what is longer than `longest` loses its middle.

    Names of classes and files, and messages that repeat them, may hold what moves a terminal's
    cursor, clears its screen or turns the direction of writing. Addresses are shown without users,
    passwords and signatures.
    """
    text = without_credentials(text)
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"
    return escaped(text)


def printable_traceback(error: BaseException) -> str:
    """The traceback of an error, which may repeat addresses and names of a stranger's, for a terminal."""
    text = "".join(traceback.format_exception(error))
    return printable(text, LONGEST_TRACEBACK).rstrip("\n")


def escaped(text: str) -> str:
    """The text with escapes in place of control characters, but for the ends of lines."""
    return "".join(map(_shown, text))


def printable_name(name: str) -> str:
    """A name of a class or a file, which has one line."""
    return printable(name, LONGEST_NAME).replace("\n", "\\n")


def counted(count: int, thing: str) -> str:
    """How many things there are: "1 image", "2,000 images", "10 classes"."""
    if count == 1:
        return f"1 {thing}"
    ending = "es" if thing.endswith("s") else "s"
    return f"{count:,} {thing}{ending}"


def counted_kind(count: int, things: str) -> str:
    """Counts things of a kind that is named in the plural: "1 .txt file", "2 hidden folders", "1 example
    without an image"."""
    if count != 1:
        return f"{count:,} {things}"
    thing = re.sub(NOUNS, r"\1", things, count=1)
    return f"1 {thing}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of many names: "cat, dog, ..."."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += ", ..."
    return text


def readable(value: float) -> str:
    """A number above 0 to three digits, as people write it: 1,567, 12.3 or 0.0042; never 1.57e+03."""
    if value >= 100:
        return f"{value:,.0f}"
    if value <= 0:
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(value))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def as_word(path: Path | str) -> str:
    """A path, or the name of a model or of data, as a word of a command that can be pasted."""
    return printable(shlex.quote(str(path)))


def terminal_width() -> int:
    """The width of the terminal, or $COLUMNS; at least 40."""
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


def _shown(character: str) -> str:
    """The character itself, or its escape."""
    if character == "\n":
        return character
    if unicodedata.category(character) not in CONTROL and character not in DIRECTION:
        return character
    return character.encode("unicode_escape").decode("ascii")
