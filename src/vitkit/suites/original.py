"""A task made of the original data set that it is defined on: its classes by a rule, and its 1,000
images to learn from by their places in the data set.

VTAB's places count in the order of TensorFlow Datasets, which shuffles. Here they count in the order
of the files, so the images are others than VTAB's, and the result says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data import MANIFEST_SUFFIXES, SUFFIX, Columns, Table, read_table, write_selection
from vitkit.system.storage.remote import is_address

TRAIN = 800  # images to train on
SELECT = 200  # images to select on
REMARK = (
    "taken in the files' own order (VTAB counts in the order of TensorFlow Datasets), so these are "
    "not VTAB's images"
)
HUB = "hf:"


class Place(NamedTuple):
    """Where images begin: in which part, and after which share of it."""

    part: str
    share: float = 0.0


@dataclass(frozen=True)
class Original:
    """An original data set, and what a task takes of it."""

    data: str
    """Where it is below the suite's folder, or its address, hf:NAME."""
    val: Place
    """Where the 200 images to select on begin."""
    test: Place
    """Where the test images begin, which are all from there on."""
    column: str = ""
    """What is measured of each image; by default its class, found by the column's usual names."""
    rule: Callable[[float], int] | None = None
    """The class of a measurement; without one, classes are those of the data set."""

    @property
    def is_of_the_hub(self) -> bool:
        """Whether it is downloaded."""
        return self.data.startswith(HUB)


def where_is(original: Original, folder: str) -> str | None:
    """What `read_table` takes for it: an address, or below a folder NAME, NAME-train.parquet and
    its siblings, NAME.csv, NAME.jsonl. None if there is nothing."""
    if original.is_of_the_hub:
        return original.data
    if is_address(folder):
        return None
    base = Path(folder) / original.data
    for suffix in MANIFEST_SUFFIXES:
        manifest = base.with_name(base.name + suffix)
        if manifest.is_file():
            return str(manifest)
    siblings = base.parent.glob(f"{base.name}-*")
    if base.exists() or any(siblings):
        return str(base)
    return None


def select_from(original: Original, where: str, classes: int, file: Path) -> str:
    """Write the selection that is a task: what `open_parts` takes.

    classes: how many the task has.
    file: path without suffix.
    Raises ValueError for data that lack a part or a column, and for a measurement that the rule
    does not know, with its row.
    """
    columns = Columns()
    if original.rule is not None:
        columns = Columns(label=original.column, target="number")
    table = read_table(where, columns)
    rows = _rows(original, where, table)

    # The classes of the images that are taken
    numbers = {}
    labels = tuple(str(k) for k in range(classes))
    for part, chosen in rows.items():
        if original.rule is not None:
            numbers[part] = _by_rule(original, where, table, chosen)
        else:
            numbers[part] = _as_they_are(where, table, chosen, classes)
    if original.rule is None and table.labels is not None:
        labels = table.labels
    path = file.with_name(file.name + SUFFIX)
    write_selection(path, where, labels, rows, numbers)
    return str(path)


def _rows(original: Original, where: str, table: Table) -> dict[str, np.ndarray]:
    """The rows of each part of the task, int64 (N,); none is in two."""
    by_part = {}
    for part in ("train", "val", "test"):
        by_part[part] = np.flatnonzero(table.parts == part)
    without_parts = np.flatnonzero(table.parts == "")
    if len(without_parts):  # all of it is the training part
        by_part["train"] = without_parts
    for part in ("train", original.val.part, original.test.part):
        if not len(by_part[part]):
            present = ", ".join(name for name, rows in by_part.items() if len(rows))
            raise ValueError(
                f"{where} needs the part {part!r}, of which the task takes images; it has {present}"
            )

    test = _after(by_part, original.test)
    val = np.setdiff1d(_after(by_part, original.val), test)[:SELECT]
    taken = np.concatenate([val, test])
    train = np.setdiff1d(by_part["train"][:TRAIN], taken)
    rows = {"train": train, "val": val, "test": test}
    for part, chosen in rows.items():
        if not len(chosen):
            raise ValueError(f"{where} has too few images: none is left for the {part} part")
    return rows


def _after(by_part: dict[str, np.ndarray], place: Place) -> np.ndarray:
    """The rows of a part from a share of it on."""
    rows = by_part[place.part]
    return rows[round(place.share * len(rows)) :]


def _by_rule(original: Original, where: str, table: Table, rows: np.ndarray) -> np.ndarray:
    """The classes of these rows by the task's rule, int64 (N,)."""
    numbers = []
    for row in rows.tolist():
        try:
            numbers.append(original.rule(float(table.row_labels[row])))
        except ValueError as error:
            raise ValueError(
                f"{table.store.name(row)}, column {original.column!r}: {error}"
            ) from None
    return np.array(numbers, np.int64)


def _as_they_are(where: str, table: Table, rows: np.ndarray, classes: int) -> np.ndarray:
    """The class numbers of these rows. Raises ValueError for data without numbers of classes."""
    values = table.row_labels
    if not isinstance(values, np.ndarray) or values.dtype != np.int64:
        raise ValueError(f"{where} has no column of class numbers, from 0 to {classes - 1}")
    return values[rows]
