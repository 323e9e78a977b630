"""Tables with a column of zeros and ones for each class: the commonest form of several classes an image.

A cell may also say that nothing is known: empty, "?", -1, NaN and the like.

Legend: N rows, K classes.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vitkit.data.sources.tables import Columns
from vitkit.data.sources.targets import UNKNOWN_WORDS, Lists, as_number
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

NO, YES, UNKNOWN = 0, 1, 2
# Cells whose meaning depends on the others: an empty cell is no beside crosses, else unknown; and -1 is no
# where there is no 0, else unknown.
EMPTY, CROSS, MINUS = 3, 4, 5
WORDS = {
    **dict.fromkeys(UNKNOWN_WORDS, UNKNOWN),
    **dict.fromkeys(("false", "no", "n"), NO),
    **dict.fromkeys(("true", "yes", "y"), YES),
    "": EMPTY,
    "x": CROSS,
    "-1": MINUS,
}
# Columns that are no class, although they may hold zeros and ones only.
NO_CLASSES = frozenset(
    "fold folds group id idx index kfold partition row split subset width height "
    "checked reviewed verified is_valid is_train is_test is_val".split()
)
_NO_CLASS = re.compile(r"__\w*__|unnamed: \d+")  # of pandas, which names an index so
FEWEST = 2  # columns that are taken for classes without being named


class Indicators(NamedTuple):
    """What columns of zeros and ones say of the rows of a table."""

    row_labels: np.ndarray | Lists
    labels: tuple[str, ...]
    """Names of the classes: of the columns."""
    notes: tuple[str, ...]


def flag_of(value: object) -> int | None:
    """NO, YES, UNKNOWN, EMPTY, CROSS or MINUS, as a cell says it; None for a cell that says anything else."""
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
    """Whether a column of this name is no class, although it may hold zeros and ones only."""
    name = column.strip().casefold()
    return name in NO_CLASSES or _NO_CLASS.fullmatch(name) is not None


IS_VALID = (
    "is_valid"  # as fastai calls the column that says which images are of the validation part
)


def parts_of_valid(values: Sequence) -> np.ndarray | None:
    """The part of each row, by a column that says yes for the validation part: (N,) objects. None for
    a column that says anything else, or the same of all rows."""
    flag = {value: flag_of(value) for value in set(values)}
    if set(flag.values()) != {NO, YES}:
        return None
    names: dict[int | None, str] = {NO: "train", YES: "val"}
    return np.array([names[flag[value]] for value in values], dtype=object)


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
        self.passed_over: list[str] = []  # columns that are no classes, as their names say

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
        flags = cls([name for name in candidates if not is_no_class(name)], False, where)
        flags.passed_over = [name for name in candidates if is_no_class(name)]
        return flags

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

    def found(self, target: str, first_rows: np.ndarray | None = None) -> Indicators | None:
        """What the columns say; None if there are none.

        target: as Columns has it.
        first_rows: int64 (N,), for each row the first one of the same image, whose classes are those of
            all its rows; None if each row is an image of its own.
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
            table = _joined(table, first_rows)
        notes = (f"classes are the columns of zeros and ones: {some(names, 10)}", *notes)
        if self.passed_over:
            listed = ", ".join(self.passed_over)
            notes += (
                f"not taken for classes, as their names say something else: {listed} "
                "(`data.columns.label` names the columns of the classes)",
            )

        # One class each, unless somebody says that there may be several
        chosen = (table == YES).sum(1)
        one_each = (chosen == 1).all() and not (table == UNKNOWN).any()
        if target == "class" and not one_each:
            self._refuse_several(table, names)
        if one_each and target != "classes":
            return Indicators(table.argmax(1).astype(np.int64), names, notes)
        unknown = None
        if (table == UNKNOWN).any():
            unknown = _lists(table == UNKNOWN)
            notes += _about_no_examples(table, names)
        lists = _lists(table == YES)
        return Indicators(Lists(lists.values, lists.ends, unknown), names, notes)

    def _refuse_several(self, table: np.ndarray, names: tuple[str, ...]) -> None:
        """Raises VitkitError for the first row that is not of exactly one class."""
        is_unknown = (table == UNKNOWN).any(1)
        row = int(np.flatnonzero(((table == YES).sum(1) != 1) | is_unknown)[0])
        what = f"has not exactly one class among {some(names, 10)}"
        if is_unknown[row]:
            column = names[int(np.flatnonzero(table[row] == UNKNOWN)[0])]
            what = f"does not say whether it is of the class {column!r}"
        raise BadData(
            f"{self.where} row {row} {what}; for several classes an image: "
            "`data.columns.target='classes'`"
        )


def _resolved(
    columns: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Columns of NO, YES and UNKNOWN only, and a note on what -1 and empty cells are taken for."""
    notes: tuple[str, ...] = ()
    # CelebA writes -1 and 1, and CheXpert 0 and 1, and -1 where it is uncertain
    signed = [name for name, flags in columns.items() if (flags == MINUS).any()]
    held = {int(flag) for name in signed for flag in np.unique(columns[name])}
    minus = UNKNOWN
    if YES in held and held <= {MINUS, YES}:
        minus = NO
        notes += (f"-1 is taken for no: beside it there is 1 and no 0, in {some(signed, 10)}",)

    crossed = [name for name, flags in columns.items() if (flags == CROSS).any()]
    held = {int(flag) for name in crossed for flag in np.unique(columns[name])}
    empty = UNKNOWN
    if crossed and not held & {NO, YES, MINUS}:
        empty = NO
        notes += (f"an empty cell is taken for no: others hold crosses, in {some(crossed, 10)}",)

    resolved = {}
    for name, flags in columns.items():
        meaning = np.array([NO, YES, UNKNOWN, UNKNOWN, YES, minus], np.uint8)
        if name in crossed:
            meaning[EMPTY] = empty
        resolved[name] = meaning[flags]
    return resolved, notes


def _joined(table: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
    """What all rows of an image say together: YES if one does, else UNKNOWN if one does. (N, K)"""
    rank = np.array([0, 2, 1], np.uint8)  # of NO, YES and UNKNOWN; its own inverse
    ranks = rank[table]
    np.maximum.at(ranks, first_rows, rank[table])
    return rank[ranks[first_rows]]


def _about_no_examples(table: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note on classes of which every image is, or may be; none if there are no such."""
    without = [name for name, flags in zip(names, table.T, strict=True) if not (flags == NO).any()]
    if not without:
        return ()
    return (
        f"no image is known not to be of {some(without, 10)}: if an empty cell or "
        "-1 says so, write 0 there",
    )


def _lists(chosen: np.ndarray) -> Lists:
    """The numbers of the columns that are chosen in each row, of bool (N, K)."""
    _, values = np.nonzero(chosen)
    return Lists(values.astype(np.int64), np.cumsum(chosen.sum(1), dtype=np.int64))
