"""Open a data set by its name: up to three Sources, the parts to train, validate and test on.

A name is: a folder of class folders, with or without train, val and test above them; a CSV, TSV or
JSON-lines manifest; a parquet file or a tar shard; several of these, by a pattern
("train-{000..146}.tar"), by NAME for NAME-train*.parquet and its siblings, or by their folder; the
address of such files (https://, s3://, gs://); "hf:NAME" for a data set of the Hugging Face hub, or a
directory that `datasets` saved; "digits", which comes with scikit-learn; or "file.py:function" for a
user's function that returns a Source, Splits, an argument of `from_dataset`, or a dictionary of these
by part.

`open_splits`, `open_source` and `open_parts` are for users' programs, and run such a function: their
caller has typed the name. vitkit itself opens data sets by `splits_at`, `source_at` and `parts_at`, which
run no code unless their caller states that a person typed the name.
"""

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitkit.data.formats import read_table
from vitkit.data.sources.datasets import dataset_table
from vitkit.data.sources.source import (
    TEST_SHARE,
    Source,
    fingerprint,
    merge_parts,
    split_off,
    subset,
)
from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import (
    Columns,
    Table,
    numbered,
    numbered_groups,
    without_secret_parts,
)
from vitkit.data.sources.targets import TargetKind
from vitkit.system.errors import BadData, WrongArgument
from vitkit.system.scripts import function_in
from vitkit.system.storage.addresses import remember, showing_no_credentials
from vitkit.system.values import given

if TYPE_CHECKING:
    from vitkit.data.sources.bursts import Bursts


