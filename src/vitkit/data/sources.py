"""A Source answers len and [i], whatever its images lie in; parts of sources, and how one is known again.

Legend: N examples, B batch, K classes.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data.stores import Store
from vitkit.data.targets import Lists, Target, joined

TEST_SHARE = 0.2  # of every class, if a data set comes without a test part
SAMPLE = 20_000  # images, at most, that a data set is known again by
_MADE_FOR = "# fingerprint "  # how a list of images to leave out begins, unless written by hand


@dataclass(frozen=True, eq=False)
class Source:
    """Examples in a fixed order. Travels to worker processes."""

    store: Store
    rows: np.ndarray
    """Which row of the store each example is: int64 (N,)."""
    targets: np.ndarray | Lists
    """The target of each example, known without decoding an image: a class, int64 (N,); several classes, Lists of N; a
    number, float32 (N,); or, if there is none, -1, int64 (N,)."""
    labels: tuple[str, ...]
    """Names of the classes; empty unless targets are classes."""
    target: Target = "class"
    """What a target is."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[bytes | np.ndarray, int | float | list[int] | None]:
        """The image, as a file's bytes or as an array, and its target. Raises BadImage if it cannot be read."""
        return self.store.read(int(self.rows[i])), self._target(i)

    def name(self, i: int) -> str:
        """What a user would call example i: a path, or a file and a row."""
        return self.store.name(int(self.rows[i]))

    def answer(self, i: int) -> str | None:
        """The target as people write it: "cat", "cat, dog" or "3.5"; None if there is none."""
        target = self._target(i)
        if self.target == "class":
            return self.labels[target]
        if self.target == "classes":
            return ", ".join(self.labels[k] for k in target)
        return None if target is None else f"{target:g}"

    def targets_of(self, indices: np.ndarray) -> np.ndarray:
        """The targets of a batch: int64 (B,) for a class; float32 (B, K), ones and zeros, for several; float32 (B,) for a
        number; int64 (B,), all -1, if there are none."""
        targets = self.targets[indices]
        if isinstance(targets, Lists):
            return targets.multi_hot(len(self.labels))
        return targets

    def chunks(self) -> tuple[np.ndarray, int] | None:
        """If examples are read many at once: the chunk of each, numbered from 0, and how many fit in memory. Else None."""
        chunks = self.store.chunks(self.rows)
        if chunks is None:
            return None
        numbers, together = chunks
        return np.unique(numbers, return_inverse=True)[1], together

    def prepare(self) -> None:
        """Bring into memory what worker processes are to share; call it before they are started."""
        self.store.prepare(self.rows)

    def _target(self, i: int) -> int | float | list[int] | None:
        if self.target == "none":
            return None
        if isinstance(self.targets, Lists):
            return self.targets.row(i).tolist()
        return self.targets[i].item()


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """The examples at these indices, in this order."""
    indices = np.asarray(indices, dtype=np.int64)
    return replace(source, rows=source.rows[indices], targets=source.targets[indices])


def together(first: Source, second: Source) -> Source:
    """The examples of two parts of one data set, as one. Raises ValueError if they lie in different stores."""
    if first.store is not second.store:
        raise ValueError("parts of different data sets cannot be trained on together")
    rows = np.concatenate([first.rows, second.rows])
    return replace(first, rows=rows, targets=joined(first.targets, second.targets))


def split_off(source: Source, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class, chosen by seed.

    If the target of an example is not one class, it is a share of all examples, whatever their targets.
    """
    if source.target == "class":
        return stratified(source.targets, share, seed)
    return stratified(np.zeros(len(source), dtype=np.int64), share, seed)


def stratified(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class, rounded.

    Both hold at least one example of a class that has two; a single example stays in the first.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    by_class = np.argsort(targets, kind="stable")
    second = np.zeros(len(targets), dtype=bool)
    for members in np.split(by_class, np.flatnonzero(np.diff(targets[by_class])) + 1):
        members = random.permutation(members)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        second[members[:count]] = True
    return np.flatnonzero(~second), np.flatnonzero(second)


def fingerprint(source: Source) -> str:
    """A digest of the targets and, of SAMPLE images, of names and sizes: other images in the same number are noticed.

    Nothing is read for it, and times are left out, which differ between copies of a data set: an image that was replaced by
    one of the very same size is not noticed, nor is one between those of the sample.
    """
    digest = hashlib.sha256(json.dumps(source.labels).encode() + source.targets.tobytes())
    for row in source.rows[:: len(source) // SAMPLE + 1].tolist():
        digest.update(source.store.identity(row).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def write_list(path: Path, source: Source, why: dict[int, str]) -> None:
    """A file for `without`: the examples to leave out, by index, each with the reason, for a reader."""
    lines = [_MADE_FOR + fingerprint(source), *(f"{source.name(i)}\t{why[i]}" for i in sorted(why))]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")


def without(source: Source, path: Path | str) -> Source:
    """The examples that a file does not list: a name at the beginning of each line, up to a tab, as `Source.name` gives it.

    Raises ValueError if a name is none of the source's, or the list was written for other images, if only in another
    order: it would leave out nothing, or the wrong ones, silently.
    """
    try:
        lines = Path(path).read_text("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    names = {line.split("\t")[0] for line in lines if line.strip() and not line.startswith("#")}
    listed = [i for i in range(len(source)) if source.name(i) in names]
    strangers = sorted(names - {source.name(i) for i in listed})
    if strangers:
        raise ValueError(
            f"{path} lists {len(strangers):,} images that are not in the training part, the first is {strangers[0]!r}; it "
            f"must be written for this very source and split seed, by vitkit data stats --exclude FILE"
        )
    if lines[0].startswith(_MADE_FOR) and lines[0] != _MADE_FOR + fingerprint(source):
        raise ValueError(
            f"{path} was written for other images of the same names: the data set has changed since, or has another split "
            f"seed; write the list anew, by vitkit data stats --exclude FILE"
        )
    return subset(source, np.setdiff1d(np.arange(len(source)), listed))
