"""Tables with a column for each class, 1 for an image of the class and else 0: one class an image where every row
has a single 1, else several."""

from collections.abc import Mapping, Sequence

from vitkit.data.sources.tables import LABEL, Columns, label_column, pick
from vitkit.data.sources.targets import RowLabels, as_row_labels
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

HAS_IT = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
UNKNOWN = {"", "-1", "-1.0", "nan", "none", "?"}


def label_columns(
    columns: Columns, present: Sequence[str], image: str, typed: Sequence[str] = ()
) -> tuple[str | None, tuple[str, ...]]:
    """The column of the labels; or None, and the columns that may be one for each class: those that
    `columns.label` lists, as "cat,dog", or without a column of labels all but the images'.

    typed: columns that their type or a header declares to be the labels.
    """
    if columns.target == "none":
        return None, ()
    if columns.label is not None and columns.label not in present and "," in columns.label:
        listed = [name.strip() for name in columns.label.split(",")]
        for name in listed:
            pick(name, (), present, "columns.label")  # raises ValueError for one that is not there
        return None, tuple(listed)
    is_named = typed or any(name.lower() in LABEL for name in present)
    if columns.label is None and columns.target != "number" and not is_named:
        return None, tuple(name for name in present if name != image and name.lower() != "split")
    return label_column(columns, present, typed), ()


class ClassColumns:
    """The columns of a table that may be one for each class, row by row. Those that hold anything else
    are no classes, unless somebody listed them. True if there are any classes."""

    def __init__(self, names: Sequence[str], columns: Columns, where: str):
        self.columns = columns
        self.where = where
        self.values: dict[str, list[bool]] = {name: [] for name in names if name != columns.group}
        self.unknown: dict[str, int] = {}
        """The first row that does not say whether its image is of a class."""

    def add(self, number: int, row: Mapping) -> None:
        """The next row. Raises ValueError for a value of a listed column that is neither 0 nor 1."""
        for name in list(self.values):
            text = str(row.get(name)).strip().lower()
            if text in HAS_IT:
                self.values[name].append(HAS_IT[text])
            elif text in UNKNOWN:
                self.values[name].append(False)
                self.unknown.setdefault(name, number)
            elif self.columns.label is None:
                del self.values[name]
            else:
                raise BadData(
                    f"{self.where} row {number} has {row.get(name)!r} in the column {name!r}; with a column "
                    "for each class, it is 1 for an image of the class, else 0"
                )

    def __bool__(self) -> bool:
        has_any = any(any(column) for column in self.values.values())
        return has_any and (self.columns.label is not None or len(self.values) > 1)

    def row_labels(self) -> tuple[RowLabels, str]:
        """The labels of all rows, and a note on where they come from. Raises ValueError for a row that
        does not say whether its image is of a class, and for one of several if one is asked for."""
        for name, number in self.unknown.items():
            if name in self.values:
                raise BadData(
                    f"{self.where} row {number} does not say whether the image is of the class {name!r}; "
                    "labels that are partly unknown are not read: fill them in, or leave such rows out"
                )
        classes = list(self.values)
        rows = []
        for row in zip(*self.values.values(), strict=True):
            rows.append([name for name, has_it in zip(classes, row, strict=True) if has_it])
        note = (
            f"the columns {some(classes, 10)} hold 0 and 1, and are read as classes (otherwise: "
            "`data.columns.label`)"
        )
        several = next((number for number, row in enumerate(rows) if len(row) != 1), None)
        if self.columns.target == "class" and several is not None:
            raise BadData(
                f"{self.where} row {several} is of {len(rows[several])} classes, and is to be of one"
            )
        if several is None and self.columns.target != "classes":
            return as_row_labels([row[0] for row in rows], self.where, "class"), note
        return as_row_labels(rows, self.where, "classes"), note
