"""Kinds of targets: a class, several classes, a number, a mask, or none; and the conversion of labels in their
usual notations to one of these kinds. ("Labels" alone are the names of the classes, "row labels" the
labels of examples.)

Legend: N examples, B batch, K classes, M classes of all examples together.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vitkit.system.errors import BadData
from vitkit.system.storage.files import parse_json

TargetKind = Literal["class", "classes", "number", "mask", "none"]
NO_TARGET = -1  # value in a batch for an example without a target; no class has this number
LARGEST = float(np.finfo(np.float32).max)  # largest number that a batch can hold
SEPARATORS = ("|", ";")  # between the classes of one image in a cell of a manifest
COMMA = ","  # a separator only if the target is "classes", because names contain commas too
# Usual notations of an unknown label, in lower case
UNKNOWN_WORDS = frozenset(("", "?", "-1", "na", "n/a", "nan", "none", "null", "unknown", "<na>"))

# An item of a written list: text in quotes, a number, or a missing value
_ITEM = re.compile(
    r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(?<![\w.+-])([+-]?[\d.]+|None|null|nan)(?![\w.+-])"""
)
_BRACKETS = ("[]", "()", "{}")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class TextTable(NamedTuple):
    """A text file in messages about its rows, which are called by their lines."""

    name: str
    """Name of the file."""
    lines: Sequence[int]
    """(N,): the line of each row, as a spreadsheet shows it: 2 for the first row below the heading."""

    def __str__(self) -> str:
        return self.name


Where = str | TextTable
"""A table in messages. The rows of one without lines are counted from 0."""


def at_row(where: Where, row: int) -> str:
    """A row in messages: "list.csv line 2", or "list.parquet row 0"."""
    return f"{where} {row_or_line(where, row)}"


def row_or_line(where: Where, row: int) -> str:
    """A row in messages without its file: "line 2", or "row 0"."""
    if isinstance(where, TextTable):
        return f"line {where.lines[row]}"
    return f"row {row}"


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of values for each of N examples, concatenated: 21,000 classes of 10 million images fit in
    memory.

    The values are class numbers, or the classes' names before they are numbered.
    """

    values: np.ndarray
    """(M,): the lists of all examples, concatenated."""
    ends: np.ndarray
    """int64 (N,): end of each example's list in `values`."""
    unknown: "Lists | None" = None
    """For each example, the classes that it may have or not: they are ignored in losses and metrics. None
    if everything is known."""

    @classmethod
    def of(cls, lists: Sequence[Sequence]) -> "Lists":
        """Lists without repetitions within a list; values are all int or all str."""
        flat: list = []
        ends = []
        for values in lists:
            flat += dict.fromkeys(values)
            ends.append(len(flat))
        dtype = object if flat and isinstance(flat[0], str) else np.int64
        return cls(np.array(flat, dtype=dtype), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, rows: np.ndarray) -> "Lists":
        """The lists of these rows, given by int64 or bool as in numpy."""
        counts = self.counts[rows]
        ends = np.cumsum(counts, dtype=np.int64)
        old_starts = (self.ends - self.counts)[rows]
        new_starts = ends - counts
        # Value j of the result, in list i, is value j - new_starts[i] + old_starts[i] of this one.
        shift = np.repeat(old_starts - new_starts, counts)
        unknown = None
        if self.unknown is not None:
            unknown = self.unknown[rows]
        return Lists(self.values[np.arange(counts.sum()) + shift], ends, unknown)

    @property
    def counts(self) -> np.ndarray:
        """int64 (N,): the length of each list."""
        return np.diff(self.ends, prepend=0)

    @property
    def owners(self) -> np.ndarray:
        """int64 (M,): the example of each value."""
        return np.repeat(np.arange(len(self)), self.counts)

    def row(self, i: int) -> np.ndarray:
        """The values of example i."""
        start = int(self.ends[i - 1]) if i else 0
        return self.values[start : int(self.ends[i])]

    def multi_hot(self, classes: int) -> np.ndarray:
        """float32 (N, K): 1 where an example has a class, NaN where that is unknown, otherwise 0."""
        rows = np.zeros((len(self), classes), dtype=np.float32)
        rows[self.owners, self.values] = 1
        if self.unknown is not None:
            rows[self.unknown.owners, self.unknown.values] = np.nan
        return rows

    def tobytes(self) -> bytes:
        """The bytes of these lists, for a digest."""
        known = self.ends.tobytes() + self.values.tobytes()
        if self.unknown is None:
            return known
        return known + self.unknown.tobytes()


