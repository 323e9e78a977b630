"""Text from files of strangers, as a terminal may show it."""

import math
import re
import shlex
import unicodedata
from pathlib import Path

NOUNS = r"\b(file|folder|image|example|member)s\b"
LONGEST = 2000  # characters of a sentence
LONGEST_NAME = 200  # characters of the name of a class or a file
CONTROL = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories: control, surrogates, separators of lines
DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str, longest: int = LONGEST) -> str:
    """The same text, if all of it can be shown: control characters become escapes, as in "\\\\x1b",
    and what is longer than `longest` loses its middle.

    Names of classes and files, and messages that repeat them, may hold what moves a terminal's
    cursor, clears its screen or turns the direction of writing.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"
    return "".join(map(_shown, text))


def printable_name(name: str) -> str:
    """A name of a class or a file, which has one line."""
    return printable(name, LONGEST_NAME).replace("\n", "\\n")


def counted(count: int, thing: str) -> str:
    """How many things there are: "1 image", "2,000 images"."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}s"


def counted_kind(count: int, things: str) -> str:
    """The same of a kind that is named in the plural: "1 .txt file", "2 hidden folders", "1 example
    without an image"."""
    if count != 1:
        return f"{count:,} {things}"
    thing = re.sub(NOUNS, r"\1", things, count=1)
    return f"1 {thing}"


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


def _shown(character: str) -> str:
    """The character itself, or its escape."""
    if character == "\n":
        return character
    if unicodedata.category(character) not in CONTROL and character not in DIRECTION:
        return character
    return character.encode("unicode_escape").decode("ascii")
