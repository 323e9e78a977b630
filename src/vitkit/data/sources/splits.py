"""A data set by its name: up to three Sources, the parts to train, select and test on.

What `open_splits` and `open_source` take: a folder of class folders, with or without train, val and
test above them; a CSV, TSV or JSON-lines manifest; a parquet file or a tar shard; several, by a
pattern ("train-{000..146}.tar"), by NAME for NAME-train*.parquet and its siblings, or by the folder
they lie in; such files elsewhere, by their address (https://, s3://, gs://); "hf:NAME" for a data
set of the Hugging Face hub, or a directory that `datasets` saved; or "digits", which comes with
scikit-learn; or "file.py:function" for a function of one's own that returns a Source, Splits, a
data set as `from_dataset` takes it, or a dictionary of such by part.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.formats import read_table
from vitkit.data.sources.datasets import dataset_table
from vitkit.data.sources.source import TEST_SHARE, Source, fingerprint, split_off, subset
from vitkit.data.sources.tables import Columns, Table, numbered, without_secret_parts
from vitkit.data.sources.targets import TargetKind
from vitkit.system.scripts import function_in


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
    def made_fingerprint(self) -> str | None:
        """By what a test part that had to be made is recognised, wherever its data set is; None if
        none was made."""
        if self.made_test is None or self.test is None:
            return None
        return fingerprint(self.test)


class Parts(NamedTuple):
    """The parts of a data set, as many as it has; none is made."""

    sources: dict[str, Source]
    """"train", "val" and "test", or "" if there are none."""
    notes: tuple[str, ...]
    """What was decided on the way, for the user to read."""
    unlearned: str = ""
    """As `Splits` has it."""


def open_splits(where: str, columns: Columns | None = None, seed: int = 0) -> Splits:
    """A data set with its parts.

    If there is neither a test nor a validation part, a fifth becomes the test part, chosen by seed:
    a fifth of every class, or, if an example's target is not one class, a fifth of all. Raises
    ValueError, in one sentence, for a data set that does not exist, is malformed, or may be one of
    several.
    """
    return splits_of(open_parts(where, columns), where, seed)


def splits_of(parts: Parts, where: str, seed: int = 0) -> Splits:
    """The parts of a data set, with a test part if there is none to measure on: see
    `open_splits`."""
    sources, notes, unlearned = parts
    whole = next(iter(sources.values()))
    made_test = None
    if set(sources) in ({""}, {"train"}):
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


def open_source(where: str, columns: Columns | None = None, split: str | None = None) -> Source:
    """One part of a data set: the one named, else test, else val; all of it if it is not divided
    into parts.

    Class numbers are those of the whole data set. Raises ValueError like open_splits, and for a
    part that is not there.
    """
    return part_of(open_parts(where, columns).sources, split, where)


def part_of(sources: dict[str, Source], split: str | None, where: str) -> Source:
    """One of the parts of a data set, as `open_source` chooses it."""
    candidates = (split,) if split else ("test", "val", "", "train")
    for name in candidates:
        if name in sources:
            return sources[name]
    present = ", ".join(filter(None, sources)) or "no parts"
    raise ValueError(f"{where} has no part {split!r}; it has {present}")


def open_parts(where: str, columns: Columns | None = None) -> Parts:
    """The parts of a data set, as many as it has. Raises ValueError like open_splits."""
    columns = columns or Columns()
    function = function_in(where)
    if function is None:
        return _parts_of(read_table(where, columns))
    returned = function()
    if isinstance(returned, Source | Splits):
        return _own_parts(returned, where, columns)
    return _parts_of(_own_table(returned, where, columns))


def _parts_of(table: Table) -> Parts:
    """The parts of a table, their targets numbered."""
    table = without_secret_parts(table)
    target_kind, targets, labels, notes, unlearned = numbered(table)
    sources = {}
    for part in ("train", "val", "test", ""):
        rows = np.flatnonzero(table.parts == part)
        if len(rows):
            sources[part] = Source(table.store, rows, targets[rows], labels, target_kind)
    return Parts(sources, table.notes + notes, unlearned)


def _own_parts(returned: Source | Splits, where: str, columns: Columns) -> Parts:
    """The parts that a function of one's own returned."""
    if columns != Columns():
        raise ValueError(
            f"{where} returns a {type(returned).__name__}, whose targets are what they are: "
            f"leave out --data.columns"
        )
    if isinstance(returned, Source):
        return Parts({"": returned}, ())
    sources = {}
    for name in ("train", "val", "test"):
        part = getattr(returned, name)
        if part is not None:
            sources[name] = part
    return Parts(sources, returned.notes, returned.unlearned)


def _own_table(returned: Any, where: str, columns: Columns) -> Table:
    """The table of a data set, or of a dictionary of them by part, that a function of one's own
    returned."""
    parts = returned if isinstance(returned, dict) else {"": returned}
    if not parts or not set(parts) <= {"", "train", "val", "test"}:
        raise ValueError(
            f"{where} returns parts called {', '.join(map(str, parts))}; "
            f"expected train, val and test"
        )
    return dataset_table(parts, (), columns.target, where)
