"""Data sets: a Source answers len and [i], whatever the images lie in; a data set is up to three of them.

What `open_splits` and `open_source` take: a folder of class folders, with or without train, val and test above them; a
CSV, TSV or JSON-lines manifest; a parquet file or a tar shard; several, by a pattern ("train-{000..146}.tar"), by NAME for
NAME-train*.parquet and its siblings, or by the folder they lie in; such files elsewhere, by their address (https://,
s3://, gs://); "hf:NAME" for a data set of the Hugging Face hub, or a directory that `datasets` saved; or "digits", which
comes with scikit-learn.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data.formats import manifest
from vitkit.data.formats.folder import folder_of_images, read_folder
from vitkit.data.formats.hub import PREFIX, SAVED, read_hub
from vitkit.data.formats.manifest import read_manifest
from vitkit.data.formats.parquet import read_parquet
from vitkit.data.formats.tar import read_tars
from vitkit.data.stores import Arrays, Store
from vitkit.data.tables import Columns, Table, classes, complete, families, labelled
from vitkit.data.targets import Lists, Target, joined
from vitkit.system import remote

TABLES = {".parquet": read_parquet, ".tar": read_tars}
TEST_SHARE = 0.2  # of every class, where a data set comes without a test part
SAMPLE = 20_000  # files whose size is asked for, at most, to know a data set again
_MADE_FOR = (
    "# fingerprint "  # how a list of images to leave out begins, if it was not written by hand
)


@dataclass(frozen=True, eq=False)
class Source:
    """Examples in a fixed order. Travels to worker processes."""

    store: Store
    rows: np.ndarray
    """Which row of the store each example is: int64 (N,)."""
    targets: np.ndarray | Lists
    """The target of each example, known without decoding an image: a class, int64 (N,); several, as Lists of N; a number,
    float32 (N,); or where there is none -1, int64 (N,)."""
    labels: tuple[str, ...]
    """Names of the classes; none where the targets are no classes."""
    target: Target = "class"
    """What a target is."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[bytes | np.ndarray, int | float | list[int] | None]:
        """The image, as a file's bytes or as an array, and its target. Raises BadImage where it cannot be read."""
        return self.store.read(int(self.rows[i])), self._target(i)

    def _target(self, i: int) -> int | float | list[int] | None:
        if self.target == "none":
            return None
        if self.target == "classes":
            return self.targets.row(i).tolist()
        return self.targets[i].item()

    def targets_of(self, indices: np.ndarray) -> np.ndarray:
        """The targets of a batch: int64 (B,) for a class, float32 (B, K) with ones for several, float32 (B,) for a number,
        and int64 (B,), all -1, where there are none."""
        targets = self.targets[indices]
        return targets.multi_hot(len(self.labels)) if self.target == "classes" else targets

    def answer(self, i: int) -> str | None:
        """The target as people write it: "cat", "cat, dog" or "3.5"; None where there is none."""
        target = self._target(i)
        if self.target == "class":
            return self.labels[target]
        if self.target == "classes":
            return ", ".join(self.labels[k] for k in target)
        return None if target is None else f"{target:g}"

    def name(self, i: int) -> str:
        """What a user would call example i: a path, or a file and a row."""
        return self.store.name(int(self.rows[i]))

    def pieces(self) -> tuple[np.ndarray, int] | None:
        """Where examples can only be read many together: the piece of each, numbered from 0, and how many fit in memory."""
        if (found := self.store.pieces(self.rows)) is None:
            return None
        return np.unique(found[0], return_inverse=True)[1], found[1]

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
    """Where a test part had to be made: {"seed", "share", "test": [rows]}, as plain numbers; the others are for training."""
    target: Target = "class"
    """What the target of an example is, the same for all parts."""


def open_splits(where: str, columns: Columns | None = None, seed: int = 0) -> Splits:
    """A data set with its parts. Without a test or validation part, a fifth of every class becomes one, chosen by seed.

    Raises ValueError, in one sentence, for what is not there, malformed, or cannot be told apart.
    """
    sources, labels, notes = open_parts(where, columns)
    made, whole = (
        None,
        sources.pop("", None) or (sources.get("train") if set(sources) == {"train"} else None),
    )
    if whole is not None:
        train, test = split_off(whole, TEST_SHARE, seed)
        sources = {"train": subset(whole, train)} | (
            {"test": subset(whole, test)} if len(test) else {}
        )
        made = {"seed": seed, "share": TEST_SHARE, "test": test.tolist()}
        notes += (
            f"{where} has no test part: {len(test):,} of {len(whole):,} images, {TEST_SHARE:.0%} of every class, were set "
            f"aside as one (seed {seed})",
        )
    parts = [sources.get(name) for name in ("train", "val", "test")]
    target = next(part.target for part in parts if part is not None)
    return Splits(*parts, labels, notes, made, target)


