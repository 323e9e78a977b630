"""A data set by its name: up to three Sources, the parts to train, select and test on.

What `open_splits` and `open_source` take: a folder of class folders, with or without train, val and
test above them; a CSV, TSV or JSON-lines manifest; a parquet file or a tar shard; several, by a
pattern ("train-{000..146}.tar"), by NAME for NAME-train*.parquet and its siblings, or by the folder
they lie in; such files elsewhere, by their address (https://, s3://, gs://); "hf:NAME" for a data
set of the Hugging Face hub, or a directory that `datasets` saved; or "digits", which comes with
scikit-learn; or "file.py:function" for a function of one's own that returns a Source, Splits, a
data set as `from_dataset` takes it, or a dictionary of such by part.

These two and `open_parts` are for programs of people, and run such a function: who calls them has typed
the name. vitkit itself opens data sets by `splits_at`, `source_at` and `parts_at`, which run no code
unless their caller says that a person typed the name.
"""

from dataclasses import dataclass, replace
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
from vitkit.system.errors import BadData
from vitkit.system.scripts import function_in
from vitkit.system.storage.addresses import remember, showing_no_credentials

if TYPE_CHECKING:
    from vitkit.data.sources.bursts import Bursts


@dataclass(frozen=True, eq=False)
class Splits:
    """The parts of a data set as a run uses them: None for one that is not there.

    A function of one's own may return them; `open_splits` makes a test part if there is none.
    """

    train: Source | None
    val: Source | None
    test: Source | None
    labels: tuple[str, ...]
    """Names of the classes, the same for all parts; empty unless targets are classes."""
    notes: tuple[str, ...]
    """What was decided on the way, for the user to read."""
    made_test: dict | None
    """If a test part had to be made: {"seed", "share", "test": [rows]}, as plain numbers; the
    others are for training."""
    target_kind: TargetKind = "class"
    """What the target of an example is, the same for all parts."""
    unlearned: str = ""
    """A sentence about classes that only other parts than the training part have, which nothing can
    be trained on; empty if there are none."""

    @property
    def sources(self) -> dict[str, Source]:
        """The parts that are there, by name."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def made_fingerprint(self) -> str | None:
        """Identifies a test part that had to be made, wherever its data set is; None if none was
        made."""
        if self.made_test is None or self.test is None:
            return None
        return fingerprint(self.test)


class Parts(NamedTuple):
    """The parts that a data set has; no part is made."""

    sources: dict[str, Source]
    """"train", "val" and "test", or "" if there are none."""
    notes: tuple[str, ...]
    """What was decided on the way, for the user to read."""
    unlearned: str = ""
    """As `Splits` has it."""


# For programs: the name is typed


def open_splits(
    where: str | Path,
    columns: Columns | None = None,
    seed: int = 0,
    groups: str = "auto",
    always_grouped: bool = False,
) -> Splits:
    """A data set with its parts, by a name that the caller has typed: "file.py:function" is run.

    If there is neither a test nor a validation part, a fifth becomes the test part, chosen by seed:
    a fifth of every class, or, if an example's target is not one class, a fifth of all. Images that
    belong together stay on the same side.

    groups: which do. "auto" takes the column of groups if `columns` name one, else photographs of one
        burst (bursts.py); "none" takes none; anything else is the name of the column.
    always_grouped: look for bursts even if the data set has a part to measure on, because the caller
        divides the training part.

    Raises VitkitError, in one sentence, for a data set that does not exist, is malformed, or may be
    one of several.
    """
    return splits_at(where, columns, seed, groups, always_grouped, typed=True)


def open_source(
    where: str | Path, columns: Columns | None = None, split: str | None = None
) -> Source:
    """One part of a data set: the one named, else test, else val; all of it if it is not divided
    into parts.

    The caller has typed its name: "file.py:function" is run. Class numbers are those of the whole
    data set. Raises VitkitError like open_splits, and for a part that does not exist.
    """
    return source_at(where, columns, split, typed=True)


def open_parts(where: str | Path, columns: Columns | None = None) -> Parts:
    """The parts that a data set has; no part is made. The caller has typed its name:
    "file.py:function" is run. Raises VitkitError like open_splits."""
    return parts_at(where, columns, typed=True)


# Within vitkit: the name may stand in a file


def splits_at(
    where: str | Path,
    columns: Columns | None = None,
    seed: int = 0,
    groups: str = "auto",
    always_grouped: bool = False,
    *,
    typed: bool = False,
) -> Splits:
    """A data set with its parts, as `open_splits` gives it.

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
    """One part of a data set, as `open_source` gives it.

    typed: whether a person typed the name; if not, "file.py:function" raises VitkitError.
    """
    return part_of(parts_at(where, columns, typed=typed).sources, split, str(where))


