"""Find photographs of the same thing, taken in a burst: zoomed, shifted, rotated by a few degrees,
with another exposure or encoding; and copies of a photograph, mirrored or rotated by quarter turns. If they
are on both sides of a split, a model is measured on images that it has been trained on.

Two images are compared by their outlines (outlines.py). The threshold for similar images depends on the
data, because digits, X-rays and cut-out signs all have similar outlines:

- any two images of a class are similar if their similarity exceeds that of most pairs by far;
- for images taken one after another, by time or by name, the threshold is lower: as low as possible while
  nearly none of the neighbours above it would be there by chance, estimated from distant pairs.

Legend: N images, P pairs, S pixels of a thumbnail's side.
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitkit.data.images.pictures import Picture, is_stretched, picture_to_look_at
from vitkit.data.loading.workers import in_order, one_per_cpu, ranges, worth_starting
from vitkit.data.sources.outlines import (
    SIDE,
    centre_crops,
    correlations,
    crops,
    glances,
    glances_as_copied,
)
from vitkit.data.sources.source import Source, fingerprint
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadImage
from vitkit.system.storage.files import cache_dir, whole

MOST = 20_000  # most images among which bursts are looked for
VERSION = 3  # of the search; results of other versions in the cache are not used

# The order in which images were taken
LAG = 2  # largest distance of images in the order that are compared
SECONDS = 60  # largest time between two shots of a burst, if their times are known
FAR = (
    20  # distance in the order beyond which images are hardly of one burst; a quarter of few images
)
TIMED = 0.9  # smallest share of images with a known time to order all by time
TAKEN = 0x9003  # DateTimeOriginal
FRACTION = 0x9291  # SubSecTimeOriginal

# Which pairs of a class are compared in detail
SMALLEST = 24  # pixels of the shorter side below which an image is ignored
NEAREST = 4  # most images with which each image is compared
CANDIDATE = 0.7  # smallest coarse correlation of such a pair
COMPARED = 10**7  # most pairs of a data set for which all coarse correlations are computed
CHUNK = 32  # images that a worker processes together

# Thresholds of similarity
DRAWN = 1000  # distant pairs that are drawn to estimate usual similarities
FEW = 20  # number of distant pairs below which no estimate is made
ALIKE = 0.87  # smallest threshold for any two images of a class
ABOVE = 16  # distance of this threshold from usual similarities, in their spreads
IN_ORDER = 0.6  # smallest threshold for neighbours
ABOVE_IN_ORDER = 8  # distance of this threshold from usual similarities, in their spreads
BY_CHANCE = 0.01  # largest share of neighbours above the threshold that are there by chance


class Bursts(NamedTuple):
    """Groups of images of the same burst."""

    groups: np.ndarray
    """Group of each image, int64 (N,). Images with equal numbers are of one burst; most images are alone."""
    surest: int
    """The group with the most similar images, to show as an example."""


def find_bursts(source: Source) -> Bursts:
    """Find the bursts of a source. The result is cached under the names and sizes of the images, and which of them
    are of one class."""
    name = source.name(0) if len(source) else ""
    classes = _classes(source)
    searched = replace(source, targets=classes, labels=(), target_kind="class")
    key = f"{VERSION} {name} {fingerprint(searched)}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    path = cache_dir() / "bursts" / f"{digest}.npy"
    with suppress(OSError, ValueError):
        found = np.array(open_memmap(path, mode="r"))  # open_memmap never unpickles
        if found.shape == (len(source) + 1,):
            return Bursts(found[:-1], int(found[-1]))
    bursts = _find(searched)
    with suppress(OSError):  # without a cache, the search is repeated next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as new, new.open("wb") as file:
            np.save(file, np.append(bursts.groups, bursts.surest))
    return bursts


def _classes(source: Source) -> np.ndarray:
    """The class of each image, int64 (N,), numbered as they come: the names of classes, and one class instead of
    none, change nothing in the search."""
    if source.target_kind != "class":
        return np.zeros(len(source), dtype=np.int64)
    _, firsts, classes = np.unique(source.target_array, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[classes]


def _find(source: Source) -> Bursts:
    """Find the bursts by comparing images of classes."""
    # Small grey images, and the time of each photograph
    thumbnails, times = _thumbnails(source)
    readable = np.flatnonzero(thumbnails.any((1, 2)))
    if len(readable) < 2:
        return Bursts(np.arange(len(source)), 0)
    classes = source.target_array
    order = _order([source.name(i) for i in range(len(source))], times)

    # Pairs that may be similar, and distant pairs whose similarity is usual
    neighbours = _neighbours(order, readable)
    candidates = _candidates(thumbnails, classes, readable)
    usual = _far_pairs(order, classes, readable)
    similar = _Similarities(thumbnails)
    similar.look([*neighbours, *candidates, *usual], "looking for bursts")

    # Similar pairs, and the groups that they form
    bar_anywhere, least = _thresholds(similar.of(usual))
    bar_in_order = _threshold_in_order(similar.of(neighbours), similar.of(usual), least)
    similar_pairs = [pair for pair in candidates if similar[pair] >= bar_anywhere]
    similar_pairs += [
        pair for pair in neighbours if similar[pair] >= min(bar_in_order, bar_anywhere)
    ]
    groups = _groups(len(source), similar_pairs, similar, least)
    return Bursts(groups, _surest_group(groups, similar))


# Thumbnails


def _thumbnails(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails, grey, uint8 (N, S, S), of zeros for images that are unreadable or tiny; and the times of
    the photographs in seconds, (N,), NaN if unknown."""
    source.prepare()
    chunks = ranges(len(source), CHUNK)
    looks = in_order(partial(_examine, source), chunks, worth_starting(one_per_cpu(), len(chunks)))
    thumbnails = []
    times = []
    for grey, taken in bar("looking for bursts")(looks, len(chunks)):
        thumbnails.append(grey)
        times.append(taken)
    return np.concatenate(thumbnails), np.concatenate(times)


