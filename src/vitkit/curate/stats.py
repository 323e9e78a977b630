"""What a data set holds: sizes, formats, classes, what cannot be read, and what is there twice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from vitkit.curate.duplicates import Looks, Pair, look, nearest
from vitkit.data.engine.workers import in_order
from vitkit.data.images import BadImage, open_image
from vitkit.data.sources import Source
from vitkit.data.targets import Lists
from vitkit.system.progress import Shown, silent

CHUNK = 32  # images that a worker looks at before it reports


class Survey(NamedTuple):
    """Of one part, one row an example; rows of images that cannot be read are zeros."""

    source: Source
    sizes: np.ndarray
    """int32 (N, 2): height and width."""
    bytes: np.ndarray
    """int64 (N,): of the file, or the array."""
    digests: np.ndarray
    """uint64 (N,): of the same."""
    hashes: np.ndarray
    """uint64 (N,): see duplicates.py."""
    thumbnails: np.ndarray
    """uint8 (N, 8, 8, 3)"""
    formats: Counter
    """Format -> images."""
    bad: dict[int, str]
    """Index -> what is wrong."""

    @property
    def good(self) -> np.ndarray:
        """bool (N,): which can be read."""
        good = np.ones(len(self.source), dtype=bool)
        good[list(self.bad)] = False
        return good


def survey(source: Source, workers: int, shown: Shown = silent) -> Survey:
    """Look at every image once, in `workers` processes."""
    count = len(source)
    found = Survey(
        source,
        np.zeros((count, 2), np.int32),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint64),
        np.zeros((count, 8, 8, 3), np.uint8),
        Counter(),
        {},
    )
    source.prepare()
    starts = range(0, count, CHUNK)
    for rows, formats, bad in shown(
        in_order(_Looking(source), starts, min(workers, len(starts) // 4)), len(starts)
    ):
        for index, values in rows:
            for array, value in zip(found[1:6], values, strict=True):
                array[index] = value
        found.formats.update(formats)
        found.bad.update(bad)
    return found


@dataclass(frozen=True, eq=False)
class _Looking:
    """First index of a chunk -> what is in it."""

    source: Source

    def __getitem__(self, start: int) -> "tuple[list, Counter, dict[int, str]] | Exception":
        rows, formats, bad = [], Counter(), {}
        for index in range(start, min(start + CHUNK, len(self.source))):
            try:
                data = self.source[index][0]
                picture = open_image(data, self.source.name(index))
                pixels = picture.pixels()
            except BadImage as error:
                bad[index] = str(error)
                continue
            except OSError as error:  # of the network or the disk: no word on the image
                return error
            raw = data.tobytes() if isinstance(data, np.ndarray) else data
            digest = np.frombuffer(blake2b(raw, digest_size=8).digest(), np.uint64)[0]
            rows.append((index, (picture.size, len(raw), digest, *look(pixels))))
            formats[picture.kind] += 1
        return rows, formats, bad


def same_files(found: Survey) -> Iterator[np.ndarray]:
    """Groups of indices of a part whose files are the same to the byte."""
    rows = np.flatnonzero(found.good)
    rows = rows[np.argsort(found.digests[rows], kind="stable")]
    for group in np.split(rows, np.flatnonzero(np.diff(found.digests[rows])) + 1):
        if len(group) > 1:
            yield group


def twins(first: Survey, second: Survey) -> list[Pair]:
    """Every image of the first part that is in the second, or nearly; in order, with the one there that it is most like."""
    rows = [np.flatnonzero(part.good) for part in (first, second)]
    looks = [Looks(*(array[r] for array in (part.digests, part.hashes, part.thumbnails)))
             for part, r in zip((first, second), rows, strict=True)]  # fmt: skip
    return [
        pair._replace(first=int(rows[0][pair.first]), second=int(rows[1][pair.second]))
        for pair in nearest(*looks)
    ]


def class_counts(source: Source) -> list[int]:
    """How many images each class has; empty if targets are no classes."""
    if not source.labels:
        return []
    values = source.targets
    if isinstance(values, Lists):
        values = values.values
    return np.bincount(values, minlength=len(source.labels)).tolist()


def other_class(first: Survey, second: Survey, pairs: Sequence[Pair]) -> int:
    """How many of these pairs are of different classes; 0 if the parts do not have the same classes, or none at all."""
    if first.source.labels != second.source.labels or not first.source.labels:
        return 0
    answers = [(first.source.answer(p.first), second.source.answer(p.second)) for p in pairs]
    return sum(one != other for one, other in answers)
