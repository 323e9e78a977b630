"""The table that every data set is read into: its columns, its parts, and the numbers of its classes.

Legend: N examples, M classes of all examples together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from vitkit.data.sources.class_names import composed, notes_on
from vitkit.data.sources.stores import Store
from vitkit.data.sources.targets import (
    NO_TARGET,
    Lists,
    RowLabels,
    TargetKind,
    Where,
    at_row,
    nothing_for,
)
from vitkit.system.console.text import counted_kind, some
from vitkit.system.errors import BadData, BadSettings

IMAGE = ("image", "img", "pixels", "jpg", "png")
PATH = (*IMAGE, "path", "file", "filename", "file_name", "image_path", "filepath")
LABEL = ("label", "labels", "class", "target", "y", "category", "cls", "fine_label")
# Usual names of the parts of a data set: what they mean here
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
PART_NAMES = ("train", "val", "test")
MAX_CLASSES = 1_000_000
Target = Literal["auto", "class", "classes", "number", "none"]


@dataclass(frozen=True)
class Columns:
    """Names and meanings of the columns of a table. Where one is None, it is found by its usual names."""

    image: str | None = None
    """Name of the column with the images, or in a manifest with their paths."""
    label: str | None = None
    """Name of the column with the labels; or the names of several columns of zeros and ones, one for
    each class, with commas between."""
    target: Target = "auto"
    """Meaning of a label: class, the name or number of one class; classes, several classes as a
    list, as "cat|dog", "cat;dog" or "cat, dog"; number, a number to predict; none, labels are not read. auto
    reads lists as several classes, and text too if splitting it gives fewer classes, and reads
    fractions as numbers to predict."""
    group: str | None = None
    """Name of a column that says which images belong together, such as those of one plant or one
    patient: vitkit keeps them on the same side of every split that it makes."""
    separator: str | None = None
    """What stands between the classes of one image in a cell, such as " " or "/". None: "|", ";" or, for
    the target classes, ","."""
    level: int | None = None
    """How many folders down the class folders of a folder of images are: 1 for PHOTOS/CLASS/IMAGE, 2
    for PHOTOS/2022/CLASS/IMAGE. None: it is seen from the tree."""

    def __post_init__(self):
        for name in ("image", "label", "group", "separator"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise BadSettings(f"`data.columns.{name}` is {value!r}; it is text, or None")
        if self.separator == "":
            raise BadSettings(
                "`data.columns.separator` is empty; it is what stands between the classes of one image in "
                "a cell, such as '|'; leave it out if images have one class each"
            )
        if self.target not in get_args(Target):
            raise BadSettings(
                f"`data.columns.target` is {self.target!r}; it is one of {', '.join(get_args(Target))}"
            )


def reading_arguments(
    columns: Columns, groups: str = "auto", split_seed: int = 0
) -> dict[str, Any]:
    """The arguments of a suggested call that reads a data set in the same way; None for a default."""
    return {
        "columns": columns,
        "split_seed": split_seed or None,
        "groups": None if groups == "auto" else groups,
    }


class Table(NamedTuple):
    """A data set after it was read: one row per example of all parts."""

    store: Store
    row_labels: RowLabels
    """Label of each row before numbering, see RowLabels."""
    parts: np.ndarray
    """(N,) objects: "train", "val" or "test"; "" if the data set has no parts; None for a row that is
    left out."""
    labels: tuple[str, ...] | None
    """Names of the classes, if rows have class numbers and the data set names them."""
    notes: tuple[str, ...]
    """Notes for the user."""
    groups: np.ndarray | None = None
    """(N,) objects: value of each row in the column of groups; None if there is no such column."""


def image_column(
    columns: Columns, present: Sequence[str], known: Sequence[str], typed: Sequence[str] = ()
) -> str:
    """The column that holds the images: see `pick`. Raises VitkitError if there is none."""
    name = pick(columns.image, known, present, "columns.image", typed)
    if name is None:
        raise BadData(
            f"none of the columns {', '.join(present)} is called {', '.join(known)}; "
            f"name the right one with `data.columns.image`"
        )
    return name


def label_column(
    columns: Columns, present: Sequence[str], typed: Sequence[str] = (), is_needed: bool = True
) -> str | None:
    """The column that holds the labels: see `pick`.

    Returns None if there is none, and for target "none". Raises VitkitError if there is none although
    it is needed and the user set a kind of target.
    """
    if columns.target == "none":
        return None
    name = pick(columns.label, LABEL, present, "columns.label", typed)
    if name is None and columns.target != "auto" and is_needed:
        raise BadData(
            f"none of the columns {', '.join(present)} is called {', '.join(LABEL)}; "
            f"name the right one with `data.columns.label`"
        )
    return name


def group_column(columns: Columns, present: Sequence[str]) -> str | None:
    """The column that defines which images belong together; None if none is set. Raises VitkitError if the
    column does not exist."""
    return pick(columns.group, (), present, "columns.group")


def numbered_groups(values: Sequence | np.ndarray) -> np.ndarray:
    """A group number for each row, int64 (N,): equal for equal values, and unique for a missing value."""
    numbers: dict = {}
    groups = np.arange(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if value is not None and value == value and str(value).strip():  # not NaN
            groups[row] = numbers.setdefault(str(value).strip(), row)
    return groups


def pick(
    requested: str | None,
    known: Sequence[str],
    present: Sequence[str],
    flag: str,
    typed: Sequence[str] = (),
) -> str | None:
    """Choose a column: the one that the user set, otherwise the only one with a known name, otherwise the
    only one of the type.

    flag: the setting that names the column.
    typed: columns that have this role by their type or by a header.
    Returns None if there is no such column. Raises VitkitError, with the names of all columns, if there
    are several, or if the one that the user set does not exist.
    """
    listed = ", ".join(present)
    if requested is not None:
        if requested not in present:
            raise BadData(
                f"there is no column {requested!r}; the columns are {listed}; correct `data.{flag}`"
            )
        return requested
    named = [name for name in present if name.lower() in known]
    for candidates in (named, list(typed)):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise BadData(
                f"several columns may be meant: {', '.join(candidates)} (of {listed}); "
                f"choose one with `data.{flag}`"
            )
    return None


def note_unlabelled(where: str, present: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """The note on a table without a column of labels; empty if the target is "none"."""
    if columns.target == "none":
        return ()
    note = (
        f"{where} is unlabelled: none of its columns {', '.join(present)} is called "
        f"{', '.join(LABEL)}; if one holds the labels, name it with `data.columns.label`"
    )
    return (note,)


def note_left_out(left_out: Counter) -> tuple[str, ...]:
    """The note on what was left out, by kind; empty if nothing was."""
    if not left_out:
        return ()
    counts = [counted_kind(count, kind) for kind, count in sorted(left_out.items())]
    return (f"left out: {', '.join(counts)}",)


# Parts


def as_parts(values: Sequence, where: Where) -> np.ndarray:
    """The part of every row, from any of its usual names: (N,) objects. Raises VitkitError, with the row,
    for any other name."""
    parts = [PARTS.get(str(value).lower(), "") for value in values]
    if "" in parts:
        row = parts.index("")
        raise BadData(
            f"{at_row(where, row)} belongs to the part {values[row]!r}; "
            f"the parts are {', '.join(PARTS)}"
        )
    return np.array(parts, dtype=object)


def without_secret_parts(table: Table) -> Table:
    """The table without parts whose labels are secret: -1 throughout, as in ImageNet's test part on the
    hub. Their rows get no part. If there is no other part, the table is unchanged."""
    row_labels = table.row_labels
    if not isinstance(row_labels, np.ndarray) or row_labels.dtype != np.int64:
        return table
    if table.labels is None:
        return table
    labelled_parts = set(table.parts[row_labels != -1])
    secret_parts = sorted(set(table.parts) - labelled_parts)
    if not labelled_parts or not secret_parts:
        return table
    is_secret = np.isin(table.parts, secret_parts)
    parts = " and ".join(secret_parts)
    note = f"left out: the part {parts}, whose labels are all -1 because they are secret"
    public_parts = table.parts.copy()
    public_parts[is_secret] = None
    return table._replace(
        row_labels=np.where(is_secret, 0, row_labels),
        parts=public_parts,
        notes=(*table.notes, note),
    )


# Numbers of classes


class Numbered(NamedTuple):
    """Targets in the form of a Source."""

    target_kind: TargetKind
    targets: np.ndarray | Lists
    labels: tuple[str, ...]
    """Names of the classes."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""
    unlearned: str = ""
    """A sentence about classes that the training part lacks; empty if there are none."""


