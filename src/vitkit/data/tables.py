"""What every kind of data set is read into, and which columns of a table hold images and labels."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.stores import Store
from vitkit.system.remote import plain

IMAGE = ("image", "img", "pixels", "jpg", "png")
PATH = (*IMAGE, "path", "file", "filename", "file_name", "image_path", "filepath")
LABEL = ("label", "labels", "class", "target", "y", "category", "cls", "fine_label")
# What people call the parts of a data set, and what they are called here.
PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
PARTS |= {"dev": "val", "test": "test", "testing": "test"}
MAX_CLASSES = 1_000_000

# NAME-train.parquet, train-00000-of-00004.parquet, NAME-train-000.tar: a name, a part and a shard, of which the part is needed.
_FILE = re.compile(
    rf"(?:(?P<name>.+)[-_.])??(?P<part>{'|'.join(PARTS)})(?:[-_]\d+(?:-of-\d+(?:-[0-9a-f]+)?)?)?",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<name>.+)[-_](?P<shard>\d+)-of-(?P<shards>\d+)(?:-[0-9a-f]+)?")


def families(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """The data sets among files that are named by part, by the name their files share: {file: part}. It may be ""."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(files):
        match = _FILE.fullmatch(Path(plain(file)).stem)
        if match and not Path(file).name.startswith("."):
            found.setdefault(match["name"] or "", {})[file] = PARTS[match["part"].lower()]
    return found


def complete(files: Iterable[str]) -> None:
    """Raises ValueError where a shard of several is missing, or there twice: half a data set trains without a complaint."""
    shards: dict[tuple[str, int], dict[int, str]] = {}
    for file in files:
        if match := _SHARD.fullmatch(Path(plain(file)).stem):
            there = shards.setdefault((match["name"], int(match["shards"])), {})
            before = there.setdefault(int(match["shard"]), file)
            if before != file and Path(before).parent == Path(file).parent:
                raise ValueError(
                    f"{before} and {Path(file).name} are the same shard of {match['name']}; remove one"
                )
    for (name, count), there in shards.items():
        if count <= 100_000 and (missing := sorted(set(range(count)) - set(there))):
            folder = next(iter(there.values())).rpartition("/")[0] or "."
            raise ValueError(
                f"{folder} has {len(there)} of {count} {name} files; number {missing[0]:05d} is missing"
            )


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold the images and the labels; None finds them by their usual names."""

    image: str | None = None
    """Name of the column with the images, or in a manifest with their paths."""
    label: str | None = None
    """Name of the column with the classes, as names or numbers."""


class Table(NamedTuple):
    """A data set as it was found: one row an example, all parts together."""

    store: Store
    labels: np.ndarray  # int64, or objects: class names
    parts: (
        np.ndarray
    )  # "train", "val" or "test" of every row, "" where the data set has no parts; None is left out
    names: tuple[str, ...] | None  # of the classes, where integer labels come with names
    notes: tuple[str, ...]


def pick(
    asked: str | None,
    known: Sequence[str],
    present: Sequence[str],
    flag: str,
    typed: Sequence[str] = (),
) -> str:
    """The column that is meant: the one asked for, else the only one with a known name, else the only one of the type.

    flag: what to set when it cannot be found. typed: columns that their type or a header declares to be it.
    Raises ValueError, naming the columns present, when there is none or more than one.
    """
    listed = ", ".join(present)
    if asked is not None:
        if asked not in present:
            raise ValueError(
                f"there is no column {asked!r}; the columns are {listed}; correct --data.{flag}"
            )
        return asked
    named = [name for name in present if name.lower() in known]
    for found in (named, list(typed)):
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"several columns may be meant: {', '.join(found)} (of {listed}); say which with --data.{flag}"
            )
    raise ValueError(
        f"none of the columns {listed} is called {', '.join(known)}; say which is meant with --data.{flag}"
    )


def as_labels(values: Sequence, where: str) -> np.ndarray:
    """Labels of one kind: int64, or class names as objects. Text that is all whole numbers counts as numbers.

    Raises ValueError, naming the row, for a label that is missing or of another kind than the others.
    """
    for row, value in enumerate(values):
        if value is None or value == "":
            raise ValueError(f"{where} row {row} has no label; fill it in or remove the row")
        if not isinstance(value, str | int) and not (
            isinstance(value, float) and value.is_integer()
        ):
            raise ValueError(
                f"{where} row {row} has the label {value!r}; a label is a whole number or a name"
            )
        if isinstance(value, str) != isinstance(values[0], str):
            raise ValueError(
                f"{where} has numbers and names as labels ({values[0]!r}, row {row}: {value!r}); choose one kind"
            )
    if values and isinstance(values[0], str):
        if not all(map(_is_number, set(values))):
            return np.array(values, dtype=object)
        values = [int(value) for value in values]
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise ValueError(
            f"{where} has labels beyond 64 bits; number the classes from 0, or name them"
        ) from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text


def as_parts(values: Sequence, where: str) -> np.ndarray:
    """The part of every row, by any of its usual names. Raises ValueError, naming the row, for another."""
    found = [PARTS.get(str(value).lower(), "") for value in values]
    if "" in found:
        row = found.index("")
        raise ValueError(
            f"{where} row {row} belongs to the split {values[row]!r}; the splits are {', '.join(PARTS)}"
        )
    return np.array(found, dtype=object)


def labelled(table: Table) -> Table:
    """The table less the parts whose labels are kept secret: -1 throughout, as the hub has ImageNet's test part.

    Their rows are of no part any more. Where nothing else is there, nothing is taken away.
    """
    if table.names is None or table.labels.dtype != np.int64 or not (table.labels == -1).any():
        return table
    known = set(table.parts[table.labels != -1])
    if not known or not (secret := sorted(set(table.parts) - known)):
        return table
    rows = np.isin(table.parts, secret)
    note = f"left out: the part {' and '.join(secret)}, whose labels are all -1, that is, not told"
    return table._replace(
        labels=np.where(rows, 0, table.labels),
        parts=np.where(rows, None, table.parts),
        notes=(*table.notes, note),
    )


def classes(table: Table) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
    """Names of the classes, the class of every row (int64), and what the user should know about them.

    Named classes are numbered in the order of their sorted names, those of the training part where there is one; numbers
    stay what they are. Raises ValueError for a class that training has not, and for a number without a name.
    """
    labels, where = table.labels, table.store.name
    if labels.dtype == np.int64:
        low, high = int(labels.min()), int(labels.max())
        limit = len(table.names) if table.names else MAX_CLASSES
        if low < 0 or high >= limit:
            row = int(labels.argmin() if low < 0 else labels.argmax())
            raise ValueError(
                f"{where(row)} has the label {labels[row]}; labels go from 0 to {limit - 1}"
            )
        names = table.names or tuple(str(number) for number in range(high + 1))
        used = len(np.unique(labels))
        sparse = table.names is None and used < len(names)
        note = f"labels go from {low} to {high}; {used} of these {len(names)} classes occur"
        return names, labels, (note,) if sparse else ()
    train = labels[table.parts == "train"]
    names = tuple(sorted(set(train if len(train) else labels)))
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted(set(labels) - set(names))
    if unknown:
        row = int(np.flatnonzero(labels == unknown[0])[0])
        raise ValueError(
            f"{where(row)} is of the class {unknown[0]!r}, which the training part does not have "
            f"({', '.join(names[:10])}{', ...' if len(names) > 10 else ''}); rename or remove it"
        )
    return names, np.array([number[label] for label in labels], dtype=np.int64), ()