def _examine(source: Source, indices: range) -> tuple[np.ndarray, np.ndarray]:
    """The thumbnails and times of these images."""
    thumbnails = np.zeros((len(indices), SIDE, SIDE), dtype=np.uint8)
    times = np.full(len(indices), np.nan)
    for row, index in enumerate(indices):
        with suppress(BadImage):
            picture = source.picture(index)
            if min(picture.size) < SMALLEST:
                continue
            thumbnails[row] = _thumbnail(picture)
            times[row] = _time_taken(picture)
    return thumbnails, times


def _thumbnail(picture: Picture) -> np.ndarray:
    """A thumbnail, grey, uint8 (S, S). A large JPEG is decoded at a fraction of its size."""
    if is_stretched(picture):
        pixels = picture_to_look_at(picture)
    else:
        reduce = 8
        while reduce > 1 and min(picture.size) < SIDE * reduce:
            reduce //= 2
        pixels = picture.pixels(reduce=reduce)
    grey = Image.fromarray(pixels).convert("L")
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _time_taken(picture: Picture) -> float:
    """The time at which a photograph was taken, in seconds, from its Exif; NaN if unknown."""
    # There may be no Exif, it may be unreadable or without a time, or the time may be out of range
    with suppress(BadImage, KeyError, ValueError, OverflowError, OSError):
        exif = picture.exif()
        taken = datetime.strptime(str(exif[TAKEN])[:19], "%Y:%m:%d %H:%M:%S")
        fraction = str(exif.get(FRACTION, "")).strip()
        return taken.timestamp() + float(f"0.{fraction}" if fraction.isdigit() else 0)
    return np.nan


# Pairs to compare


class _Order(NamedTuple):
    """The order in which images were taken, as far as it is known."""

    places: np.ndarray
    """The images in that order, int64 (N,)."""
    folders: np.ndarray
    """(N,): number of the folder of each image; equal for all if they are ordered by time."""
    times: np.ndarray
    """(N,): time of each image in seconds; NaN if images are ordered by name."""


def _order(names: Sequence[str], times: np.ndarray) -> _Order:
    """Order images by time, if nearly all have one; otherwise by name in each folder, IMG_9 before IMG_10."""
    if np.isfinite(times).mean() >= TIMED:
        return _Order(np.argsort(times, kind="stable"), np.zeros(len(names), int), times)
    paths = [PurePath(name) for name in names]
    numbers = {folder: k for k, folder in enumerate(sorted({path.parent for path in paths}))}
    folders = np.array([numbers[path.parent] for path in paths])
    keys = [(folders[i], _natural(paths[i].name)) for i in range(len(paths))]
    places = np.array(sorted(range(len(paths)), key=keys.__getitem__))
    return _Order(places, folders, np.full(len(names), np.nan))