def parts_at(where: str | Path, columns: Columns | None = None, *, typed: bool = False) -> Parts:
    """The parts that a data set has, as `open_parts` gives them.

    typed: whether a person typed the name; if not, "file.py:function" raises VitkitError.
    """
    where = str(where)
    columns = columns or Columns()
    function = function_in(where, typed=typed)
    if function is None:
        remember(where)
        with showing_no_credentials():
            return _parts_of(read_table(where, columns))
    returned = function()
    if isinstance(returned, Source | Splits):
        return _own_parts(returned, where, columns)
    return _parts_of(_own_table(returned, where, columns))


def grouped_columns(columns: Columns, groups: str) -> Columns:
    """The columns of a table, with the column that `groups` names, as in `open_splits`."""
    if groups == "none":
        return replace(columns, group=None)
    if groups != "auto":
        return replace(columns, group=groups)
    return columns


def splits_of(
    parts: Parts, where: str, seed: int = 0, groups: str = "auto", always_grouped: bool = False
) -> Splits:
    """The parts of a data set, with a test part if there is none to measure on: see
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
    """The parts with the groups of their images, and what to say of them. is_whole: whether a test part
    is made of them."""
    everything = next(iter(sources.values()))
    for part in list(sources.values())[1:]:
        if part.store is not everything.store:
            return sources, ()
        everything = merge_parts(everything, part)

    # A column or a function of one's own says it
    if everything.groups is not None:
        return sources, _about_groups(everything, "group", "images")

    # Else photographs of one burst
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
    notes = _about_groups(everything, "burst", "photographs", shown=bursts.surest)
    return grouped, (*notes, *_on_both_sides(grouped))


def _bursts(source: Source) -> "tuple[Bursts | None, tuple[str, ...]]":
    """Which photographs are of one burst; None if each is alone, or if they were not looked for, with a
    sentence that says why."""
    if not isinstance(source.store, Files):
        if not hasattr(source.store, "files"):
            return None, ()
        note = (
            "bursts are not looked for in packed images; a column of theirs may say which belong "
            "together (`groups=COLUMN`)"
        )
        return None, (note,)
    from vitkit.data.sources.bursts import MOST, find_bursts

    if len(source) > MOST:
        note = (
            f"bursts were not looked for, as that would take long for {len(source):,} images; a "
            "column of a manifest may say which belong together (`groups=COLUMN`)"
        )
        return None, (note,)
    bursts = find_bursts(source)
    if len(np.unique(bursts.groups)) == len(source):
        return None, ()
    return bursts, ()


def grouped_to_measure(source: Source) -> tuple[Source, tuple[str, ...]]:
    """Images that a model is measured on, with their groups: those of a column, or else photographs of one
    burst. And what to say of them: what belongs together, or why bursts were not looked for."""
    dependent = "their answers are not independent"
    if source.groups is not None:
        return source, _about_groups(source, "group", "images", dependent)
    bursts, notes = _bursts(source)
    if bursts is None:
        return source, notes
    source = replace(source, groups=bursts.groups)
    return source, _about_groups(source, "burst", "photographs", dependent, bursts.surest)


def _about_groups(
    source: Source, group: str, images: str, consequence: str = "", shown: int | None = None
) -> tuple[str, ...]:
    """What belongs together, in a sentence; none if each image is alone. consequence: what follows; by
    default, how the images are divided. shown: the number of the group that is the example; by default the
    largest."""
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


def _on_both_sides(parts: dict[str, Source]) -> tuple[str, ...]:
    """A warning if images to measure on are of a burst that is learned from, as the data set is
    divided."""
    sentences = []
    for name in ("val", "test"):
        if "train" not in parts or name not in parts:
            continue
        groups, of_train = parts[name].groups, parts["train"].groups
        assert groups is not None and of_train is not None  # _grouped has found them
        known = int(np.isin(groups, of_train).sum())
        if known:
            sentences.append(
                f"{known:,} of {len(parts[name]):,} images of the {name} part are of a burst that the "
                "train part has too, so what is measured on them is too good"
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


def _parts_of(table: Table) -> Parts:
    """The parts of a table, their targets numbered."""
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
    """The parts that a function of one's own returned."""
    if columns != Columns():
        raise BadData(
            f"{where} returns a {type(returned).__name__}, whose targets are what they are: "
            f"leave out `data.columns`"
        )
    if isinstance(returned, Source):
        return Parts({"": returned}, ())
    return Parts(returned.sources, returned.notes, returned.unlearned)


def _own_table(returned: Any, where: str, columns: Columns) -> Table:
    """The table of a data set, or of a dictionary of them by part, that a function of one's own
    returned."""
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
