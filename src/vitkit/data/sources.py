"""Data sets: a Source answers len and [i], whatever the images lie in; a data set is up to three of them.

What `open_splits` and `open_source` take: a folder of class folders, with or without train, val and test above them; a
CSV, TSV or JSON-lines manifest; a parquet file; NAME for NAME-train*.parquet and its siblings, or the folder they lie in;
or "digits", which comes with scikit-learn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data import manifests
from vitkit.data.folders import read_folder
from vitkit.data.manifests import read_manifest
from vitkit.data.parquet import families, read_parquet
from vitkit.data.stores import Arrays, Store
from vitkit.data.tables import Columns, Table, classes

TEST_SHARE = 0.2  # of every class, where a data set comes without a test part


@dataclass(frozen=True, eq=False)
class Source:
    """Examples in a fixed order. Travels to worker processes."""

    store: Store
    rows: np.ndarray
    """Which row of the store each example is: int64 (N,)."""
    targets: np.ndarray
    """The class of each example, known without decoding an image: int64 (N,)."""
    labels: tuple[str, ...]
    """Names of the classes."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[bytes | np.ndarray, int]:
        """The image, as a file's bytes or as an array, and its class. Raises BadImage where it cannot be read."""
        return self.store.read(int(self.rows[i])), int(self.targets[i])

    def name(self, i: int) -> str:
        """What a user would call example i: a path, or a file and a row."""
        return self.store.name(int(self.rows[i]))

    def prepare(self) -> None:
        """Bring into memory what worker processes are to share; call it before they are started."""
        self.store.prepare(self.rows)


@dataclass(frozen=True, eq=False)
class Splits:
    """The parts of a data set, as far as they are there."""

    train: Source | None
    val: Source | None
    test: Source | None
    labels: tuple[str, ...]
    """Names of the classes, the same for all parts."""
    notes: tuple[str, ...]
    """What was decided on the way, for the user to read."""
    made: dict | None
    """Where a test part had to be made: {"seed", "share", "train": [rows], "test": [rows]}, as plain numbers."""


def open_splits(where: str, columns: Columns | None = None, seed: int = 0) -> Splits:
    """A data set with its parts. Without a test or validation part, a fifth of every class becomes one, chosen by seed.

    Raises ValueError, in one sentence, for what is not there, malformed, or cannot be told apart.
    """
    table = _read(where, columns or Columns())
    sources, labels, notes = _sources(table)
    made, whole = None, sources.pop("", None) or (sources.get("train") if set(sources) == {"train"} else None)
    if whole is not None:
        train, test = stratified(whole.targets, TEST_SHARE, seed)
        sources = {"train": subset(whole, train)} | ({"test": subset(whole, test)} if len(test) else {})
        made = {"seed": seed, "share": TEST_SHARE, "train": train.tolist(), "test": test.tolist()}
        notes += (
            f"{where} has no test part: {len(test):,} of {len(whole):,} images, {TEST_SHARE:.0%} of every class, were set "
            f"aside as one (seed {seed})",
        )
    return Splits(sources.get("train"), sources.get("val"), sources.get("test"), labels, notes, made)


def open_source(where: str, columns: Columns | None = None, split: str | None = None) -> Source:
    """One part of a data set: the one named, else test, else val; all of it where it is not divided into parts.

    Class numbers are those of the whole data set. Raises ValueError like open_splits, and for a part that is not there.
    """
    sources, _, _ = _sources(_read(where, columns or Columns()))
    for name in (split,) if split else ("test", "val", "", "train"):
        if name in sources:
            return sources[name]
    raise ValueError(f"{where} has no part {split!r}; it has {', '.join(sources) if '' not in sources else 'no parts'}")


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """The examples at these indices, in this order."""
    indices = np.asarray(indices, dtype=np.int64)
    return replace(source, rows=source.rows[indices], targets=source.targets[indices])


def together(first: Source, second: Source) -> Source:
    """The examples of two parts of one data set, as one."""
    rows, targets = (np.concatenate([getattr(part, name) for part in (first, second)]) for name in ("rows", "targets"))
    return replace(first, rows=rows, targets=targets)


def stratified(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class, rounded.

    Both hold at least one example of a class that has two; a single example stays in the first.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    chosen = []
    for number in np.unique(targets):
        members = random.permutation(np.flatnonzero(targets == number))
        count = min(max(1, round(share * len(members))), len(members) - 1)
        chosen.append(members[:count])
    second = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(targets)), second), second


def _sources(table: Table) -> tuple[dict[str, Source], tuple[str, ...], tuple[str, ...]]:
    """Part -> Source, the classes' names, and notes."""
    labels, targets, notes = classes(table)
    rows = {part: np.flatnonzero(table.parts == part) for part in ("train", "val", "test", "")}
    sources = {part: Source(table.store, r, targets[r], labels) for part, r in rows.items() if len(r)}
    return sources, labels, table.notes + notes


def _read(where: str, columns: Columns) -> Table:
    path = Path(where)
    if where == "digits":
        return _digits()
    if path.is_dir():
        found = families(path) or families(path / "data")
        alone = sorted(path.glob("*.parquet"))
        if len(found) > 1:
            names = ", ".join(str(path / name) for name in sorted(found))
            raise ValueError(f"{path} holds several data sets; name one: {names}")
        if found:
            return read_parquet(next(iter(found.values())), columns)
        return read_parquet(dict.fromkeys(alone, ""), columns) if alone else read_folder(path)
    if path.is_file():
        if path.suffix.lower() in manifests.SUFFIXES:
            return read_manifest(path, columns)
        if path.suffix.lower() == ".parquet":
            return read_parquet({path: ""}, columns)
        raise ValueError(
            f"{path} is no {', '.join(manifests.SUFFIXES)} or .parquet file; give one, or a folder of images"
        )
    found = families(path.parent) if path.parent.is_dir() else {}
    if path.name in found:
        return read_parquet(found[path.name], columns)
    there = f"; in {path.parent} there are {', '.join(sorted(filter(None, found)))}" if any(found) else ""
    raise ValueError(f"there is no folder, file or data set {where!r}{there}")


def _digits() -> Table:
    """The 1,797 handwritten digits of scikit-learn, 8 by 8, levels 0 to 16. A fifth, always the same, is the test part."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images * (255 / 16)).round().astype(np.uint8)
    parts = np.full(len(images), "train", dtype=object)
    parts[stratified(found.target, TEST_SHARE, seed=0)[1]] = "test"
    return Table(Arrays("digits", images), found.target.astype(np.int64), parts, tuple("0123456789"), ())
