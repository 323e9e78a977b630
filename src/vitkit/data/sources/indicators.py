"""Tables with a column of zeros and ones for each class, the most common form of several classes an image.

A cell may also mean "unknown": empty, "?", -1, NaN and similar.

Legend: N rows, K classes.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vitkit.data.sources.tables import Columns
from vitkit.data.sources.targets import UNKNOWN_WORDS, Lists, Where, as_number, at_row
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

NO, YES, UNKNOWN = 0, 1, 2
# Cells whose meaning depends on other cells: empty means no beside crosses, otherwise unknown; -1 means
# no where there is no 0, otherwise unknown
EMPTY, CROSS, MINUS = 3, 4, 5
WORDS = {
    **dict.fromkeys(UNKNOWN_WORDS, UNKNOWN),
    **dict.fromkeys(("false", "no", "n"), NO),
    **dict.fromkeys(("true", "yes", "y"), YES),
    "": EMPTY,
    "x": CROSS,
    "-1": MINUS,
}
# Names of columns that are not classes, although they may hold only zeros and ones
NO_CLASSES = frozenset(
    "fold folds group id idx index kfold partition row split subset width height "
    "checked reviewed verified is_valid is_train is_test is_val".split()
)
_NO_CLASS = re.compile(r"__\w*__|unnamed: \d+")  # pandas names the column of an index so
FEWEST = 2  # fewest columns that are read as classes without being named


class Indicators(NamedTuple):
    """Targets from columns of zeros and ones."""

    row_labels: np.ndarray | Lists
    labels: tuple[str, ...]
    """Names of the classes, which are those of the columns."""
    notes: tuple[str, ...]


def flag_of(value: object) -> int | None:
    """The meaning of a cell: NO, YES, UNKNOWN, EMPTY, CROSS or MINUS; None for any other cell."""
    if value is None:
        return EMPTY
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in WORDS:
            return WORDS[word]
    number = as_number(value)
    if number is None:
        return None
    if number != number:  # NaN
        return EMPTY
    return {0.0: NO, 1.0: YES, -1.0: MINUS}.get(number)


def is_no_class(column: str) -> bool:
    """Whether a column of this name is not a class, although it may hold only zeros and ones."""
    name = column.strip().casefold()
    return name in NO_CLASSES or _NO_CLASS.fullmatch(name) is not None


IS_VALID = "is_valid"  # fastai's name of the column that marks the validation part


def parts_of_valid(values: Sequence) -> np.ndarray | None:
    """The part of each row, from a column that is YES for the validation part: (N,) objects. None for a
    column with other values, or with equal values in all rows."""
    flag = {value: flag_of(value) for value in set(values)}
    if set(flag.values()) != {NO, YES}:
        return None
    names: dict[int | None, str] = {NO: "train", YES: "val"}
    return np.array([names[flag[value]] for value in values], dtype=object)


def named_columns(columns: Columns, present: Sequence[str]) -> tuple[str, ...]:
    """The columns of classes, if `columns.label` names several; otherwise (). Raises VitkitError for a
    column that does not exist."""
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
    """The flags of columns, collected row by row. A column that is not named by the user is dropped at the
    first cell that is not a flag."""

    def __init__(self, columns: Iterable[str], are_named: bool, where: Where):
        """where: name of the table in error messages."""
        self.columns = {name: bytearray() for name in columns}
        self.are_named = are_named
        self.where = where
        self.passed_over: list[str] = []  # columns whose names are not those of classes

    @classmethod
    def among(
        cls, columns: Columns, present: Sequence[str], others: Iterable[str | None], where: Where
    ) -> "Flags":
        """The columns that the user names; otherwise all that may be classes. others: columns that have
        another meaning."""
        named = named_columns(columns, present)
        if named:
            return cls(named, True, where)
        if columns.label is not None or columns.target not in ("auto", "class", "classes"):
            return cls((), False, where)
        taken = {*others}
        candidates = [name for name in present if name not in taken]
        flags = cls([name for name in candidates if not is_no_class(name)], False, where)
        flags.passed_over = [name for name in candidates if is_no_class(name)]
        return flags

    def add(self, row: dict) -> None:
        """Add a row of the table. Raises VitkitError for a cell of a named column that is not a flag."""
        for name in list(self.columns):
            flag = flag_of(row.get(name))
            if flag is not None:
                self.columns[name].append(flag)
            elif self.are_named:
                number = len(self.columns[name])
                raise BadData(
                    f"{at_row(self.where, number)} has {row.get(name)!r} in column {name!r}; a column of a "
                    "class holds 0 and 1, and is empty where that is unknown"
                )
            else:
                del self.columns[name]

    def found(self, target: str, first_rows: np.ndarray | None = None) -> Indicators | None:
        """The targets that the columns give; None if there are no columns of classes.

        target: see `Columns.target`.
        first_rows: int64 (N,), for each row the first row of the same image. An image gets the classes of
            all its rows. None if each row is an image of its own.
        """
        columns = {name: np.frombuffer(flags, np.uint8) for name, flags in self.columns.items()}
        columns, notes = _resolved(columns)
        flags = {}
        for name, values in columns.items():
            if self.are_named or (values != UNKNOWN).any():
                flags[name] = values
        if not flags or (not self.are_named and len(flags) < FEWEST):
            return None
        names = tuple(flags)
        table = np.stack(list(flags.values()), 1)  # (N, K)
        if first_rows is not None:
            table = _combine_rows(table, first_rows)
        notes = (f"classes are the columns of zeros and ones: {some(names, 10)}", *notes)
        if self.passed_over:
            listed = ", ".join(self.passed_over)
            notes += (
                f"not read as classes, because of their names: {listed} "
                "(`data.columns.label` names the columns of the classes)",
            )

        # One class each, unless the user asks for several
        chosen = (table == YES).sum(1)
        one_each = (chosen == 1).all() and not (table == UNKNOWN).any()
        if target == "class" and not one_each:
            self._refuse_several(table, names)
        if one_each and target != "classes":
            return Indicators(table.argmax(1).astype(np.int64), names, notes)
        unknown = None
        if (table == UNKNOWN).any():
            unknown = _lists(table == UNKNOWN)
            notes += _note_on_missing_negatives(table, names)
        lists = _lists(table == YES)
        return Indicators(Lists(lists.values, lists.ends, unknown), names, notes)

    def _refuse_several(self, table: np.ndarray, names: tuple[str, ...]) -> None:
        """Raise VitkitError for the first row that is not of exactly one class."""
        is_unknown = (table == UNKNOWN).any(1)
        row = int(np.flatnonzero(((table == YES).sum(1) != 1) | is_unknown)[0])
        what = f"has not exactly one class among {some(names, 10)}"
        if is_unknown[row]:
            column = names[int(np.flatnonzero(table[row] == UNKNOWN)[0])]
            what = f"does not say whether it is of the class {column!r}"
        raise BadData(
            f"{at_row(self.where, row)} {what}; if images may have several classes, set "
            "`data.columns.target='classes'`"
        )


def _resolved(
    columns: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Convert flags to NO, YES and UNKNOWN, with a note on the meaning of -1 and of empty cells."""
    notes: tuple[str, ...] = ()
    # CelebA writes -1 and 1, and CheXpert 0 and 1, and -1 where it is uncertain
    signed = [name for name, flags in columns.items() if (flags == MINUS).any()]
    held = {int(flag) for name in signed for flag in np.unique(columns[name])}
    minus = UNKNOWN
    if YES in held and held <= {MINUS, YES}:
        minus = NO
        notes += (f"-1 is read as no: beside it there is 1 and no 0, in {some(signed, 10)}",)

    crossed = [name for name, flags in columns.items() if (flags == CROSS).any()]
    held = {int(flag) for name in crossed for flag in np.unique(columns[name])}
    empty = UNKNOWN
    if crossed and not held & {NO, YES, MINUS}:
        empty = NO
        notes += (f"an empty cell is read as no: others hold crosses, in {some(crossed, 10)}",)

    resolved = {}
    for name, flags in columns.items():
        meaning = np.array([NO, YES, UNKNOWN, UNKNOWN, YES, minus], np.uint8)
        if name in crossed:
            meaning[EMPTY] = empty
        resolved[name] = meaning[flags]
    return resolved, notes


def _combine_rows(table: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
    """Combine all rows of an image: YES if one has it, otherwise UNKNOWN if one has it. (N, K)"""
    rank = np.array([0, 2, 1], np.uint8)  # of NO, YES and UNKNOWN; its own inverse
    ranks = rank[table]
    np.maximum.at(ranks, first_rows, rank[table])
    return rank[ranks[first_rows]]


def _note_on_missing_negatives(table: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note on classes that no image is known not to have; empty if there are none."""
    without = [name for name, flags in zip(names, table.T, strict=True) if not (flags == NO).any()]
    if not without:
        return ()
    return (
        f"no image is known not to be of {some(without, 10)}: if an empty cell or "
        "-1 means that, write 0 there",
    )


def _lists(chosen: np.ndarray) -> Lists:
    """For each row of bool (N, K), the numbers of the columns that are True."""
    _, values = np.nonzero(chosen)
    return Lists(values.astype(np.int64), np.cumsum(chosen.sum(1), dtype=np.int64))
