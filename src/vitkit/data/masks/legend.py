"""The legend of masks: which value or colour of a mask's file stands for which class, and which pixels
are ignored.

A code is the number of a pixel in a mask's file: its value (grey, or the index of a palette), or its
colour as 65536 red + 256 green + blue.

Legend: K classes, h w pixels of a mask.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData
from vitkit.system.storage.files import parse_json

IGNORED = 255
"""The class number, in a mask in memory, of pixels that take no part in anything."""
UNKNOWN = 254  # the class number of a code that the legend does not have, while it is looked up
MAX_CLASSES = 254
VALUES = 1 << 16  # values of a mask of 16 bits
COLOURS = 1 << 24  # colours of 8 bits a channel
# Names, in small letters, that published legends have for pixels that do not count
IGNORED_NAMES = frozenset(
    ("ignore", "ignored", "void", "unlabeled", "unlabelled", "don't care", "dontcare")
)
# What stands above a column of names, in small letters
HEADINGS = frozenset(
    ("label", "labels", "class", "classes", "name", "names", "class name", "class_name", "category",
     "categories")
)  # fmt: skip
OWN_HEADING = "name,value"  # of the legends that `write_legend` writes
_RANGE = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


class Codes(NamedTuple):
    """The codes from `low` to `high`, both included, that stand for a class."""

    low: int
    high: int
    number: int
    """The number of the class, or IGNORED."""


@dataclass(frozen=True)
class Legend:
    """What the codes of masks stand for."""

    labels: tuple[str, ...]
    """The names of the K classes."""
    codes: tuple[Codes, ...]
    """Every code that a mask may have."""
    coloured: bool = False
    """Whether codes are colours."""

    @cached_property
    def table(self) -> np.ndarray:
        """The class number of every code, uint8: UNKNOWN for those that no mask may have."""
        table = np.full(COLOURS if self.coloured else VALUES, UNKNOWN, np.uint8)
        for low, high, number in self.codes:
            table[low : high + 1] = number
        return table

    @property
    def ignores_255_alone(self) -> bool:
        """Whether 255, and no other code, is ignored: nobody may have asked for that."""
        return [each for each in self.codes if each.number == IGNORED] == [Codes(255, 255, IGNORED)]

    def __getstate__(self) -> dict:
        """It travels to other processes without its table."""
        return {name: getattr(self, name) for name in ("labels", "codes", "coloured")}

    def class_map(self, codes: np.ndarray, name: str) -> np.ndarray:
        """The classes of a mask's codes, int (h, w) -> uint8 (h, w), IGNORED where pixels do not count.

        Raises BadData, with the mask's name, for a code that the legend does not have.
        """
        classes = self.table[codes]
        unknown = classes == UNKNOWN
        if unknown.any():
            code = int(codes[unknown][0])
            raise BadData(self._about_unknown(code, int(unknown.sum()), name))
        return classes

    def _about_unknown(self, code: int, pixels: int, name: str) -> str:
        """The sentence about a code that no class has."""
        of_classes = [each.low for each in self.codes if each.number != IGNORED]
        known = some([code_text(low, self.coloured) for low in of_classes], 5)
        sentence = (
            f"{name} has the {_kind(self.coloured)} {code_text(code, self.coloured)} in "
            f"{counted(pixels, 'pixel')}, and the classes have {known}"
        )
        if name.lower().endswith((".jpg", ".jpeg")):
            return f"{sentence}: JPEG changes the values of a mask, so save masks as PNG"
        if self.coloured:
            return f"{sentence}: name it in `legend`"
        return f"{sentence}: name it in `legend`, or leave such pixels out with `ignore={code}`"

    def to_json(self) -> dict:
        """Plain values; `from_json` is the way back."""
        codes = [list(each) for each in self.codes]
        return {"labels": list(self.labels), "codes": codes, "coloured": self.coloured}

    @classmethod
    def from_json(cls, values: Any) -> "Legend":
        """The legend that `to_json` wrote. Raises BadData for anything else."""
        try:
            labels = tuple(values["labels"])
            codes = tuple(Codes(*each) for each in values["codes"])
            coloured = values["coloured"]
            _check(labels, codes, coloured)
        except (KeyError, TypeError, ValueError) as error:
            raise BadData(f"a legend is damaged: {error}") from None
        return cls(labels, codes, coloured)


def _check(labels: tuple, codes: tuple[Codes, ...], coloured: object) -> None:
    """Raises BadData for values that no legend has."""
    if coloured not in (True, False):
        raise BadData(f"coloured is {coloured!r}")
    if not 1 <= len(labels) <= MAX_CLASSES or not all(isinstance(name, str) for name in labels):
        raise BadData(f"it has {len(labels)} labels")
    limit = COLOURS if coloured else VALUES
    for low, high, number in codes:
        is_class = number == IGNORED or 0 <= number < len(labels)
        if not (type(low) is type(high) is type(number) is int and is_class):
            raise BadData(f"it has the codes {(low, high, number)}")
        if not 0 <= low <= high < limit:
            raise BadData(f"it has the codes {low} to {high}")


def _kind(coloured: bool) -> str:
    return "colour" if coloured else "value"


def code_text(code: int, coloured: bool) -> str:
    """A code as people read it: 11, or #40a0ff."""
    if coloured:
        return f"#{code:06x}"
    return str(code)


