"""Tables with several rows of the same image: one for each of its classes, or by mistake.

Legend: N rows.
"""

import numpy as np

from vitkit.data.sources.indicators import Indicators
from vitkit.data.sources.tables import Columns
from vitkit.data.sources.targets import Lists, Values, Where, as_row_labels, row_or_line
from vitkit.system.console.text import counted_kind
from vitkit.system.errors import BadData


def first_rows_of(names: list) -> np.ndarray | None:
    """For each row the first row of the same image, int64 (N,); None if no image has several rows."""
    if len(set(names)) == len(names):
        return None
    first: dict = {}
    return np.array([first.setdefault(name, row) for row, name in enumerate(names)], np.int64)


def check_same(where: Where, column: str, values: np.ndarray, first_rows: np.ndarray) -> None:
    """Raise VitkitError if two rows of one image have different values."""
    differ = np.flatnonzero(values != values[first_rows])
    if len(differ):
        row = int(differ[0])
        both = f"{row_or_line(where, first_rows[row])} and {row_or_line(where, row)}"
        raise BadData(
            f"{where} {both} are of the same image, but have "
            f"different values of {column}; an image belongs to one part"
        )


def listed_values(values: Values) -> list:
    """The label of each row as a Python value."""
    if isinstance(values, Lists):
        return [values.row(i).tolist() for i in range(len(values))]
    if isinstance(values, np.ndarray):
        return values.tolist()
    return list(values)


def answers_of(indicators: Indicators) -> list[str]:
    """The classes that columns of zeros and ones give each row, as text."""
    names = indicators.labels
    answers = []
    for value in listed_values(indicators.row_labels):
        numbers = value if isinstance(value, list) else [value]
        answers.append(", ".join(names[number] for number in numbers) or "none")
    return answers


def repeated(values: list, first_rows: np.ndarray) -> list:
    """Repeat the value of each image for all of its rows. values: in the order of first rows."""
    images = np.unique(first_rows, return_inverse=True)[1]
    return [values[image] for image in images.tolist()]


def joined_rows(
    values: Values, first_rows: np.ndarray, where: Where, columns: Columns
) -> list[list]:
    """The classes of each image, joined from all of its rows."""
    lists = as_row_labels(values, where, "classes", columns.separator)
    assert isinstance(lists, Lists)
    joined: dict[int, dict] = {}
    for row, first in enumerate(first_rows.tolist()):
        joined.setdefault(first, {}).update(dict.fromkeys(lists.row(row).tolist()))
    return [list(classes) for classes in joined.values()]


def about_repeated(names: list, values: list, first_rows: np.ndarray) -> tuple[str, ...]:
    """A note on images that have several rows with different labels; none without such images."""
    differ = [row for row, first in enumerate(first_rows.tolist()) if values[row] != values[first]]
    if not differ:
        return ()
    images = len(set(first_rows[differ].tolist()))
    row = differ[0]
    first = first_rows[row]
    return (
        f"{counted_kind(images, 'images')} in several rows with different labels, such as {names[row]} "
        f"({values[first]}, {values[row]}): if an image may have several classes, set "
        "`data.columns.target='classes'`, which joins its rows",
    )
