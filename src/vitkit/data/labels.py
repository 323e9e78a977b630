"""From labels as people write them to targets: a class, several classes, a number, or none.

Legend: N examples.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vitkit.data.tables import Table
from vitkit.data.targets import NO_TARGET, Labels, Lists, Target, joined

MAX_CLASSES = 1_000_000
LARGEST = float(np.finfo(np.float32).max)  # number that a batch can hold
SEPARATOR = "|"  # between the classes of one image in a cell of a manifest
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def as_labels(values: Sequence | np.ndarray | Lists, where: str, target: str = "auto") -> Labels:
    """Labels of one kind, from values as they were read: text, numbers, lists of either.

    target: as Columns has it. Raises ValueError, with the row, for a label that is missing or of another kind.
    """
    if target == "none":
        return None
    if isinstance(values, np.ndarray):
        values = _whole(values)
    kind = _kind(values) if target == "auto" else target
    read: dict[str, Callable] = {"class": _classes, "classes": _lists, "number": _numbers}
    if target == "classes":
        values = _split(values)
    return read[kind](values, where)


def _whole(values: np.ndarray) -> np.ndarray | list:
    """An array as int64 if it holds whole numbers; else as a list."""
    if values.dtype != object and (values == values.round()).all():
        return values.astype(np.int64)
    return values.tolist()


def _kind(values: Sequence | np.ndarray | Lists) -> Target:
    """What labels seem to be: lists are several classes, fractions are numbers, all else is one class."""
    if isinstance(values, Lists):
        return "classes"
    if isinstance(values, np.ndarray):
        return "class"
    if any(isinstance(value, list | tuple) for value in values):
        return "classes"
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        return "class"  # which will be refused, by its row
    unique = {value for value in values if value is not None and value != ""}
    numbers = [_as_number(value) for value in unique]
    if None in numbers or all(number.is_integer() for number in numbers):
        return "class"
    return "number"


def _as_number(value) -> float | None:
    """A number, or text that is one, as a float; None for anything else."""
    if isinstance(value, str) and not _DECIMAL.fullmatch(value.strip()):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _classes(values: Sequence | np.ndarray | Lists, where: str) -> np.ndarray:
    """One class each: int64 (N,), or names as objects (N,). Text that is all whole numbers counts as numbers."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Lists):
        values = [values.row(i).tolist() for i in range(len(values))]
    for row, value in enumerate(values):
        _check_class(value, where, row)
        if isinstance(value, str) != isinstance(values[0], str):
            raise ValueError(
                f"{where} has numbers and names as labels ({values[0]!r}, row {row}: {value!r}); choose one kind"
            )
    return _as_array(values, where)


def _check_class(value, where: str, row: int) -> None:
    """Raises ValueError for a value that is neither the number nor the name of a class."""
    if value is None or value == "":
        raise ValueError(f"{where} row {row} has no label; fill it in or remove the row")
    whole = isinstance(value, float) and value.is_integer()
    if not isinstance(value, str | int) and not whole:
        advice = "; --data.columns.target says what else it is" if value == value else ""
        raise ValueError(
            f"{where} row {row} has the label {value!r}; a class is a whole number or a name{advice}"
        )


def _as_array(values: Sequence, where: str) -> np.ndarray:
    """Names as objects, or, if all of them are whole numbers, int64."""
    if len(values) and isinstance(values[0], str):
        if not all(map(_is_whole, set(values))):
            return np.array(values, dtype=object)
        values = [int(value) for value in values]
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise ValueError(
            f"{where} has labels beyond 64 bits; number the classes from 0, or name them"
        ) from None


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text


def _numbers(values: Sequence | np.ndarray | Lists, where: str) -> np.ndarray:
    """One number each: float64 (N,), all of them finite in 32 bits."""
    if isinstance(values, Lists):
        raise ValueError(f"{where} has lists as labels; a number to predict is one an image")
    numbers = [_as_number(value) for value in values]
    for row, number in enumerate(numbers):
        if values[row] is None or (isinstance(values[row], str) and not values[row].strip()):
            raise ValueError(f"{where} row {row} has no label; fill it in or remove the row")
        if number is None or not abs(number) <= LARGEST:
            raise ValueError(
                f"{where} row {row} has the label {values[row]!r}; expected a finite number"
            )
    return np.array(numbers, dtype=np.float64)


def _split(values: Sequence | np.ndarray | Lists) -> Sequence | Lists:
    """Cells like "cat|dog" and '["cat", "dog"]' as lists; an empty cell is an empty list."""
    if isinstance(values, Lists):
        return values
    texts = {value for value in values if isinstance(value, str)}
    lists = {text: _cell(text) for text in texts}
    return [lists[value] if isinstance(value, str) else value for value in values]


def _cell(text: str) -> list:
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            pass  # a name that begins with a bracket
    return [name.strip() for name in text.split(SEPARATOR) if name.strip()]


def _lists(values: Sequence | np.ndarray | Lists, where: str) -> Lists:
    """Several classes each. A value that is no list is a list of one."""
    if not isinstance(values, Lists):
        lists = [value if isinstance(value, list | tuple) else [value] for value in values]
        for row, classes in enumerate(lists):
            for value in classes:
                _check_class(value, where, row)
        flat = [value for classes in lists for value in classes]
        if len({isinstance(value, str) for value in flat}) > 1:
            raise ValueError(f"{where} has numbers and names as labels; choose one kind")
        ends = np.cumsum([len(classes) for classes in lists], dtype=np.int64)
        values = Lists(_as_array(flat, where), ends)
    _refuse_repetitions(values, where)
    return values