def numbered(table: Table) -> Numbered:
    """The targets of a table, with numbered classes.

    Named classes are numbered in the order of their sorted names, those of the training part first if
    there is one. Class numbers are unchanged. Raises VitkitError for a number without a name.
    """
    row_labels = table.row_labels
    if row_labels is None:
        no_targets = np.full(len(table.parts), NO_TARGET, np.int64)
        return Numbered("none", no_targets, ())
    if isinstance(row_labels, Lists):
        unknown = row_labels.unknown or nothing_for(len(row_labels))
        values = row_labels.values
        owners = row_labels.owners
        if len(unknown.values):
            values = np.concatenate([values, unknown.values])
            owners = np.concatenate([owners, unknown.owners])
        classes = _number_classes(values, owners, table)
        assert isinstance(classes.targets, np.ndarray)  # a number for each value
        numbers = classes.targets.astype(np.int32)
        known = len(row_labels.values)
        lists = Lists(numbers[:known], row_labels.ends)
        if known < len(numbers):
            lists = replace(lists, unknown=Lists(numbers[known:], unknown.ends))
        least = lists.counts.min()
        most = lists.counts.max()
        how_many = f"{least}"
        if least != most:
            how_many = f"{least} to {most}"
        listed = some(classes.labels, 10)
        note = f"every image has {how_many} of {len(classes.labels)} classes ({listed})"
        notes = (note, *classes.notes)
        if lists.unknown is not None:
            pairs = len(lists) * len(classes.labels)
            notes += (
                f"{len(numbers) - known:,} of {pairs:,} labels, one for each image and class, are unknown: "
                "they are ignored in losses and metrics",
            )
        return classes._replace(target_kind="classes", targets=lists, notes=notes)
    if row_labels.dtype == np.float64:
        note = f"labels are numbers to predict, from {row_labels.min():g} to {row_labels.max():g}"
        return Numbered("number", row_labels.astype(np.float32), (), (note,))
    return _number_classes(row_labels, np.arange(len(row_labels)), table)