def packed(red: Any, green: Any, blue: Any) -> Any:
    """The code of a colour, or of arrays of them."""
    return (red << 16) | (green << 8) | blue


# From a file


class _Entry(NamedTuple):
    """One line of a legend."""

    name: str
    low: int | None
    """None: the number of the line."""
    high: int
    coloured: bool = False


def read_legend(path: Path | str, ignore: int | None = None) -> Legend:
    """The legend in a text or JSON file.

    A line is the name of a class, whose value is the number of the line, from 0; or a name with a value
    (`road, 7`), a range of values (`nucleus, 1-65535`) or a colour (`64, 0, 128, car`, as CamVid has it,
    or `car:64,0,128::`, as CVAT has it). JSON is a list of names, or an object from names to values or
    colours. Pixels of the classes "void", "ignore" and "unlabelled" are ignored.

    ignore: another value whose pixels are ignored. Raises BadData, with the line, for anything else.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"the legend {path} cannot be read: {error}") from None
    if path.suffix.lower() == ".json":
        entries = _entries_of_json(text, path)
    else:
        entries = _entries_of_lines(text, path)
    return legend_of(entries, str(path), ignore)


def legend_of_names(names: Sequence[str], where: str, ignore: int | None = None) -> Legend:
    """The legend of classes whose values are 0, 1, 2, ... Raises BadData for names that are no names."""
    return legend_of([_Entry(str(name), None, 0) for name in names], where, ignore)


def _entries_of_json(text: str, path: Path) -> list[_Entry]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise BadData(f"the legend {path} is not JSON: {error}") from None
    if isinstance(values, list) and all(isinstance(name, str) for name in values):
        return [_Entry(name, None, 0) for name in values]
    if not isinstance(values, dict):
        raise BadData(
            f"the legend {path} is {type(values).__name__}; expected a list of names, or an object such as "
            '{"road": 0, "car": [64, 0, 128]}'
        )
    entries = []
    for name, code in values.items():
        fields = [str(part) for part in code] if isinstance(code, list) else [str(code)]
        entries.append(_entry(name, fields, f"the legend {path}, {name}"))
    return entries


def legend_text(labels: Sequence[str]) -> str:
    """A legend, as `read_legend` reads it, of classes whose values are 0, 1, 2, ...; a name may be anything."""
    text = StringIO(newline="")
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    for number, name in enumerate(labels):
        table.writerow([name, number])
    return f"{OWN_HEADING}\n{text.getvalue()}"


def _entries_of_table(text: str, path: Path) -> list[_Entry]:
    """The entries of a table with the heading name,value: a name may look like a number, a colour or a comment."""
    entries = []
    table = csv.reader(StringIO(text, newline=""))
    next(table)
    try:
        for row in table:
            where = f"the legend {path} line {table.line_num}"
            if not row:
                continue
            if len(row) != 2 or not _RANGE.fullmatch(row[1].strip()):
                raise BadData(f"{where} is {','.join(row)[:100]!r}; expected a name and a value")
            entries.append(_entry(row[0].strip(), [row[1].strip()], where))
    except csv.Error as error:
        raise BadData(f"the legend {path} is no table: {error}") from None
    return entries


def _entries_of_lines(text: str, path: Path) -> list[_Entry]:
    beginning = text.split("\n", 1)[0].lower()
    if beginning.replace(" ", "").strip() == OWN_HEADING:
        return _entries_of_table(text, path)
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = _fields(line.strip())
        codes = [field for field in fields if _RANGE.fullmatch(field)]
        names = [field for field in fields if field and not _RANGE.fullmatch(field)]
        where = f"the legend {path} line {number}"
        if number == 1 and len(names) > 1 and not codes:
            continue  # a heading: name, red, green, blue
        if number == 1 and not codes and line.strip().lower() in HEADINGS:
            raise BadData(
                f"{where} is {line.strip()!r}, which is a heading rather than a class: remove this line, or give "
                "every class its value, such as road, 0"
            )
        if len(names) != 1:
            raise BadData(
                f"{where} is {line.strip()[:100]!r}; expected the name of a class, alone or with its value "
                "or its red, green and blue, such as 64, 0, 128, car"
            )
        entries.append(_entry(names[0], codes, where))
    return entries


def _fields(line: str) -> list[str]:
    """The fields of a line of a legend, whatever separates them; a name may have spaces."""
    if line.count(":") >= 2:  # CVAT's: name:r,g,b:parts:actions
        name, colour, *_ = line.split(":")
        return [name.strip(), *(part.strip() for part in colour.split(",") if part.strip())]
    for separator in (",", ";", "\t"):
        if separator in line:
            [fields] = csv.reader([line], delimiter=separator)
            return [part for field in fields for part in _numbers_apart(field.strip())]
    words = line.split()
    first = 0
    while first < len(words) - 1 and _RANGE.fullmatch(words[first]):
        first += 1
    if first in (1, 3):
        return [*words[:first], " ".join(words[first:])]
    return [line]


def _numbers_apart(field: str) -> list[str]:
    """The numbers of a field that has nothing else, as "64 128 64"; else the field."""
    words = field.split()
    if words and all(map(_RANGE.fullmatch, words)):
        return words
    return [field]


def _entry(name: str, codes: Sequence[str], where: str) -> _Entry:
    """The entry of a class with a value, a range of values, or three values of a colour. Raises BadData."""
    if not codes:
        return _Entry(name, None, 0)
    matches = [_RANGE.fullmatch(code) for code in codes]
    if len(codes) not in (1, 3) or not all(matches):
        raise BadData(
            f"{where} has {', '.join(codes)[:60]} for {name!r}; expected one value, or red, green and blue"
        )
    if len(codes) == 3:
        levels = [int(code) for code in codes if code.isdecimal()]
        if len(levels) != 3 or max(levels) > 255:
            raise BadData(
                f"{where} has the colour {', '.join(codes)}; its numbers are from 0 to 255"
            )
        colour = packed(*levels)
        return _Entry(name, colour, colour, coloured=True)
    assert matches[0] is not None  # checked above
    low = int(matches[0][1])
    high = int(matches[0][2] or low)
    if not low <= high < VALUES:
        raise BadData(f"{where} has the values {codes[0]}; they are from 0 to {VALUES - 1}")
    return _Entry(name, low, high)


def legend_of(entries: Sequence[_Entry], where: str, ignore: int | None = None) -> Legend:
    """The legend of these lines; lines of one name are one class. Raises BadData if they contradict each
    other."""
    if not entries:
        raise BadData(f"the legend {where} names no class")
    kinds = {(entry.low is None, entry.coloured) for entry in entries}
    if len(kinds) > 1:
        raise BadData(
            f"the legend {where} has classes with colours, with values or without either; give all of them "
            "one kind"
        )
    coloured = entries[0].coloured
    labels: list[str] = []
    codes: list[Codes] = []
    for line, (name, low, high, _) in enumerate(entries):
        if low is None:
            low = high = line
        number = IGNORED
        if name.lower() not in IGNORED_NAMES:
            if name not in labels:
                labels.append(name)
            number = labels.index(name)
        codes.append(Codes(low, high, number))
    if not 1 <= len(labels) <= MAX_CLASSES:
        raise BadData(
            f"the legend {where} has {len(labels):,} classes; masks have 1 to {MAX_CLASSES}"
        )
    _check_apart(codes, coloured, where)
    return with_ignored(Legend(tuple(labels), tuple(codes), coloured), ignore)


def _check_apart(codes: Iterable[Codes], coloured: bool, where: str) -> None:
    """Raises BadData if a code stands for two classes."""
    ordered = sorted(codes)
    for one, other in pairwise(ordered):
        if other.low <= one.high and one.number != other.number:
            raise BadData(
                f"the legend {where} has the {_kind(coloured)} {code_text(other.low, coloured)} twice, for "
                "two classes"
            )


def with_ignored(legend: Legend, ignore: int | None) -> Legend:
    """The legend with a value whose pixels are ignored; 255 is one unless a class has it, as in Pascal VOC.
    Raises BadData for a value that no mask has."""
    if legend.coloured:
        if ignore is not None:
            raise BadData(
                f"`ignore` is {ignore}, and the masks have colours: give the colour the name void in `legend`"
            )
        return legend
    ignored = [255]
    if ignore is not None:
        if not 0 <= ignore < VALUES:
            raise BadData(
                f"`ignore` is {ignore}; it is a value of the masks, from 0 to {VALUES - 1}"
            )
        ignored.append(ignore)
    codes = list(legend.codes)
    for value in ignored:
        owners = [each for each in codes if each.low <= value <= each.high]
        if not owners:
            codes.append(Codes(value, value, IGNORED))
        elif value == ignore and owners[0].number != IGNORED:
            name = legend.labels[owners[0].number]
            raise BadData(f"`ignore` is {ignore}, which is the value of the class {name!r}")
    return Legend(legend.labels, tuple(codes), legend.coloured)


# From the masks themselves


def inferred(
    found: Mapping[int, int], coloured: bool, ignore: int | None = None
) -> tuple[Legend, str]:
    """The legend of masks that come without one, from the codes that they have and how many pixels have each; and
    what was assumed, in a sentence.

    Two values are a background and an object; 255 beside others is ignored, as in Pascal VOC. Raises BadData
    for masks of one code alone, of more than classes can be, and whose borders were smoothed.
    """
    codes = sorted(found)
    if not coloured and ignore is None:
        _check_sharp(found)
    rest = [code for code in codes if code != ignore]
    if not coloured and len(rest) > 2 and rest[-1] == 255 and ignore is None:
        ignore = 255
        rest = rest[:-1]
    if len(rest) < 2:
        shown = "none"
        if rest:
            shown = code_text(rest[0], coloured)
        beside = ""
        if ignore in codes:
            beside = f" beside {ignore}, which is ignored"
        raise BadData(
            f"all masks have one {_kind(coloured)}, {shown}{beside}; a model needs pixels of two classes at least"
        )
    if len(rest) > MAX_CLASSES:
        raise BadData(
            f"the masks have {MAX_CLASSES + 1} {_kind(coloured)}s and more, too many for classes: masks of instances need "
            "a `legend` that merges them, such as the lines 'background, 0' and 'object, 1-65535'; masks saved as "
            "JPEG need to be saved as PNG"
        )
    if len(rest) == 2 and not coloured:
        names = ["background", "object"]
    else:
        names = [code_text(code, coloured) for code in rest]
    entries = [_Entry(name, code, code, coloured) for name, code in zip(names, rest, strict=True)]
    legend = legend_of(entries, "of the masks", ignore)
    shown = some([f"{code_text(c, coloured)} is {n}" for c, n in zip(rest, names, strict=True)], 3)
    sentence = f"the masks have {counted(len(rest), _kind(coloured))}: {shown}"
    if ignore is not None:
        sentence += f"; pixels of {ignore} are ignored"
    return legend, f"{sentence}; `legend` names the classes"


def _check_sharp(found: Mapping[int, int]) -> None:
    """Raises BadData for masks of 0 and 255 whose borders have values between, as antialiasing, resizing or JPEG
    makes them: fewer pixels than either. Classes are numbered without gaps."""
    codes = sorted(found)
    between = codes[1:-1]
    if len(between) < 3 or codes[-1] != 255:
        return
    if between == list(range(codes[0] + 1, codes[0] + 1 + len(between))):
        return
    if sum(found[code] for code in between) < min(found[codes[0]], found[255]):
        raise BadData(
            f"the masks have {codes[0]} and 255, and in few pixels {counted(len(between), 'value')} between, such as "
            f"{between[0]}: their borders are smoothed, so save them without antialiasing or JPEG, and resize them "
            "by the nearest pixel; if these values are classes, name them in `legend`"
        )
