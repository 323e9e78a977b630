"""Some images of another data set, with classes and parts of their own, in one small JSON file: how
a suite makes a task of an original data set without copying an image.

NAME.selection.json   {"images": what is read, "labels": names of the classes,
                       "parts": {"train": {"rows": [...], "classes": [...]}, "test": ...}}
"""

import json
from pathlib import Path

import numpy as np

from vitkit.data.sources.tables import Columns, Table
from vitkit.system.storage.files import whole

SUFFIX = ".selection.json"
PARTS = ("train", "val", "test")


def write_selection(
    path: Path,
    images: str,
    labels: tuple[str, ...],
    rows: dict[str, np.ndarray],
    classes: dict[str, np.ndarray],
) -> None:
    """Write a selection. rows, classes: by part, int64 (N,), which rows of the data set they are,
    and their classes. Raises OSError."""
    parts = {}
    for part in rows:
        parts[part] = {"rows": rows[part].tolist(), "classes": classes[part].tolist()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as new:
        new.write_text(json.dumps({"images": images, "labels": labels, "parts": parts}), "utf-8")


def is_selection(where: str) -> bool:
    """Whether this names a selection."""
    return where.endswith(SUFFIX) and Path(where).is_file()


def images_of(where: str) -> str:
    """What a selection selects from. Raises ValueError for a file that is malformed."""
    images = _read(where)["images"]
    if not isinstance(images, str) or images.endswith(SUFFIX):
        raise ValueError(f"{where} selects from {images!r}; expected a path or an address")
    return images


def select(where: str, table: Table, columns: Columns) -> Table:
    """The table of the images that a selection names, out of all of them.

    Raises ValueError for a file that is malformed, or names rows that there are not.
    """
    if columns != Columns():
        raise ValueError(f"{where} says itself what its classes are; leave out --data.columns")
    values = _read(where)
    count = len(table.parts)
    labels = values["labels"]
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise ValueError(f"{where} has labels that are not a list of names")
    parts = np.full(count, None, dtype=object)
    classes = np.zeros(count, np.int64)
    for part, chosen in values["parts"].items():
        if part not in PARTS:
            raise ValueError(f"{where} has a part {part!r}; the parts are {', '.join(PARTS)}")
        rows = _numbers(where, part, "rows", chosen, count)
        numbers = _numbers(where, part, "classes", chosen, len(labels))
        if len(rows) != len(numbers):
            raise ValueError(f"{where} has {len(rows)} rows and {len(numbers)} classes in {part}")
        is_taken = np.array([part is not None for part in parts[rows]], bool)
        if is_taken.any() or len(np.unique(rows)) != len(rows):
            raise ValueError(f"{where} has a row of {part} twice")
        parts[rows] = part
        classes[rows] = numbers
    return table._replace(row_labels=classes, parts=parts, labels=tuple(labels))


def _numbers(where: str, part: str, key: str, chosen: dict, limit: int) -> np.ndarray:
    """int64 (N,). Raises ValueError for anything but whole numbers from 0 to limit - 1."""
    values = None
    if isinstance(chosen, dict):
        values = chosen.get(key)
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise ValueError(f"{where} has {key} of {part} that are not a list of whole numbers")
    for value in values:
        if not 0 <= value < limit:
            raise ValueError(
                f"{where} has {value} among the {key} of {part}; there are {limit:,}, from 0: "
                "the images have changed, or the file is damaged"
            )
    return np.array(values, np.int64)


def _read(where: str) -> dict:
    """The values of a selection. Raises ValueError for a file that is malformed."""
    try:
        values = json.loads(Path(where).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from None
    if not isinstance(values, dict) or {"images", "labels", "parts"} - values.keys():
        raise ValueError(f"{where} is no selection; it needs images, labels and parts")
    if not isinstance(values["parts"], dict):
        raise ValueError(f"{where} has parts that are not an object")
    return values