def _number_classes(values: np.ndarray, owners: np.ndarray, table: Table) -> Numbered:
    """Number the classes of all values. Raises VitkitError for a number that is not a class.

    values: numbers int64 (M,) or names of classes.
    owners: the example of each value, (M,).
    """
    if not len(values):
        if table.labels is None:
            raise BadData(f"{table.store.name(0)} and all others have no class at all")
        return Numbered("class", values, table.labels)
    if values.dtype != np.int64:
        return _number_names(values, owners, table)

    # Numbers of classes are unchanged
    low = int(values.min())
    high = int(values.max())
    limit = len(table.labels or ()) or MAX_CLASSES
    if low < 0 or high >= limit:
        worst = int(values.argmax())
        if low < 0:
            worst = int(values.argmin())
        image = table.store.name(int(owners[worst]))
        raise BadData(
            f"{image} has the label {values[worst]}; labels go from 0 to {limit - 1}, unless they "
            f"are numbers to predict (`data.columns.target='number'`)"
        )
    if table.labels is not None:
        return Numbered("class", values, table.labels)

    # Without names a class is named by its number, and some classes may not occur
    names = tuple(map(str, range(high + 1)))
    used = len(np.unique(values))
    if used == len(names):
        return Numbered("class", values, names)
    note = (
        f"labels go from {low} to {high}; {used} of these {len(names)} classes occur (if they are "
        "numbers to predict: `data.columns.target='number'`)"
    )
    return Numbered("class", values, names, (note,))


def _number_names(values: np.ndarray, owners: np.ndarray, table: Table) -> Numbered:
    """Replace names of classes by numbers.

    Classes that only a test or validation part has come last, so that the classes of the training part
    have the numbers that a head for them uses.
    """
    values, notes = composed(values)
    notes = (*notes, *notes_on(values, isinstance(table.row_labels, Lists)))
    train_values = values[table.parts[owners] == "train"]
    if not len(train_values):  # there is no training part
        train_values = values
    learned = sorted(set(train_values))
    others = sorted(set(values) - set(learned))
    names = (*learned, *others)
    number_of = {name: i for i, name in enumerate(names)}
    numbers = np.array([number_of[value] for value in values], dtype=np.int64)
    unlearned = ""
    if others:
        first = int(np.flatnonzero(values == others[0])[0])
        unlearned = (
            f"{table.store.name(int(owners[first]))} is of the class {others[0]!r}, which the "
            f"training part does not have ({some(learned, 10)})"
        )
        if len(others) > 1:
            unlearned += f", nor {some(others[1:], 10)}"
    return Numbered("class", numbers, names, notes, unlearned)
