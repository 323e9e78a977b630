"""The font in which names are drawn below pictures: DejaVu Sans, which comes with matplotlib, or for letters that
it does not have, one of this machine's fonts."""

import string
import unicodedata
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vitkit.system.console.messages import say

BOX = "\N{WHITE VERTICAL RECTANGLE}"  # in place of a letter that no font has, or "?"
USUAL = frozenset(map(ord, string.ascii_letters + string.digits + " %.,:()"))  # in most captions
PLACEHOLDERS = "Last Resort"  # a font that comes with matplotlib and has a box for every letter


class Line(NamedTuple):
    """A line of text that can be drawn."""

    text: str
    font: Path
    """File of a font that has its letters."""


class Font(NamedTuple):
    """A font of this machine."""

    file: Path
    codes: frozenset[int]
    """The numbers of its letters in Unicode."""


def drawable(text: str) -> Line:
    """A text as a line, and the font that has the most of its letters. The others become boxes, which a message
    says once."""
    letters = [letter for letter in " ".join(text.split()) if not _is_invisible(letter)]
    codes = frozenset(map(ord, letters))
    font = _dejavu()
    if not codes <= font.codes:
        font = max([font, *_other_fonts()], key=lambda font: len(codes & font.codes))
    if not codes <= font.codes:
        _say_that_letters_are_missing()
    box = BOX if ord(BOX) in font.codes else "?"
    drawn = [letter if ord(letter) in font.codes else box for letter in letters]
    return Line("".join(drawn), font.file)


def _is_invisible(letter: str) -> bool:
    """Whether a letter only changes how others look, as in emoji that are put together."""
    return unicodedata.category(letter) == "Cf" or "\ufe00" <= letter <= "\ufe0f"


@cache
def _dejavu() -> Font:
    """The font that draws what it has the letters of."""
    from matplotlib import get_data_path

    file = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return Font(file, _codes_of(file))


@cache
def _other_fonts() -> list[Font]:
    """This machine's fonts, upright ones first. It takes a second or two where there are hundreds of fonts."""
    from matplotlib.font_manager import fontManager

    found = []
    for font in sorted(fontManager.ttflist, key=lambda font: (font.style != "normal", font.fname)):
        if font.name.startswith(PLACEHOLDERS):
            continue
        codes = _codes_of(Path(font.fname))
        if codes >= USUAL:
            found.append(Font(Path(font.fname), codes))
    return found


def _codes_of(file: Path) -> frozenset[int]:
    """The numbers of the letters of a font file; none if it cannot be read, or consists of bitmaps, which cannot be
    scaled."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(str(file))
    except (OSError, RuntimeError):
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(font.get_charmap())


@cache
def _say_that_letters_are_missing() -> None:
    """Say once that no font has some letters."""
    say(
        "the letters of some names are in no single font of this machine, so pictures have boxes in their place; a "
        "font of the language, such as one of Noto Sans, would help"
    )
