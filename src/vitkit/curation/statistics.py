"""Statistics of a data set: sizes, formats, classes, unreadable images, and duplicates."""

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
CHUNK = 32  # images in a task of a worker


class Survey(NamedTuple):
    """Measurements of all images of one part of a data set, one row per example; rows of unreadable
    images are 0."""

    source: Source
    """The part."""
    sizes: np.ndarray
    """Height and width: int32 (N, 2)."""
    bytes: np.ndarray
    """Size of the file or array: int64 (N,)."""
    digests: np.ndarray
    """Digest of the file or array: uint64 (N,)."""
    thumbnails: np.ndarray
    """Thumbnails in colour: uint8 (N, 8, 8, 3)."""
    greys: np.ndarray
    """Thumbnails in grey: uint8 (N, 32, 32)."""
    sharpness: np.ndarray
    """Results of the function `sharpness`: float32 (N,)."""
    stretched: np.ndarray
    """Whether the levels were stretched to the range from black to white, so that brightness means
    nothing: bool (N,)."""
    formats: Counter
    """Number of images of each format."""
    bad: dict[int, str]
    """The problem of each unreadable image, by index."""

    @property
    def good(self) -> np.ndarray:
        """Whether each image can be read: bool (N,)."""
        good = np.ones(len(self.source), dtype=bool)
        good[list(self.bad)] = False
        return good


def survey(source: Source, workers: int, shown: Shown = silent) -> Survey:
    """Measure every image, in `workers` processes. Raises OSError if the network or the disk fails."""
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
    reports = in_order(partial(_measure, source), chunks, worth_starting(workers, len(chunks)))
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
    """The measurements of an image, made by a worker."""

    index: int
    size: tuple[int, int]
    bytes: int
    digest: np.uint64
    appearance: Appearance
    sharpness: float
    stretched: bool
    format: str


def _measure(source: Source, indices: range) -> tuple[list[_Image], dict[int, str]]:
    """Measure these images. Returns also the problems of those that cannot be read, by index. Raises
    OSError if the network or the disk fails."""
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
    """The sharpness of an image, uint8 (h, w, 3): the variance of the Laplacian of its grey levels,
    divided by the variance of the levels, at no more than SHARP_SIDE pixels per side; 0 without
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
    """Groups of indices of a part whose files are identical."""
    rows = np.flatnonzero(part.good)
    by_digest = rows[np.argsort(part.digests[rows], kind="stable")]
    group_starts = np.flatnonzero(np.diff(part.digests[by_digest])) + 1
    for group in np.split(by_digest, group_starts):
        if len(group) > 1:
            yield group


def near_duplicates(first: Survey, second: Survey) -> list[Pair]:
    """The images of the first part that have a duplicate in the second, in order, each with its
    nearest duplicate."""
    pairs = nearest(_appearances(first), _appearances(second))
    return _renumbered(pairs, np.flatnonzero(first.good), np.flatnonzero(second.good))


def repeats(surveys: Sequence[Survey]) -> list[Pair]:
    """The images that have an earlier duplicate, in order, each with its nearest duplicate. The images of
    all parts are numbered one part after another."""
    parts = map(_appearances, surveys)
    all_parts = Appearances(*map(np.concatenate, zip(*parts, strict=True)))
    good = np.concatenate([part.good for part in surveys])
    rows = np.flatnonzero(good)
    return _renumbered(nearest(all_parts, all_parts, earlier=True), rows, rows)


def _appearances(part: Survey) -> Appearances:
    """Digests and thumbnails of the readable images."""
    good = part.good
    return Appearances(part.digests[good], part.thumbnails[good], part.greys[good])


def _renumbered(
    pairs: Iterable[Pair], first_rows: np.ndarray, second_rows: np.ndarray
) -> list[Pair]:
    """Pairs, with indices among the readable images replaced by indices among all images."""
    renumbered = []
    for pair in pairs:
        i = int(first_rows[pair.first])
        j = int(second_rows[pair.second])
        renumbered.append(replace(pair, first=i, second=j))
    return renumbered


def class_counts(source: Source) -> list[int]:
    """The number of images in each class; empty if targets are not classes."""
    if not source.labels:
        return []
    targets = source.targets
    if isinstance(targets, Lists):
        return np.bincount(targets.values, minlength=len(source.labels)).tolist()
    return np.bincount(source.target_array, minlength=len(source.labels)).tolist()


def count_other_class(first: Survey, second: Survey, pairs: Sequence[Pair]) -> int:
    """The number of pairs whose images have different classes; 0 if the parts have different sets of
    classes, or none."""
    if first.source.labels != second.source.labels or not first.source.labels:
        return 0
    count = 0
    for pair in pairs:
        count += first.source.answer(pair.first) != second.source.answer(pair.second)
    return count