class PartlyKnown(NamedTuple):
    """The classes of one example, some of which are unknown."""

    classes: list
    """The classes that it has."""
    unknown: list
    """The classes that it may have or not."""


def concatenate(several: Sequence[np.ndarray | Lists]) -> np.ndarray | Lists:
    """Concatenate the targets of several parts of one data set, which are of the same kind."""
    arrays = [each for each in several if isinstance(each, np.ndarray)]
    if len(arrays) == len(several):
        return np.concatenate(arrays)
    lists = [each for each in several if isinstance(each, Lists)]
    assert len(lists) == len(several)
    return _concatenate_lists(lists)


def _concatenate_lists(several: Sequence[Lists]) -> Lists:
    """Concatenate lists, including their unknown classes."""
    counts = np.concatenate([lists.counts for lists in several])
    values = np.concatenate([lists.values for lists in several])
    unknown = None
    if any(lists.unknown is not None for lists in several):
        unknown = _concatenate_lists([each.unknown or nothing_for(len(each)) for each in several])
    return Lists(values, np.cumsum(counts, dtype=np.int64), unknown)


def nothing_for(count: int) -> Lists:
    """An empty list for each example."""
    return Lists(np.zeros(0, np.int64), np.zeros(count, np.int64))


# Labels of rows

# As they were read: text, numbers, lists of either, or what arrow columns become
Values = Sequence | np.ndarray | Lists
# All of one kind, before they become targets: class numbers, int64 (N,); class names, objects (N,);
# numbers to predict, float64 (N,); several classes, by number or by name, as Lists of N; None for
# images without labels
RowLabels = np.ndarray | Lists | None


def as_row_labels(
    values: Values, where: Where, target: str = "auto", separator: str | None = None
) -> RowLabels:
    """Convert the values of a table to the label of each row, all of one kind.

    where: name of the file in error messages.
    target, separator: see `Columns`.
    Raises VitkitError, with the row, for a label that is missing or of another kind.
    """
    if target == "none":
        return None
    if separator is not None and target == "auto":
        target = "classes"
    if isinstance(values, np.ndarray):
        if values.dtype != object and (values == values.round()).all():
            values = values.astype(np.int64)
        else:
            values = values.tolist()
    # Text is a list if the user sets it, or if nothing else explains it
    if target == "classes" or (target == "auto" and (_are_lists(values) or _classes_recur(values))):
        values = _split_cells(values, separator, where)
    kind = target
    if kind == "auto":
        kind = _likely_kind(values)
    if kind == "class":
        return _classes(values, where)
    if kind == "classes":
        return _lists(values, where)
    return _numbers(values, where)


def _likely_kind(values: Values) -> TargetKind:
    """The most likely kind of labels: lists are several classes, fractions are numbers, anything else is
    one class."""
    if isinstance(values, Lists):
        return "classes"
    if isinstance(values, np.ndarray):  # of integers, as fractions were converted to a list
        return "class"
    if any(isinstance(value, list | tuple) for value in values):
        return "classes"
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        return "class"  # so that these values are refused, with their row
    unique = {value for value in values if value is not None and value != ""}
    numbers = [number for value in unique if (number := as_number(value)) is not None]
    if len(numbers) < len(unique) or all(number.is_integer() for number in numbers):
        return "class"
    return "number"