def open_source(where: str, columns: Columns | None = None, split: str | None = None) -> Source:
    """One part of a data set: the one named, else test, else val; all of it where it is not divided into parts.

    Class numbers are those of the whole data set. Raises ValueError like open_splits, and for a part that is not there.
    """
    sources, _, _ = open_parts(where, columns)
    for name in (split,) if split else ("test", "val", "", "train"):
        if name in sources:
            return sources[name]
    raise ValueError(
        f"{where} has no part {split!r}; it has {', '.join(sources) if '' not in sources else 'no parts'}"
    )


def open_parts(
    where: str, columns: Columns | None = None
) -> tuple[dict[str, Source], tuple[str, ...], tuple[str, ...]]:
    """The parts as they were found ("train", "val" and "test", or "" where there are none), the classes' names, and notes.

    Raises ValueError like open_splits.
    """
    table = labelled(_read(where, columns or Columns()))
    labels, targets, notes = classes(table)
    rows = {part: np.flatnonzero(table.parts == part) for part in ("train", "val", "test", "")}
    sources = {
        part: Source(table.store, r, targets[r], labels) for part, r in rows.items() if len(r)
    }
    return sources, labels, table.notes + notes


def write_list(path: Path, source: Source, why: dict[int, str]) -> None:
    """A file for `without`: the examples to leave out, by index, each with the reason, for a reader."""
    lines = [_MADE_FOR + fingerprint(source), *(f"{source.name(i)}\t{why[i]}" for i in sorted(why))]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")


