"""Labels as people write them, made of one kind: classes, lists of classes, numbers, or none.

Legend: N examples.
"""

import json
import re
from collections.abc import Callable, Sequence

import numpy as np

from vitkit.data.targets import Labels, Lists, Target, joined

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