def _natural(name: str) -> list[tuple[str, int]]:
    """A key that sorts names by their numbers: the name as texts and numbers."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(part, 0) if k % 2 == 0 else ("", int(part)) for k, part in enumerate(parts)]


Pair = tuple[int, int]
"""Two images, the one with the lower index first."""


def _pairs(first: np.ndarray, second: np.ndarray) -> list[Pair]:
    """Pairs of two arrays of images, without repetitions and without pairs of equal images."""
    both = np.stack([np.minimum(first, second), np.maximum(first, second)], 1)
    return [tuple(pair) for pair in np.unique(both, axis=0).tolist() if pair[0] != pair[1]]


def _neighbours(order: _Order, readable: np.ndarray) -> list[Pair]:
    """Pairs of images that were taken one after another."""
    places = order.places[np.isin(order.places, readable)]
    pairs = []
    for lag in range(1, LAG + 1):
        first = places[:-lag]
        second = places[lag:]
        together = order.folders[first] == order.folders[second]
        together &= ~(np.abs(order.times[first] - order.times[second]) > SECONDS)
        pairs += _pairs(first[together], second[together])
    return pairs


def _far_pairs(order: _Order, classes: np.ndarray, readable: np.ndarray) -> list[Pair]:
    """Pairs of images of one class that are far apart in the order, drawn with a fixed seed. If all classes
    are small, images of any classes are paired."""
    # Images of classes that are large enough for distant pairs; all images if no class is
    sizes = np.bincount(classes[readable], minlength=int(classes.max()) + 1)
    large = readable[sizes[classes[readable]] > 2 * FAR]
    apart = FAR
    if not len(large):
        large = readable
        classes = np.zeros_like(classes)
        apart = min(FAR, len(readable) // 4)

    # Two images of a class; twice as many pairs as are needed
    random = np.random.default_rng(0)
    by_class = large[np.argsort(classes[large], kind="stable")]
    starts = np.searchsorted(classes[by_class], classes[by_class], "left")
    ends = np.searchsorted(classes[by_class], classes[by_class], "right")
    rows = random.integers(0, len(by_class), 2 * DRAWN)
    others = random.integers(starts[rows], ends[rows])
    first = by_class[rows]
    second = by_class[others]

    # Those that are far enough apart in the order
    place = np.empty(len(classes), dtype=np.int64)
    place[order.places] = np.arange(len(classes))
    far = np.abs(place[first] - place[second]) > apart
    return _pairs(first[far], second[far])[:: max(1, int(far.sum()) // DRAWN)]


def _candidates(thumbnails: np.ndarray, classes: np.ndarray, readable: np.ndarray) -> list[Pair]:
    """Pairs of images of one class, each with its most similar images by coarse correlation. Empty if
    computing all coarse correlations would take long."""
    sizes = np.bincount(classes[readable])
    if np.square(sizes.astype(np.float64)).sum() > COMPARED:
        return []
    items = []
    for number in np.flatnonzero(sizes > 1):
        own = readable[classes[readable] == number]
        items += [own[chunk.start : chunk.stop].tolist() for chunk in ranges(len(own), CHUNK)]
    task = partial(_nearest, thumbnails, glances(thumbnails), classes, readable)
    pairs = []
    results = in_order(task, items, worth_starting(one_per_cpu(), len(items)))
    for found in bar("looking for bursts")(results, len(items)):
        pairs += found
    return sorted(set(pairs))


def _nearest(
    thumbnails: np.ndarray,
    glances: np.ndarray,
    classes: np.ndarray,
    readable: np.ndarray,
    images: list[int],
) -> list[Pair]:
    """Pairs of each of these images of one class with its most similar images."""
    others = readable[classes[readable] == classes[images[0]]]
    copied = glances_as_copied(glances[others])
    pairs = []
    for image in images:
        correlation = (crops(thumbnails[image]) @ glances[others].T).max(0)
        turned = (copied @ centre_crops(thumbnails[image]).T).max((0, 2))  # (others,)
        correlation = np.maximum(correlation, turned)
        correlation[others == image] = -1
        nearest = np.argsort(-correlation, kind="stable")[:NEAREST]
        nearest = others[nearest[correlation[nearest] >= CANDIDATE]]
        pairs += [(min(image, other), max(image, other)) for other in nearest.tolist()]
    return pairs


# Detailed comparison


class _Similarities:
    """Similarities of the outlines of two images by pair, each computed once: the inverse hyperbolic
    tangent of their correlation (Fisher's transformation)."""

    def __init__(self, thumbnails: np.ndarray):
        self.thumbnails = thumbnails
        self.known: dict[Pair, float] = {}

    def look(self, pairs: Sequence[Pair], text: str) -> None:
        """Compute the similarities of these pairs that are not known yet, with a progress bar."""
        partners: dict[int, list[int]] = {}
        for first, second in sorted(set(pairs) - self.known.keys()):
            partners.setdefault(first, []).append(second)
        items = list(partners.items())
        chunks = [items[chunk.start : chunk.stop] for chunk in ranges(len(items), CHUNK)]
        task = partial(correlations, self.thumbnails)
        results = in_order(task, chunks, worth_starting(one_per_cpu(), len(chunks)))
        for chunk, found in zip(chunks, bar(text)(results, len(chunks)), strict=True):
            for (first, seconds), row in zip(chunk, found, strict=True):
                values = np.arctanh(np.clip(row, 0, 0.9999)).tolist()
                self.known |= {
                    (first, second): z for second, z in zip(seconds, values, strict=True)
                }

    def __getitem__(self, pair: Pair) -> float:
        return self.known[pair]

    def of(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The similarities of these pairs: (P,)."""
        return np.array([self.known[pair] for pair in pairs])


# Thresholds and groups


def _thresholds(usual: np.ndarray) -> tuple[float, float]:
    """The threshold of similarity for any two images, and the lowest possible one for neighbours: multiples
    of a spread above the lower quartile of usual similarities. The lower quartile is used because bursts
    may be among the usual pairs too, in the upper quartiles."""
    anywhere = np.arctanh(ALIKE)
    in_order = np.arctanh(IN_ORDER)
    if len(usual) < FEW:
        return anywhere, anywhere
    least, quarter = np.quantile(usual, (0.05, 0.25))
    spread = quarter - least
    anywhere = max(anywhere, quarter + ABOVE * spread)
    return anywhere, max(in_order, quarter + ABOVE_IN_ORDER * spread)


def _threshold_in_order(neighbours: np.ndarray, usual: np.ndarray, least: float) -> float:
    """The threshold of similarity for neighbours: the lowest for which at most a share BY_CHANCE of the
    neighbours above it would be there if the order had no meaning, estimated from the similarities of
    distant pairs, `usual`. Infinity if there is none."""
    found = np.inf
    for candidate in np.sort(neighbours[neighbours >= least])[::-1]:
        by_chance = len(neighbours) * (1 + (usual >= candidate).sum()) / (1 + len(usual))
        if by_chance <= BY_CHANCE * (neighbours >= candidate).sum():
            found = candidate
    return float(found)


def _surest_group(groups: np.ndarray, similar: _Similarities) -> int:
    """The group whose least similar image is most similar to its middle image, which gives the group its
    number; 0 if all images are alone."""
    least: dict[int, float] = {}
    for i in np.flatnonzero(groups != np.arange(len(groups))).tolist():
        middle = int(groups[i])
        likeness = similar[min(i, middle), max(i, middle)]
        least[middle] = min(likeness, least.get(middle, np.inf))
    return max(least, key=least.__getitem__, default=0)


def _groups(
    count: int, similar_pairs: Sequence[Pair], similar: _Similarities, least: float
) -> np.ndarray:
    """The group of each image, (N,). Similar pairs link images. Every image of a group must also be somewhat
    similar to the image with the most links, so that a chain does not run through a whole class."""
    groups = np.arange(count)
    links = sorted(set(similar_pairs))
    while links:
        # Connected components, each with the image that has the most links in its middle
        first, second = np.array(links).T
        shape = (count, count)
        graph = coo_array((np.ones(len(links)), (first, second)), shape)
        _, parts = connected_components(graph, directed=False)
        degrees = np.bincount(np.r_[first, second], minlength=count)
        by_degree = np.lexsort((np.arange(count), -degrees, parts))
        is_first = np.diff(parts[by_degree], prepend=-1) > 0
        middle_of = by_degree[is_first][parts]  # (N,)

        # The images that are similar to the middle are a group; the others are grouped again
        members = np.flatnonzero((degrees > 0) & (middle_of != np.arange(count)))
        to_middle = [(min(i, middle_of[i]), max(i, middle_of[i])) for i in members]
        to_middle = [(int(i), int(j)) for i, j in to_middle]
        similar.look(to_middle, "looking for bursts")
        near = members[similar.of(to_middle) >= least]
        groups[near] = middle_of[near]
        settled = np.zeros(count, dtype=bool)
        settled[near] = True
        settled[middle_of[members]] = True
        links = [(i, j) for i, j in links if not settled[i] and not settled[j]]
    return groups