def _refuse_repetitions(lists: Lists, where: str) -> None:
    """Raises ValueError for an image that is of a class twice, as rows of zeros and ones seem to be."""
    codes = np.unique(lists.values, return_inverse=True)[1]
    order = np.lexsort((codes, lists.owners))
    again = (np.diff(codes[order]) == 0) & (np.diff(lists.owners[order]) == 0)
    if again.any():
        row = int(lists.owners[order][1:][again][0])
        raise ValueError(
            f"{where} row {row} has the label {lists.row(row).tolist()}, which names a class twice; several classes are "
            f"the list of their names or numbers, not zeros and ones"
        )


def concatenated(several: Sequence[Sequence | np.ndarray | Lists]) -> Sequence | np.ndarray | Lists:
    """Labels of several files as those of one, before `as_labels`."""
    if all(isinstance(values, Lists) for values in several):
        whole = several[0]
        for values in several[1:]:
            whole = joined(whole, values)
        return whole
    if all(isinstance(values, np.ndarray) for values in several):
        return np.concatenate(several)
    return [value for values in several for value in _plain(values)]


def _plain(values: Sequence | np.ndarray | Lists) -> Sequence:
    if isinstance(values, Lists):
        return [values.row(i).tolist() for i in range(len(values))]
    return values.tolist() if isinstance(values, np.ndarray) else values


class Numbered(NamedTuple):
    """Targets as a Source has them."""

    target: Target
    targets: np.ndarray | Lists
    labels: tuple[str, ...]
    """Names of the classes."""
    notes: tuple[str, ...]
    """What the user should know."""


def numbered(table: Table) -> Numbered:
    """The targets of a Table, whose classes are numbered.

    Named classes are numbered in the order of their sorted names, those of the training part if there is one; numbers
    stay what they are. Raises ValueError for a class that training does not have, and for a number without a name.
    """
    labels = table.labels
    if labels is None:
        return Numbered("none", np.full(len(table.parts), NO_TARGET, np.int64), (), ())
    if isinstance(labels, Lists):
        names, numbers, notes = _named(labels.values, labels.owners, table)
        several = Lists(numbers.astype(np.int32), labels.ends)
        counts = several.counts
        note = f"every image is of {counts.min()} to {counts.max()} of {len(names)} classes"
        return Numbered("classes", several, names, (note, *notes))
    if labels.dtype == np.float64:
        note = f"labels are numbers to predict, from {labels.min():g} to {labels.max():g}"
        return Numbered("number", labels.astype(np.float32), (), (note,))
    names, numbers, notes = _named(labels, np.arange(len(labels)), table)
    return Numbered("class", numbers, names, notes)


def _named(
    values: np.ndarray, rows: np.ndarray, table: Table
) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
    """Names of the classes, the number of every value, and notes. rows: the example that each value belongs to."""
    if not len(values):
        if table.names is None:
            raise ValueError(f"{table.store.name(0)} and all others are of no class at all")
        return table.names, values, ()
    if values.dtype == np.int64:
        return _by_number(values, rows, table)
    return _by_name(values, rows, table)


def _by_number(
    values: np.ndarray, rows: np.ndarray, table: Table
) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
    low, high = int(values.min()), int(values.max())
    limit = len(table.names) if table.names else MAX_CLASSES
    if low < 0 or high >= limit:
        at = int(values.argmin() if low < 0 else values.argmax())
        raise ValueError(
            f"{table.store.name(int(rows[at]))} has the label {values[at]}; labels go from 0 to {limit - 1}, unless they are "
            f"numbers to predict (--data.columns.target number)"
        )
    if table.names is not None:
        return table.names, values, ()
    names = tuple(str(number) for number in range(high + 1))
    used = len(np.unique(values))
    if used == len(names):
        return names, values, ()
    note = f"labels go from {low} to {high}; {used} of these {len(names)} classes occur"
    return names, values, (note,)


def _by_name(
    values: np.ndarray, rows: np.ndarray, table: Table
) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
    train = values[table.parts[rows] == "train"]
    names = tuple(sorted(set(train if len(train) else values)))
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted(set(values) - set(names))
    if unknown:
        row = int(rows[np.flatnonzero(values == unknown[0])[0]])
        known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise ValueError(
            f"{table.store.name(row)} is of the class {unknown[0]!r}, which the training part does not have ({known}); "
            f"rename or remove it"
        )
    return names, np.array([number[value] for value in values], dtype=np.int64), ()


def without_secret_parts(table: Table) -> Table:
    """The Table without the parts whose labels are kept secret: -1 throughout, as the hub has ImageNet's test part.

    Their rows get no part. If there is no other part, nothing is left out.
    """
    labels = table.labels
    classes = isinstance(labels, np.ndarray) and labels.dtype == np.int64
    if table.names is None or not classes or not (labels == -1).any():
        return table
    known = set(table.parts[labels != -1])
    secret = sorted(set(table.parts) - known)
    if not known or not secret:
        return table
    rows = np.isin(table.parts, secret)
    note = f"left out: the part {' and '.join(secret)}, whose labels are all -1, that is, not told"
    return table._replace(
        labels=np.where(rows, 0, labels),
        parts=np.where(rows, None, table.parts),
        notes=(*table.notes, note),
    )