def as_number(value) -> float | None:
    """A number, or text that contains one, as a float; None for anything else."""
    if isinstance(value, str) and not _DECIMAL.fullmatch(value.strip()):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _classes(values: Values, where: Where) -> np.ndarray:
    """One class each: int64 (N,), or names as objects (N,). Text is converted to numbers if all of it is
    whole numbers."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Lists):
        values = _as_lists(values)  # each of them is refused
    if values and all(isinstance(value, bool) for value in values):
        values = list(map(str, values))  # "False" and "True" as in a CSV file, not 0 and 1
    _check_complete(values, where)
    for row, value in enumerate(values):
        _check_class(value, where, row)
        if isinstance(value, str) != isinstance(values[0], str):
            raise BadData(
                f"{where} has numbers and names as labels ({values[0]!r}, and {value!r} in {row_or_line(where, row)}); "
                "choose one kind"
            )
    return _as_array(values, where)


def _check_complete(values: Iterable, where: Where, first_row: int = 0) -> None:
    """Raise VitkitError if labels are missing, with the first row and the number of rows."""
    missing = [row for row, value in enumerate(values, first_row) if value is None or value == ""]
    if len(missing) > 1:
        raise BadData(
            f"{where} has {len(missing):,} rows without a label, the first in {row_or_line(where, missing[0])}; "
            "fill them in or remove the rows"
        )
    if missing:
        raise BadData(f"{at_row(where, missing[0])} has no label; fill it in or remove the row")


def _check_class(value, where: Where, row: int) -> None:
    """Raise VitkitError for a value that is neither the number nor the name of a class."""
    if value is None or value == "":
        _check_complete([value], where, row)
    whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, str | int) or whole:
        return
    message = f"{at_row(where, row)} has the label {value!r}; a class is a whole number or a name"
    is_nan = value != value
    if not is_nan:
        message += "; if it is something else, set `data.columns.target`"
    raise BadData(message)


def _as_array(values: Sequence, where: Where) -> np.ndarray:
    """An array of names as objects, or, if all of them are whole numbers, of int64."""
    if len(values) and isinstance(values[0], str):
        if not all(map(_is_whole, set(values))):
            return np.array(values, dtype=object)
        values = [int(value) for value in values]
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise BadData(
            f"{where} has labels beyond 64 bits; number the classes from 0, or name them"
        ) from None


def _is_whole(text: str) -> bool:
    """Whether text is a whole number in its usual notation: "12", but not "012", which is a name."""
    return text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text


def _numbers(values: Values, where: Where) -> np.ndarray:
    """One number each: float64 (N,), all finite in 32 bits."""
    if isinstance(values, Lists):
        raise BadData(
            f"{where} has lists as labels; a number to predict is a single one for each image"
        )
    stripped = [value.strip() if isinstance(value, str) else value for value in values]
    _check_complete(stripped, where)
    numbers = []
    for row, value in enumerate(values):
        number = as_number(value)
        if number is None or not abs(number) <= LARGEST:
            raise BadData(f"{at_row(where, row)} has the label {value!r}; expected a finite number")
        numbers.append(number)
    return np.array(numbers, dtype=np.float64)


def _classes_recur(values: Values) -> bool:
    """Whether cells of text are lists of classes: if splitting them, as in "cat;dog", "dog" and
    "cat;cow", gives fewer classes than there are distinct cells."""
    if isinstance(values, Lists | np.ndarray):
        return False
    if not all(isinstance(value, str) for value in values):
        return False
    cells = set(values)
    separator = _separator(cells)
    if separator is None:
        return False
    classes = {name for cell in cells for name in _split_cell(cell, separator)}
    return len(classes) < len(cells)


def _are_lists(values: Values) -> bool:
    """Whether cells of text are lists: some are written as lists of JSON, ["cat", "dog"], or Python,
    ['cat', 'dog'], or all are in brackets, [cat, dog]."""
    if isinstance(values, Lists | np.ndarray):
        return False
    if not all(isinstance(value, str) for value in values):
        return False
    cells = {value.strip() for value in values} - {""}
    if any(_listed(cell) is not None for cell in cells):
        return True
    in_brackets = all(is_in_brackets(cell) for cell in cells)
    return in_brackets and any(COMMA in cell for cell in cells)


def is_in_brackets(text: str) -> bool:
    """Whether text begins and ends with a matching pair of brackets."""
    return len(text) > 1 and text[0] + text[-1] in _BRACKETS


def _separator(cells: Iterable[str], separators: Sequence[str] = SEPARATORS) -> str | None:
    """The separator of the classes in cells of text: the first that occurs outside of written lists; None
    if none does."""
    cells = [cell for cell in cells if _listed(cell) is None]
    for separator in separators:
        if any(separator in cell for cell in cells):
            return separator
    return None


def _refuse_two_separators(cells: Iterable[str], where: Where) -> None:
    """Raise VitkitError if some cells contain one of the separators, and others the other."""
    first, second = SEPARATORS
    cells = [cell for cell in cells if _listed(cell) is None]
    by_first = sorted(cell for cell in cells if first in cell)
    by_second = sorted(cell for cell in cells if second in cell and first not in cell)
    if by_first and by_second:
        raise BadData(
            f"{where} has labels with {first!r} and with {second!r} ({by_first[0]}, {by_second[0]}): if both "
            "separate classes, use one of them throughout; otherwise set the one that does, as in "
            f"`data.columns.separator={first!r}`"
        )


def _split_cells(values: Values, separator: str | None, where: Where) -> Sequence | Lists:
    """Split cells like "cat|dog", "cat;dog", "cat, dog" and '["cat", "dog"]' into lists; an empty cell
    becomes an empty list.

    separator: the separator of classes, if the user sets it.
    Raises VitkitError for cells with two different separators.
    """
    if isinstance(values, Lists):
        return values
    if separator is None:
        cells = {value for value in values if isinstance(value, str)}
        separator = _separator(cells, (*SEPARATORS, COMMA))
        _refuse_two_separators(cells, where)
    lists: dict[str, list] = {}  # by text, so that a frequent cell is split only once
    result = []
    for value in values:
        if not isinstance(value, str):
            result.append(value)
            continue
        if value not in lists:
            lists[value] = _split_cell(value, separator)
        result.append(lists[value])
    return result


def _split_cell(text: str, separator: str | None) -> list:
    """Split a cell into the classes that it lists."""
    listed = _listed(text)
    if listed is not None:
        return listed
    text = text.strip()
    if text.startswith("[") and is_in_brackets(text):  # [cat, dog]
        text = text[1:-1]
        separator = separator or COMMA
    names = [text]
    if separator is not None:
        names = text.split(separator)
    return [name.strip() for name in names if name.strip()]


def _listed(text: str) -> list | None:
    """The items of a list, a tuple or a set in the notation of JSON, Python or NumPy; None for any other
    text, such as a name that begins with a bracket."""
    text = text.strip()
    if text == "set()":
        return []
    if not is_in_brackets(text):
        return None
    if text.startswith("["):
        try:
            return parse_json(text)
        except ValueError:
            pass
    inner = text[1:-1]
    if _ITEM.sub("", inner).strip(", \n"):
        return None
    items = []
    for single, double, bare in _ITEM.findall(inner):
        items.append(_bare_item(bare) if bare else single or double)
    # Text in parentheses without quotes or commas, such as "(1)", is a name
    is_plain = not inner.strip() or any(mark in inner for mark in "'\",")
    if text.startswith("[") or is_plain:
        return items
    return None


def _bare_item(text: str) -> int | float | str | None:
    """Convert an unquoted item of a written list: a number, or None for a missing value."""
    if text in ("None", "null", "nan"):
        return None
    if _is_whole(text):
        return int(text)
    if "." in text and _DECIMAL.fullmatch(text):
        return float(text)
    return text


def _lists(values: Values, where: Where) -> Lists:
    """Several classes each. A value that is not a list becomes a list of one."""
    is_vector = False
    if isinstance(values, Lists):
        lists = values
    else:
        is_vector = any(isinstance(value, PartlyKnown) for value in values)
        flat: list = []
        ends = []
        unknown = []
        unknown_ends = []
        _check_complete(values, where)
        for row, value in enumerate(values):
            if isinstance(value, PartlyKnown):
                unknown += value.unknown
                value = value.classes
            classes = value if isinstance(value, list | tuple) else [value]
            for name in classes:
                if len(classes) > 1 and (name is None or name == ""):
                    raise BadData(
                        f"{at_row(where, row)} has the label {value!r}, where a class is missing; fill it "
                        "in or remove it"
                    )
                _check_class(name, where, row)
                if isinstance(name, bool) and classes is value:
                    raise BadData(
                        f"{at_row(where, row)} has the label {value!r}; several classes are the list of "
                        "their names or numbers, not of true and false"
                    )
            flat += classes
            ends.append(len(flat))
            unknown_ends.append(len(unknown))
        kinds = {isinstance(name, str) for name in flat}
        if len(kinds) > 1:
            raise BadData(f"{where} has numbers and names as labels; choose one kind")
        lists = Lists(_as_array(flat, where), np.array(ends, dtype=np.int64))
        if unknown:
            unknown_lists = Lists(np.array(unknown, np.int64), np.array(unknown_ends, np.int64))
            lists = replace(lists, unknown=unknown_lists)
    _refuse_repetitions(lists, where)
    if not is_vector:
        _refuse_zeros_and_ones(lists, where)
    return lists


def _refuse_repetitions(lists: Lists, where: Where) -> None:
    """Raise VitkitError for an image with the same class twice, as rows of zeros and ones seem to be."""
    # Sort by image, then by class, so that equal classes are adjacent
    codes = np.unique(lists.values, return_inverse=True)[1]
    order = np.lexsort((codes, lists.owners))
    same_class = np.diff(codes[order]) == 0
    same_image = np.diff(lists.owners[order]) == 0
    repeated = same_class & same_image
    if repeated.any():
        row = int(lists.owners[order][1:][repeated][0])
        raise BadData(
            f"{at_row(where, row)} has the label {lists.row(row).tolist()}, which names a class "
            f"twice; several classes are the list of their names or numbers, not zeros and ones"
        )


def _refuse_zeros_and_ones(lists: Lists, where: Where) -> None:
    """Raise VitkitError if all labels are [0, 1] or [1, 0], which probably are flags for two classes: as
    lists of classes, every image would have both."""
    if not len(lists) or lists.values.dtype != np.int64:
        return
    if (lists.counts == 2).all() and np.isin(lists.values, (0, 1)).all():
        raise BadData(
            f"{at_row(where, 0)} has the label {lists.row(0).tolist()}, and all others consist of zeros and ones "
            "too; give the number of the class instead, a list of the numbers of several classes, or a "
            "column of zeros and ones for each class"
        )


def concatenate_values(several: Sequence[Values]) -> Values:
    """Concatenate the values of several files, for `as_row_labels`."""
    arrays = [values for values in several if isinstance(values, Lists | np.ndarray)]
    if len(arrays) == len(several) and len({type(values) for values in arrays}) == 1:
        return concatenate(arrays)
    result: list = []
    for values in several:
        if isinstance(values, Lists):
            values = _as_lists(values)
        elif isinstance(values, np.ndarray):
            values = values.tolist()
        result += values
    return result


def _as_lists(lists: Lists) -> list[list]:
    """Convert Lists to Python lists."""
    return [lists.row(i).tolist() for i in range(len(lists))]