@dataclass(frozen=True, eq=False)
class Splits:
    """The parts of a data set that a run uses: None for a missing part.

    A user's function may return them; `open_splits` makes a test part if there is none.
    """

    train: Source | None
    val: Source | None
    test: Source | None
    labels: tuple[str, ...]
    """Names of the classes, equal for all parts; empty unless targets are classes."""
    notes: tuple[str, ...]
    """Notes for the user on how the data set was read."""
    made_test: dict | None
    """A test part that vitkit has made: {"seed", "share", "test": [rows]}, as plain numbers; the other
    rows are for training. None if the data set has a part to measure on."""
    target_kind: TargetKind = "class"
    """Kind of the targets, equal for all parts."""
    unlearned: str = ""
    """A sentence about classes that the training part lacks, which no model can learn; empty if there are
    none."""

    @property
    def sources(self) -> dict[str, Source]:
        """The existing parts by name."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def made_fingerprint(self) -> str | None:
        """A digest that identifies a test part that vitkit has made, wherever the data set is; None if it
        has made none."""
        if self.made_test is None or self.test is None:
            return None
        return fingerprint(self.test)


class Parts(NamedTuple):
    """The parts that a data set has by itself."""

    sources: dict[str, Source]
    """"train", "val" and "test", or "" if there are no parts."""
    notes: tuple[str, ...]
    """Notes for the user on how the data set was read."""
    unlearned: str = ""
    """See `Splits.unlearned`."""


# For programs of users, who typed the name


def open_splits(
    where: str | Path,
    columns: Columns | None = None,
    seed: int = 0,
    groups: str = "auto",
    always_grouped: bool = False,
) -> Splits:
    """Open a data set with its parts. The caller has typed the name, so "file.py:function" is run.

    If there is neither a test nor a validation part, a fifth becomes the test part, chosen by seed:
    a fifth of every class, or, if targets are not one class each, a fifth of all images. Images that
    belong together stay in the same part.

    groups: which images belong together. "auto": those with equal values in the column of groups, if
        `columns` name one; otherwise photographs of one burst (bursts.py). "none": none. Any other value
        is the name of the column.
    always_grouped: look for bursts even if the data set has a part to measure on, because the caller
        divides the training part.

    Raises VitkitError, with one sentence, for a data set that does not exist or is malformed, and for an
    ambiguous name.
    """
    return splits_at(where, columns, seed, groups, always_grouped, typed=True)


def open_source(
    where: str | Path, columns: Columns | None = None, split: str | None = None
) -> Source:
    """Open one part of a data set: `split`, otherwise test or val; all of it if there are no parts.

    The caller has typed the name, so "file.py:function" is run. Class numbers are those of the whole
    data set. Raises VitkitError like open_splits, and for a part that does not exist.
    """
    return source_at(where, columns, split, typed=True)


def open_parts(where: str | Path, columns: Columns | None = None) -> Parts:
    """Open the parts that a data set has by itself. The caller has typed the name, so "file.py:function" is
    run. Raises VitkitError like open_splits."""
    return parts_at(where, columns, typed=True)


# For vitkit itself, as the name may come from a file


def splits_at(
    where: str | Path,
    columns: Columns | None = None,
    seed: int = 0,
    groups: str = "auto",
    always_grouped: bool = False,
    *,
    typed: bool = False,
) -> Splits:
    """Open a data set with its parts, see `open_splits`.

    typed: whether a person typed the name; if not, "file.py:function" raises VitkitError.
    """
    columns = grouped_columns(columns or Columns(), groups)
    parts = parts_at(where, columns, typed=typed)
    return splits_of(parts, str(where), seed, groups, always_grouped)


def source_at(
    where: str | Path,
    columns: Columns | None = None,
    split: str | None = None,
    *,
    typed: bool = False,
) -> Source:
    """Open one part of a data set, see `open_source`.

    typed: whether a person typed the name; if not, "file.py:function" raises VitkitError.
    """
    return part_of(parts_at(where, columns, typed=typed).sources, split, str(where))


def parts_at(where: str | Path, columns: Columns | None = None, *, typed: bool = False) -> Parts:
    """Open the parts that a data set has by itself, see `open_parts`.

    typed: whether a person typed the name; if not, "file.py:function" raises VitkitError.
    """
    if not isinstance(where, str | PathLike):
        raise WrongArgument(
            f"the data set is {given(where)}; give its path, address or name. from_dataset makes a Source "
            "of a data set in a program"
        )
    where = str(where)
    columns = columns or Columns()
    function = function_in(where, typed=typed)
    if function is None:
        remember(where)
        with showing_no_credentials():
            return parts_of_table(read_table(where, columns))
    returned = function()
    if isinstance(returned, Source | Splits):
        return _own_parts(returned, where, columns)
    return parts_of_table(_own_table(returned, where, columns))


def grouped_columns(columns: Columns, groups: str) -> Columns:
    """`columns`, with the column of groups that the setting `groups` of `open_splits` names."""
    if groups == "none":
        return replace(columns, group=None)
    if groups != "auto":
        return replace(columns, group=groups)
    return columns


def splits_of(
    parts: Parts, where: str, seed: int = 0, groups: str = "auto", always_grouped: bool = False
) -> Splits:
    """The parts of a data set, with a test part that is made if there is none to measure on: see
    `open_splits`."""
    sources, notes, unlearned = parts
    is_whole = set(sources) in ({""}, {"train"})
    if groups != "none" and (is_whole or always_grouped):
        sources, sentences = _grouped(sources, is_whole)
        notes += sentences
    whole = next(iter(sources.values()))
    made_test = None
    if is_whole:
        train_rows, test_rows = split_off(whole, TEST_SHARE, seed)
        sources = {"train": subset(whole, train_rows)}
        if len(test_rows):
            sources["test"] = subset(whole, test_rows)
        made_test = {"seed": seed, "share": TEST_SHARE, "test": test_rows.tolist()}
        share = f"{TEST_SHARE:.0%}"
        if whole.target_kind == "class":
            share += " of every class"
        note = (
            f"{where} has no test part: {len(test_rows):,} of {len(whole):,} images, {share}, "
            f"were set aside as one (seed {seed})"
        )
        notes = (*notes, note)
    return Splits(
        train=sources.get("train"),
        val=sources.get("val"),
        test=sources.get("test"),
        labels=whole.labels,
        notes=notes,
        made_test=made_test,
        target_kind=whole.target_kind,
        unlearned=unlearned,
    )


def _grouped(
    sources: dict[str, Source], is_whole: bool
) -> tuple[dict[str, Source], tuple[str, ...]]:
    """The parts with the groups of their images, and notes on them. is_whole: whether a test part will be
    made."""
    everything = next(iter(sources.values()))
    for part in list(sources.values())[1:]:
        if part.store is not everything.store:
            return sources, ()
        everything = merge_parts(everything, part)

    # Groups from a column or from a user's function
    if everything.groups is not None:
        return sources, _note_on_groups(everything, "group", "images")

    # Otherwise photographs of one burst
    if not isinstance(everything.store, Files) and not is_whole:
        return sources, ()
    bursts, notes = _bursts(everything)
    if bursts is None:
        return sources, notes
    groups = bursts.groups
    grouped = {}
    start = 0
    for name, part in sources.items():
        grouped[name] = replace(part, groups=groups[start : start + len(part)])
        start += len(part)
    everything = replace(everything, groups=groups)
    notes = _note_on_groups(everything, "burst", "photographs", shown=bursts.surest)
    return grouped, (*notes, *_warn_of_shared_bursts(grouped))


def _bursts(source: Source) -> "tuple[Bursts | None, tuple[str, ...]]":
    """The bursts among photographs; None if there are none, or if they were not looked for, with a note
    that gives the reason."""
    if not isinstance(source.store, Files):
        if not hasattr(source.store, "files"):
            return None, ()
        note = (
            "bursts are not looked for in packed images; a column may define which belong "
            "together (`groups=COLUMN`)"
        )
        return None, (note,)
    from vitkit.data.sources.bursts import MOST, find_bursts

    if len(source) > MOST:
        note = (
            f"bursts were not looked for, as that would take long for {len(source):,} images; a "
            "column of a manifest may define which belong together (`groups=COLUMN`)"
        )
        return None, (note,)
    bursts = find_bursts(source)
    if len(np.unique(bursts.groups)) == len(source):
        return None, ()
    return bursts, ()


def grouped_to_measure(
    source: Source, dependent: str = "their answers are not independent"
) -> tuple[Source, tuple[str, ...]]:
    """Images that a model is measured on, with their groups, from a column or else by bursts; and notes on
    them: which images belong together, or why bursts were not looked for. dependent: what follows for images
    of one group, for the notes."""
    if source.groups is not None:
        return source, _note_on_groups(source, "group", "images", dependent)
    bursts, notes = _bursts(source)
    if bursts is None:
        return source, notes
    source = replace(source, groups=bursts.groups)
    return source, _note_on_groups(source, "burst", "photographs", dependent, bursts.surest)


def _note_on_groups(
    source: Source, group: str, images: str, consequence: str = "", shown: int | None = None
) -> tuple[str, ...]:
    """A note on the groups of images; empty if each image is alone.

    consequence: what follows from the groups; by default, how the images are divided.
    shown: number of the group to give as an example; by default the largest.
    """
    assert source.groups is not None
    numbers, sizes = np.unique(source.groups, return_counts=True)
    several = sizes[sizes > 1]
    if not len(several):
        return ()
    how_many = f"{several.min()}"
    if several.min() != several.max():
        how_many += f" to {several.max()}"
    stays = "it stays"
    if len(several) > 1:
        group += "s"
        stays = "each stays"
    if not consequence:
        consequence = f"{stays} on one side of every split"
    if shown is None:
        shown = numbers[sizes.argmax()]
    in_shown = np.flatnonzero(source.groups == shown)
    names = [PurePath(source.name(int(i))).name for i in in_shown]
    such_as = " and ".join(names[:2])
    if len(names) > 2:
        such_as = f"{names[0]}, {names[1]} and {len(names) - 2:,} more"
    return (
        f"{len(several):,} {group} of {how_many} {images} ({several.sum():,} of {len(source):,} images, "
        f"such as {such_as}): {consequence}; `groups='none'` if they do not belong together",
    )


def _warn_of_shared_bursts(parts: dict[str, Source]) -> tuple[str, ...]:
    """A warning if images to measure on are of the same burst as images to train on."""
    sentences = []
    for name in ("val", "test"):
        if "train" not in parts or name not in parts:
            continue
        groups, of_train = parts[name].groups, parts["train"].groups
        assert groups is not None and of_train is not None  # the caller has set them
        known = int(np.isin(groups, of_train).sum())
        if known:
            sentences.append(
                f"{known:,} of {len(parts[name]):,} images of the {name} part are of the same burst as "
                "images of the train part, so a model's accuracy on them is overestimated"
            )
    return tuple(sentences)


def part_of(sources: dict[str, Source], split: str | None, where: str) -> Source:
    """The part of a data set that `open_source` chooses."""
    candidates = (split,) if split else ("test", "val", "", "train")
    for name in candidates:
        if name in sources:
            return sources[name]
    present = ", ".join(filter(None, sources)) or "no parts"
    raise BadData(f"{where} has no part {split!r}; it has {present}")


def parts_of_table(table: Table) -> Parts:
    """The parts of a table, with numbered targets."""
    table = without_secret_parts(table)
    target_kind, targets, labels, notes, unlearned = numbered(table)
    groups = None
    if table.groups is not None:
        groups = numbered_groups(table.groups)
    sources = {}
    for part in ("train", "val", "test", ""):
        rows = np.flatnonzero(table.parts == part)
        if len(rows):
            source = Source(table.store, rows, targets[rows], labels, target_kind)
            if groups is not None:
                source = replace(source, groups=groups[rows])
            sources[part] = source
    return Parts(sources, table.notes + notes, unlearned)


def _own_parts(returned: Source | Splits, where: str, columns: Columns) -> Parts:
    """The parts that a user's function returned."""
    if columns != Columns():
        raise BadData(
            f"{where} returns a {type(returned).__name__}, which has its own targets: "
            f"leave out `data.columns`"
        )
    if isinstance(returned, Source):
        return Parts({"": returned}, ())
    return Parts(returned.sources, returned.notes, returned.unlearned)


def _own_table(returned: Any, where: str, columns: Columns) -> Table:
    """The table of a data set, or of a dictionary of data sets by part, that a user's function returned."""
    if columns.group is not None:
        raise BadData(
            f"{where} returns no table, so it has no column {columns.group!r} of groups; a Source may "
            "have groups"
        )
    parts = returned if isinstance(returned, dict) else {"": returned}
    if not parts or not set(parts) <= {"", "train", "val", "test"}:
        raise BadData(
            f"{where} returns parts called {', '.join(map(str, parts))}; "
            f"expected train, val and test"
        )
    return dataset_table(parts, (), columns.target, where)
