"""What a data set holds: sizes, formats, classes, what cannot be read, and what is there twice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from vitkit.curate.duplicates import Look, Looks, Pair, look, nearest
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
    result = Survey(
        source=source,
        sizes=np.zeros((count, 2), np.int32),
        bytes=np.zeros(count, np.int64),
        digests=np.zeros(count, np.uint64),
        hashes=np.zeros(count, np.uint64),
        thumbnails=np.zeros((count, 8, 8, 3), np.uint8),
        formats=Counter(),
        bad={},
    )
    source.prepare()
    starts = range(0, count, CHUNK)
    chunks = in_order(_Looking(source), starts, min(workers, len(starts) // 4))
    for seen, bad in shown(chunks, len(starts)):
        for image in seen:
            result.sizes[image.index] = image.size
            result.bytes[image.index] = image.bytes
            result.digests[image.index] = image.digest
            result.hashes[image.index] = image.look.hash
            result.thumbnails[image.index] = image.look.thumbnail
            result.formats[image.format] += 1
        result.bad.update(bad)
    return result


class _Seen(NamedTuple):
    """What a worker says of an image."""

    index: int
    size: tuple[int, int]
    bytes: int
    digest: np.uint64
    look: Look
    format: str


@dataclass(frozen=True, eq=False)
class _Looking:
    """First index of a chunk -> what is in it, and what cannot be read. Works in a worker."""

    source: Source

    def __getitem__(self, start: int) -> tuple[list[_Seen], dict[int, str]] | Exception:
        seen, bad = [], {}
        for index in range(start, min(start + CHUNK, len(self.source))):
            try:
                data = self.source[index][0]
                picture = open_image(data, self.source.name(index))
                pixels = picture.pixels()
            except BadImage as error:
                bad[index] = str(error)
                continue
            except OSError as error:  # of the network or the disk: it does not concern the image
                return error
            raw = data.tobytes() if isinstance(data, np.ndarray) else data
            digest = np.frombuffer(blake2b(raw, digest_size=8).digest(), np.uint64)[0]
            seen.append(_Seen(index, picture.size, len(raw), digest, look(pixels), picture.kind))
        return seen, bad


def same_files(part: Survey) -> Iterator[np.ndarray]:
    """Groups of indices of a part whose files are the same to the byte."""
    rows = np.flatnonzero(part.good)
    rows = rows[np.argsort(part.digests[rows], kind="stable")]
    for group in np.split(rows, np.flatnonzero(np.diff(part.digests[rows])) + 1):
        if len(group) > 1:
            yield group


def twins(first: Survey, second: Survey) -> list[Pair]:
    """Every image of the first part that is in the second, or nearly; in order, with the one there that it is most like."""
    first_rows = np.flatnonzero(first.good)
    second_rows = np.flatnonzero(second.good)
    pairs = []
    for pair in nearest(_looks(first, first_rows), _looks(second, second_rows)):
        indices = {"first": int(first_rows[pair.first]), "second": int(second_rows[pair.second])}
        pairs.append(pair._replace(**indices))
    return pairs


def _looks(part: Survey, rows: np.ndarray) -> Looks:
    return Looks(part.digests[rows], part.hashes[rows], part.thumbnails[rows])


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
