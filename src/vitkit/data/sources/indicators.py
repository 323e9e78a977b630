"""Tables with a column of zeros and ones for each class: the commonest form of several classes an image.

A cell may also say that nothing is known: empty, "?", NaN and the like, and -1 beside zeros. In columns of
-1 and 1 alone, -1 is no.

Legend: N rows, K classes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vitkit.data.sources.tables import Columns
from vitkit.data.sources.targets import UNKNOWN_WORDS, Lists, RowLabels, as_number
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

NO, YES, UNKNOWN, MINUS_ONE = 0, 1, 2, 3
WORDS = {"false": NO, "true": YES, "no": NO, "yes": YES} | dict.fromkeys(UNKNOWN_WORDS, UNKNOWN)
WORDS["-1"] = MINUS_ONE
# Columns that are no class, although they may hold zeros and ones only.
NO_CLASSES = frozenset(
    "checked fold folds group id idx index is_test is_train is_val is_valid kfold row split subset valid "
    "width height __index_level_0__ unnamed:_0".split()
)
FEWEST = 2  # columns that are taken for classes without being named


class Indicators(NamedTuple):
    """What columns of zeros and ones say of the rows of a table."""

    row_labels: RowLabels
    labels: tuple[str, ...]
    """Names of the classes: of the columns."""
    notes: tuple[str, ...]


def flag_of(value: object) -> int | None:
    """NO, YES, UNKNOWN or MINUS_ONE, as a cell says it; None for a cell that says anything else."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in WORDS:
            return WORDS[word]
    number = as_number(value)
    if number is None:
        return None
    if number != number:  # NaN
        return UNKNOWN
    return {0.0: NO, 1.0: YES, -1.0: MINUS_ONE}.get(number)


def named_columns(columns: Columns, present: Sequence[str]) -> tuple[str, ...]:
    """The columns of classes that `columns.label` names, if it names several; () if it does not. Raises
    VitkitError for one that is not there."""
    if columns.label is None or columns.label in present or "," not in columns.label:
        return ()
    names = tuple(name.strip() for name in columns.label.split(","))
    for name in names:
        if name not in present:
            raise BadData(
                f"there is no column {name!r}; the columns are {', '.join(present)}; correct "
                "`data.columns.label`"
            )
    if len(set(names)) < len(names):
        raise BadData(f"`data.columns.label` names a column twice: {columns.label}")
    return names


class Flags:
    """The flags of columns, row after row. Columns that are not named are given up at the first cell that
    is none."""

    def __init__(self, columns: Iterable[str], are_named: bool, where: str):
        """where: what errors call the table."""
        self.columns = {name: bytearray() for name in columns}
        self.are_named = are_named
        self.where = where

    @classmethod
    def among(
        cls, columns: Columns, present: Sequence[str], others: Iterable[str | None], where: str
    ) -> "Flags":
        """Those of the columns that are named, else of all that may be classes. others: columns that have
        another meaning."""
        named = named_columns(columns, present)
        if named:
            return cls(named, True, where)
        if columns.label is not None or columns.target not in ("auto", "class", "classes"):
            return cls((), False, where)
        taken = {*others}
        candidates = [name for name in present if name not in taken]
        candidates = [
            name
            for name in candidates
            if name.strip().casefold().replace(" ", "_") not in NO_CLASSES
        ]
        return cls(candidates, False, where)

    def add(self, row: dict) -> None:
        """Add a row of the table. Raises VitkitError for a cell of a named column that is no flag."""
        for name in list(self.columns):
            flag = flag_of(row.get(name))
            if flag is not None:
                self.columns[name].append(flag)
            elif self.are_named:
                number = len(self.columns[name])
                raise BadData(
                    f"{self.where} row {number} has {row.get(name)!r} in column {name!r}; a column of a "
                    "class holds 0 and 1, and is empty where that is unknown"
                )
            else:
                del self.columns[name]

    def found(self, target: str) -> Indicators | None:
        """What the columns say; None if there are none. target: as Columns has it."""
        # -1 is no where there is no 0 (CelebA), and unknown beside it (CheXpert)
        columns = {name: np.frombuffer(column, np.uint8) for name, column in self.columns.items()}
        has_zeros = any((values == NO).any() for values in columns.values())
        has_minus = any((values == MINUS_ONE).any() for values in columns.values())
        flags = {}
        for name, values in columns.items():
            values = np.where(values == MINUS_ONE, UNKNOWN if has_zeros else NO, values)
            if self.are_named or (values != UNKNOWN).any():
                flags[name] = values
        if not flags or (not self.are_named and len(flags) < FEWEST):
            return None
        names = tuple(flags)
        table = np.stack(list(flags.values()), 1)  # (N, K)
        notes = (f"classes are the columns of zeros and ones: {some(names, 10)}",)
        if has_minus:
            meaning = "unknown" if has_zeros else "no"
            notes = (*notes, f"-1 in these columns is taken for {meaning}")

        # One class each, unless somebody says that there may be several
        one_each = ((table == YES).sum(1) == 1).all() and not (table == UNKNOWN).any()
        if target == "class" and not one_each:
            is_wrong = ((table == YES).sum(1) != 1) | (table == UNKNOWN).any(1)
            wrong = int(np.flatnonzero(is_wrong)[0])
            raise BadData(
                f"{self.where} row {wrong} has not exactly one class among {some(names, 10)}; for several "
                "classes an image: `data.columns.target='classes'`"
            )
        if one_each and target != "classes":
            return Indicators(table.argmax(1).astype(np.int64), names, notes)
        unknown = None
        if (table == UNKNOWN).any():
            unknown = _lists(table == UNKNOWN)
        lists = _lists(table == YES)
        return Indicators(Lists(lists.values, lists.ends, unknown), names, notes)


def _lists(chosen: np.ndarray) -> Lists:
    """The numbers of the columns that are chosen in each row, of bool (N, K)."""
    _, values = np.nonzero(chosen)
    return Lists(values.astype(np.int64), np.cumsum(chosen.sum(1), dtype=np.int64))
