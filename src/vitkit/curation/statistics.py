"""What a data set holds: sizes, formats, classes, what cannot be read, and what is there twice."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitkit.curation.duplicates import SIDE, Appearance, Appearances, Pair, appearance, nearest
from vitkit.data import Lists, Source, in_order, open_image, picture_to_look_at, ranges
from vitkit.data.images.pictures import is_stretched
from vitkit.data.loading.workers import worth_starting
from vitkit.system.console.progress import Shown, silent
from vitkit.system.errors import BadImage

SHARP_SIDE = 256  # pixels at which sharpness is measured
CHUNK = 32  # images that a worker looks at before it reports


class Survey(NamedTuple):
    """The content of one part of a data set, one row per example; rows of images that cannot be
    read are zeros."""

    source: Source
    sizes: np.ndarray
    """int32 (N, 2): height and width."""
    bytes: np.ndarray
    """int64 (N,): of the file, or the array."""
    digests: np.ndarray
    """uint64 (N,): of the same."""
    thumbnails: np.ndarray
    """uint8 (N, 8, 8, 3)"""
    greys: np.ndarray
    """uint8 (N, 32, 32): see duplicates.py."""
    sharpness: np.ndarray
    """float32 (N,): see `sharpness`."""
    stretched: np.ndarray
    """bool (N,): which were looked at stretched from black to white, so that dark is not dark."""
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
    """Look at every image once, in `workers` processes. Raises OSError if the network or the disk
    fails."""
    count = len(source)
    result = Survey(
        source=source,
        sizes=np.zeros((count, 2), np.int32),
        bytes=np.zeros(count, np.int64),
        digests=np.zeros(count, np.uint64),
        thumbnails=np.zeros((count, 8, 8, 3), np.uint8),
        greys=np.zeros((count, SIDE, SIDE), np.uint8),
        sharpness=np.zeros(count, np.float32),
        stretched=np.zeros(count, bool),
        formats=Counter(),
        bad={},
    )
    source.prepare()
    chunks = ranges(count, CHUNK)
    reports = in_order(partial(_look, source), chunks, worth_starting(workers, len(chunks)))
    for images, bad in shown(reports, len(chunks)):
        for image in images:
            result.sizes[image.index] = image.size
            result.bytes[image.index] = image.bytes
            result.digests[image.index] = image.digest
            result.thumbnails[image.index] = image.appearance.thumbnail
            result.greys[image.index] = image.appearance.grey
            result.sharpness[image.index] = image.sharpness
            result.stretched[image.index] = image.stretched
            result.formats[image.format] += 1
        result.bad.update(bad)
    return result


@dataclass(frozen=True)
class _Image:
    """What a worker says of an image."""

    index: int
    size: tuple[int, int]
    bytes: int
    digest: np.uint64
    appearance: Appearance
    sharpness: float
    stretched: bool
    format: str


def _look(source: Source, indices: range) -> tuple[list[_Image], dict[int, str]]:
    """What these images hold; and for those that cannot be read, by index, what is wrong. Raises
    OSError if the network or the disk fails, which is not the image's fault."""
    images = []
    bad = {}
    for index in indices:
        try:
            data = source[index][0]
            picture = open_image(data, source.name(index))
            pixels = picture_to_look_at(picture)
        except BadImage as error:
            bad[index] = str(error)
            continue
        if isinstance(data, np.ndarray):
            data = data.tobytes()
        digest = np.frombuffer(blake2b(data, digest_size=8).digest(), np.uint64)[0]
        image = _Image(
            index=index,
            size=picture.size,
            bytes=len(data),
            digest=digest,
            appearance=appearance(pixels),
            sharpness=sharpness(pixels),
            stretched=is_stretched(picture),
            format=picture.kind,
        )
        images.append(image)
    return images, bad


def sharpness(pixels: np.ndarray) -> float:
    """How sharp an image is, uint8 (h, w, 3): the variance of the Laplacian of its grey levels, at
    most SIDE pixels a side, over the variance of the levels themselves; 0 for one without
    contrast."""
    image = Image.fromarray(pixels).convert("L")
    image.thumbnail((SHARP_SIDE, SHARP_SIDE))
    grey = np.asarray(image, np.float32)
    if min(grey.shape) < 3 or grey.std() < 1:
        return 0.0
    inner = grey[1:-1, 1:-1]
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return float((around - 4 * inner).var() / grey.var())


def identical_files(part: Survey) -> Iterator[np.ndarray]:
    """Groups of indices of a part whose files are the same to the byte."""
    rows = np.flatnonzero(part.good)
    by_digest = rows[np.argsort(part.digests[rows], kind="stable")]
    group_starts = np.flatnonzero(np.diff(part.digests[by_digest])) + 1
    for group in np.split(by_digest, group_starts):
        if len(group) > 1:
            yield group


def near_duplicates(first: Survey, second: Survey) -> list[Pair]:
    """The images of the first part that have a duplicate in the second, in order, each with its
    nearest one."""
    pairs = nearest(_appearances(first), _appearances(second))
    return _renumbered(pairs, np.flatnonzero(first.good), np.flatnonzero(second.good))


def repeats(surveys: Sequence[Survey]) -> list[Pair]:
    """The images of all parts, numbered one part after the other, that have a duplicate before
    them, in order, each with its nearest one."""
    parts = map(_appearances, surveys)
    all_parts = Appearances(*map(np.concatenate, zip(*parts, strict=True)))
    good = np.concatenate([part.good for part in surveys])
    rows = np.flatnonzero(good)
    return _renumbered(nearest(all_parts, all_parts, earlier=True), rows, rows)


def _appearances(part: Survey) -> Appearances:
    """What the images look like that can be read."""
    good = part.good
    return Appearances(part.digests[good], part.thumbnails[good], part.greys[good])


def _renumbered(
    pairs: Iterable[Pair], first_rows: np.ndarray, second_rows: np.ndarray
) -> list[Pair]:
    """Pairs of images that can be read, by their indices among all images."""
    renumbered = []
    for pair in pairs:
        i = int(first_rows[pair.first])
        j = int(second_rows[pair.second])
        renumbered.append(replace(pair, first=i, second=j))
    return renumbered


def class_counts(source: Source) -> list[int]:
    """How many images each class has; empty if targets are not classes."""
    if not source.labels:
        return []
    classes = source.targets
    if isinstance(classes, Lists):
        classes = classes.values
    return np.bincount(classes, minlength=len(source.labels)).tolist()


def count_other_class(first: Survey, second: Survey, pairs: Sequence[Pair]) -> int:
    """How many of these pairs are of different classes; 0 if the parts do not have the same
    classes, or none at all."""
    if first.source.labels != second.source.labels or not first.source.labels:
        return 0
    count = 0
    for pair in pairs:
        count += first.source.answer(pair.first) != second.source.answer(pair.second)
    return count