def without(source: Source, listed: Path | str) -> Source:
    """The examples that a file does not list: a name at the beginning of each line, up to a tab, as `Source.name` gives it.

    Raises ValueError where a name is none of the source's, or the list was written for other images, if only in another
    order: it would leave out nothing, or the wrong ones, silently.
    """
    try:
        lines = Path(listed).read_text("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise ValueError(f"{listed} cannot be read: {error}") from None
    names = {line.split("\t")[0] for line in lines if line.strip() and not line.startswith("#")}
    out = [i for i in range(len(source)) if source.name(i) in names]
    strangers = sorted(names - {source.name(i) for i in out})
    if strangers:
        raise ValueError(
            f"{listed} lists {len(strangers):,} images that are not in the training part, the first is {strangers[0]!r}; it "
            f"must be written for this very source and split seed, by vitkit data stats --exclude FILE"
        )
    if lines[0].startswith(_MADE_FOR) and lines[0] != _MADE_FOR + fingerprint(source):
        raise ValueError(
            f"{listed} was written for other images of the same names: the data set has changed since, or has another split "
            f"seed; write the list anew, by vitkit data stats --exclude FILE"
        )
    return subset(source, np.setdiff1d(np.arange(len(source)), out))


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """The examples at these indices, in this order."""
    indices = np.asarray(indices, dtype=np.int64)
    return replace(source, rows=source.rows[indices], targets=source.targets[indices])


def together(first: Source, second: Source) -> Source:
    """The examples of two parts of one data set, as one."""
    rows = np.concatenate([first.rows, second.rows])
    return replace(first, rows=rows, targets=joined(first.targets, second.targets))


def fingerprint(source: Source) -> str:
    """A digest of the classes and, of SAMPLE images, of names and sizes: other images in the same number are noticed.

    Nothing is read for it, and times are left out, which differ between copies of a data set: an image that was replaced by
    one of the very same size is not noticed, nor is one between those of the sample.
    """
    digest = hashlib.sha256(json.dumps(source.labels).encode() + source.targets.tobytes())
    for row in source.rows[:: len(source) // SAMPLE + 1].tolist():
        digest.update(source.store.mark(row).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def split_off(source: Source, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class, chosen by seed.

    Where an example's target is not one class, it is a share of all examples, whatever their targets.
    """
    if source.target == "class":
        return stratified(source.targets, share, seed)
    return stratified(np.zeros(len(source), dtype=np.int64), share, seed)


def stratified(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class, rounded.

    Both hold at least one example of a class that has two; a single example stays in the first.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    by_class, chosen = np.argsort(targets, kind="stable"), []
    for members in np.split(by_class, np.flatnonzero(np.diff(targets[by_class])) + 1):
        members = random.permutation(members)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        chosen.append(members[:count])
    second = np.zeros(len(targets), dtype=bool)
    second[np.concatenate(chosen)] = True
    return np.flatnonzero(~second), np.flatnonzero(second)


def _read(where: str, columns: Columns) -> Table:
    path = Path(where)
    if where == "digits":
        return _digits()
    if where.startswith(PREFIX):
        return read_hub(where, columns)
    if path.is_dir():
        return _read_directory(path, columns)
    if path.is_file():
        if path.suffix.lower() in manifest.SUFFIXES:
            return read_manifest(path, columns)
        if path.suffix.lower() in TABLES:
            return TABLES[path.suffix.lower()]({where: ""}, columns)
        raise ValueError(
            f"{path} is no {', '.join(manifest.SUFFIXES)}, .parquet or .tar file; give one, or a folder of images"
        )
    if remote.is_address(where) or remote.is_pattern(where):
        return _read_files(where, remote.expand(where), columns)
    found = families(map(str, _tables_in(path.parent))) if path.parent.is_dir() else {}
    if path.name in found:
        return _read_files(where, list(found[path.name]), columns)
    there = (
        f"; in {path.parent} there are {', '.join(sorted(filter(None, found)))}"
        if any(found)
        else ""
    )
    raise ValueError(f"there is no folder, file or data set {where!r}{there}")


def _read_directory(path: Path, columns: Columns) -> Table:
    """Saved by `datasets`, a folder of parquet files or shards, or a folder of images."""
    if any((path / name).is_file() for name in SAVED):
        return read_hub(str(path), columns)
    for folder in (path, path / "data"):
        found = families(map(str, _tables_in(folder)))
        if len(found) > 1:
            names = ", ".join(str(folder / name) for name in sorted(found))
            raise ValueError(f"{path} holds several data sets; name one: {names}")
        if found:
            return _read_beside(folder, list(next(iter(found.values()))), columns)
    alone = [str(file) for file in _tables_in(path)]
    return _read_beside(path, alone, columns) if alone else read_folder(path)


def _read_beside(folder: Path, files: list[str], columns: Columns) -> Table:
    """These files of a folder: others beside them are noted, and class folders are refused, as they may be what is meant."""
    if inner := folder_of_images(folder):
        raise ValueError(
            f"{folder} holds {Path(files[0]).name} and folders of images ({inner}); give the file, or move one of them"
        )
    table = _read_files(str(folder), files, columns)
    others = [file.name for file in _tables_in(folder) if str(file) not in files]
    note = f"left out, as their names say no part: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}"
    return table._replace(notes=(*table.notes, note)) if others else table


def _tables_in(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.glob("*")
        if file.suffix.lower() in TABLES and not file.name.startswith(".")
    )


def _read_files(where: str, files: list[str], columns: Columns) -> Table:
    """Parquet files or shards, each of a part if their names say so."""
    files = [file for file in files if remote.suffix(file) in TABLES]
    kinds = {remote.suffix(file) for file in files}
    if len(kinds) != 1:
        raise ValueError(
            f"{where} holds {' and '.join(sorted(kinds)) or 'no .parquet or .tar'} files; expected one kind"
        )
    found = families(files)
    if len(found) > 1:
        raise ValueError(f"{where} holds several data sets: {', '.join(sorted(found))}; name one")
    named = next(iter(found.values()), {})
    alone = files == [where]  # a file that is asked for alone is all there is
    if not alone:
        complete(files)
    divided = len(named) == len(files) and not alone
    return TABLES[kinds.pop()](named if divided else dict.fromkeys(files, ""), columns)


def _digits() -> Table:
    """The 1,797 handwritten digits of scikit-learn, 8 by 8, levels 0 to 16. A fifth, always the same, is the test part."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images * (255 / 16)).round().astype(np.uint8)
    parts = np.full(len(images), "train", dtype=object)
    parts[stratified(found.target, TEST_SHARE, seed=0)[1]] = "test"
    return Table(
        Arrays("digits", images), found.target.astype(np.int64), parts, tuple("0123456789"), ()
    )
