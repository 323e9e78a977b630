"""From labels to targets: classes get their numbers.

Legend: N examples, M classes of all examples together.
"""

from typing import NamedTuple

import numpy as np

from vitkit.data.tables import Table
from vitkit.data.targets import NO_TARGET, Lists, Target

MAX_CLASSES = 1_000_000


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
