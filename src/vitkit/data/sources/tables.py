"""What every kind of data set is read into, and which columns of a table hold images and labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vitkit.data.sources.stores import Store
from vitkit.data.sources.targets import RowLabels

IMAGE = ("image", "img", "pixels", "jpg", "png")
PATH = (*IMAGE, "path", "file", "filename", "file_name", "image_path", "filepath")
LABEL = ("label", "labels", "class", "target", "y", "category", "cls", "fine_label")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold the images and the labels; None finds them by their usual
    names."""

    image: str | None = None
    """Name of the column with the images, or in a manifest with their paths."""
    label: str | None = None
    """Name of the column with the labels."""
    target: Literal["auto", "class", "classes", "number", "none"] = "auto"
    """What a label is: the name or number of one class; several classes, as a list, as "cat|dog" or as
    "cat;dog"; a number to predict; or nothing, which leaves labels unread. auto takes lists for
    several classes, text too if taken apart it has fewer classes, and fractions for numbers to
    predict."""


class Table(NamedTuple):
    """A data set as it was read: one row an example, all parts together."""

    store: Store
    row_labels: RowLabels
    """What the label of each row is, as it was read: see RowLabels."""
    parts: np.ndarray
    """(N,) objects: "train", "val" or "test", "" if the data set has no parts, None for a row that
    is left out."""
    labels: tuple[str, ...] | None
    """Names of the classes, if the rows have class numbers and the names come with them."""
    notes: tuple[str, ...]
    """What the user should know."""


def image_column(
    columns: Columns, present: Sequence[str], known: Sequence[str], typed: Sequence[str] = ()
) -> str:
    """The column that holds the images: see `pick`. Raises ValueError if there is none."""
    name = pick(columns.image, known, present, "columns.image", typed)
    if name is None:
        raise ValueError(
            f"none of the columns {', '.join(present)} is called {', '.join(known)}; "
            f"say which is meant with --data.columns.image"
        )
    return name


def label_column(columns: Columns, present: Sequence[str], typed: Sequence[str] = ()) -> str | None:
    """The column that holds the labels: see `pick`.

    Returns None if there is none, and for target "none".

    Raises ValueError if there is none and the user asked for a kind of target.
    """
    if columns.target == "none":
        return None
    name = pick(columns.label, LABEL, present, "columns.label", typed)
    if name is None and columns.target != "auto":
        raise ValueError(
            f"none of the columns {', '.join(present)} is called {', '.join(LABEL)}; "
            f"say which is meant with --data.columns.label"
        )
    return name


def pick(
    requested: str | None,
    known: Sequence[str],
    present: Sequence[str],
    flag: str,
    typed: Sequence[str] = (),
) -> str | None:
    """The column that is meant: the one asked for, else the only one with a known name, else the
    only one of the type.

    flag: the setting that names it.
    typed: columns that their type or a header declares to be it.
    Returns None if there is no such column.
    Raises ValueError, naming the columns present, if there is more than one, or not the one asked
    for.
    """
    listed = ", ".join(present)
    if requested is not None:
        if requested not in present:
            raise ValueError(
                f"there is no column {requested!r}; the columns are {listed}; correct --data.{flag}"
            )
        return requested
    named = [name for name in present if name.lower() in known]
    for candidates in (named, list(typed)):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise ValueError(
                f"several columns may be meant: {', '.join(candidates)} (of {listed}); "
                f"say which with --data.{flag}"
            )
    return None


def unlabelled(where: str, present: Sequence[str]) -> str:
    """The note on a table without a column of labels."""
    return (
        f"{where} is unlabelled: none of its columns {', '.join(present)} is called "
        f"{', '.join(LABEL)}; if one holds the labels, say which with --data.columns.label"
    )
