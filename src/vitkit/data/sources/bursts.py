"""Which photographs are shots of one thing, taken in a burst: zoomed, shifted, a few degrees turned,
exposed otherwise, encoded again; or copies of a photograph, mirrored or turned by quarters. If they are on
both sides of a split, a model is measured on what it has learned.

Two images are compared by their outlines (outlines.py). What counts as alike is fitted to the data, for
digits, X-rays and cut-out signs all have much the same outline:

- anywhere in a class, images are alike if they are far more so than most of its pairs;
- one after another, by time or by name, less is needed: so much that of the neighbours that are as
  alike nearly none are so by chance, as pairs far apart tell.

Legend: N images, P pairs, S pixels of a thumbnail's side.
"""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
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
from vitkit.data.loading.workers import in_order, ranges, worth_starting
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
from vitkit.system.machine import cpus
from vitkit.system.storage.files import cache_dir, whole

MOST = 20_000  # images among which bursts are looked for
VERSION = 3  # of what is found, for the cache

# The order in which images were taken
LAG = 2  # places apart that are compared
SECONDS = 60  # between two shots of a burst, if their times are known
FAR = 20  # places apart at which two images are hardly of one burst, or a quarter of few images
TIMED = 0.9  # share of images with a time from which the order is that of time
TAKEN = 0x9003  # DateTimeOriginal
FRACTION = 0x9291  # SubSecTimeOriginal

# Which pairs of a class are compared closely
SMALLEST = 24  # pixels of a side below which an image shows too little to tell
NEAREST = 4  # images that each is compared with closely
CANDIDATE = 0.7  # correlation from which they are
COMPARED = 10**7  # pairs up to which each is compared with each
CHUNK = 32  # images whose partners are looked at together

# What is alike
DRAWN = 1000  # pairs that tell what is usual
FEW = 20  # pairs below which that is not known
ALIKE = 0.87  # at least, anywhere,
ABOVE = 16  # and so many spreads above what is usual;
IN_ORDER = 0.6  # of neighbours,
ABOVE_IN_ORDER = 8
BY_CHANCE = 0.01  # of the neighbours that are called alike, at most


class Bursts(NamedTuple):
    """Which images are of one burst."""

    groups: np.ndarray
    """The group of each image, int64 (N,): those with the same number are of one burst, and most images
    are alone."""
    surest: int
    """The number of the group whose images are the most alike: an example to show."""


def find_bursts(source: Source) -> Bursts:
    """Which images are of one burst. What was found is kept in the cache, by names and sizes."""
    name = source.name(0) if len(source) else ""
    key = f"{VERSION} {name} {fingerprint(source)}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    path = cache_dir() / "bursts" / f"{digest}.npy"
    with suppress(OSError, ValueError):
        found = np.array(open_memmap(path, mode="r"))  # which never unpickles
        if found.shape == (len(source) + 1,):
            return Bursts(found[:-1], int(found[-1]))
    bursts = _find(source)
    with suppress(OSError):  # a cache that cannot be written costs a little time
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as new, new.open("wb") as file:
            np.save(file, np.append(bursts.groups, bursts.surest))
    return bursts


def _find(source: Source) -> Bursts:
    """Finds the groups by looking at every image."""
    # Small grey images, and when each was taken
    thumbnails, times = _thumbnails(source)
    readable = np.flatnonzero(thumbnails.any((1, 2)))
    if len(readable) < 2:
        return Bursts(np.arange(len(source)), 0)
    classes = np.zeros(len(source), dtype=np.int64)
    if source.target_kind == "class":
        classes = source.target_array
    order = _order([source.name(i) for i in range(len(source))], times)

    # Pairs that may be alike, and pairs that tell what is usual
    neighbours = _neighbours(order, readable)
    candidates = _candidates(thumbnails, classes, readable)
    usual = _far_pairs(order, classes, readable)
    similar = _Similarities(thumbnails)
    similar.look([*neighbours, *candidates, *usual], "looking for bursts")

    # What is alike
    bar_anywhere, least = _thresholds(similar.of(usual))
    bar_in_order = _in_order(similar.of(neighbours), similar.of(usual), least)
    alike = [pair for pair in candidates if similar[pair] >= bar_anywhere]
    alike += [pair for pair in neighbours if similar[pair] >= min(bar_in_order, bar_anywhere)]
    groups = _groups(len(source), alike, similar, least)
    return Bursts(groups, _surest(groups, similar))


# Thumbnails


def _thumbnails(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Grey, uint8 (N, S, S), zeros for images that cannot be read or are tiny; and when each was taken, in
    seconds (N,), NaN if that is not known."""
    source.prepare()
    chunks = ranges(len(source), CHUNK)
    looks = in_order(partial(_look, source), chunks, worth_starting(cpus(), len(chunks)))
    thumbnails = []
    times = []
    for grey, taken in bar("looking for bursts")(looks, len(chunks)):
        thumbnails.append(grey)
        times.append(taken)
    return np.concatenate(thumbnails), np.concatenate(times)


def _look(source: Source, indices: range) -> tuple[np.ndarray, np.ndarray]:
    thumbnails = np.zeros((len(indices), SIDE, SIDE), dtype=np.uint8)
    times = np.full(len(indices), np.nan)
    for row, index in enumerate(indices):
        with suppress(BadImage):
            picture = source.picture(index)
            if min(picture.size) < SMALLEST:
                continue
            thumbnails[row] = _thumbnail(picture)
            times[row] = _taken(picture)
    return thumbnails, times


def _thumbnail(picture: Picture) -> np.ndarray:
    """Grey, uint8 (S, S). A large JPEG is decoded at a fraction of its size."""
    if is_stretched(picture):
        pixels = picture_to_look_at(picture)
    else:
        reduce = 8
        while reduce > 1 and min(picture.size) < SIDE * reduce:
            reduce //= 2
        pixels = picture.pixels(reduce=reduce)
    grey = Image.fromarray(pixels).convert("L")
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _taken(picture: Picture) -> float:
    """When a photograph was taken, in seconds, as its Exif says; NaN if it does not."""
    # No Exif, none that can be read, no time in it, no time at all, or one before computers' times
    with suppress(BadImage, KeyError, ValueError, OverflowError, OSError):
        exif = picture.exif()
        taken = datetime.strptime(str(exif[TAKEN])[:19], "%Y:%m:%d %H:%M:%S")
        fraction = str(exif.get(FRACTION, "")).strip()
        return taken.timestamp() + float(f"0.{fraction}" if fraction.isdigit() else 0)
    return np.nan


# Which pairs are looked at


class _Order(NamedTuple):
    """The order in which images were taken, as far as it is known."""

    places: np.ndarray
    """The images in that order, int64 (N,)."""
    folders: np.ndarray
    """Which folder each image lies in, (N,); all in one if times are known."""
    times: np.ndarray
    """(N,)"""


def _order(names: Sequence[str], times: np.ndarray) -> _Order:
    """By time, if nearly all have one; else by name within each folder, IMG_9 before IMG_10."""
    if np.isfinite(times).mean() >= TIMED:
        return _Order(np.argsort(times, kind="stable"), np.zeros(len(names), int), times)
    paths = [PurePath(name) for name in names]
    numbers = {folder: k for k, folder in enumerate(sorted({path.parent for path in paths}))}
    folders = np.array([numbers[path.parent] for path in paths])
    keys = [(folders[i], _natural(paths[i].name)) for i in range(len(paths))]
    places = np.array(sorted(range(len(paths)), key=keys.__getitem__))
    return _Order(places, folders, np.full(len(names), np.nan))


def _natural(name: str) -> list[tuple[str, int]]:
    """A name as texts and numbers, by which people sort."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(part, 0) if k % 2 == 0 else ("", int(part)) for k, part in enumerate(parts)]


Pair = tuple[int, int]
"""Two images, the one with the lower index first."""


def _pairs(first: np.ndarray, second: np.ndarray) -> list[Pair]:
    """Each pair once."""
    both = np.stack([np.minimum(first, second), np.maximum(first, second)], 1)
    return [tuple(pair) for pair in np.unique(both, axis=0).tolist() if pair[0] != pair[1]]


def _neighbours(order: _Order, readable: np.ndarray) -> list[Pair]:
    """Images that were taken one after another."""
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
    """Pairs of images of one class, drawn at random but always alike, that were not taken one soon
    after another. If all classes are small, any two images are drawn."""
    # Of classes in which images can be so far apart; if none is so large, of all images
    sizes = np.bincount(classes[readable], minlength=int(classes.max()) + 1)
    large = readable[sizes[classes[readable]] > 2 * FAR]
    apart = FAR
    if not len(large):
        large = readable
        classes = np.zeros_like(classes)
        apart = min(FAR, len(readable) // 4)

    # Two images of a class, twice as many pairs as are needed
    random = np.random.default_rng(0)
    by_class = large[np.argsort(classes[large], kind="stable")]
    starts = np.searchsorted(classes[by_class], classes[by_class], "left")
    ends = np.searchsorted(classes[by_class], classes[by_class], "right")
    rows = random.integers(0, len(by_class), 2 * DRAWN)
    others = random.integers(starts[rows], ends[rows])
    first = by_class[rows]
    second = by_class[others]

    # Those far enough apart in the order
    place = np.empty(len(classes), dtype=np.int64)
    place[order.places] = np.arange(len(classes))
    far = np.abs(place[first] - place[second]) > apart
    return _pairs(first[far], second[far])[:: max(1, int(far.sum()) // DRAWN)]


def _candidates(thumbnails: np.ndarray, classes: np.ndarray, readable: np.ndarray) -> list[Pair]:
    """Images of one class, each with those that are most like it at a glance. There are none if
    comparing each with each would take long."""
    sizes = np.bincount(classes[readable])
    if np.square(sizes.astype(np.float64)).sum() > COMPARED:
        return []
    items = []
    for number in np.flatnonzero(sizes > 1):
        own = readable[classes[readable] == number]
        items += [own[chunk.start : chunk.stop].tolist() for chunk in ranges(len(own), CHUNK)]
    task = partial(_nearest, thumbnails, glances(thumbnails), classes, readable)
    pairs = []
    results = in_order(task, items, worth_starting(cpus(), len(items)))
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
    """Those that are most like each of these images of one class."""
    others = readable[classes[readable] == classes[images[0]]]
    copied = glances_as_copied(glances[others])
    pairs = []
    for image in images:
        alike = (crops(thumbnails[image]) @ glances[others].T).max(0)
        turned = (copied @ centre_crops(thumbnails[image]).T).max((0, 2))  # (others,)
        alike = np.maximum(alike, turned)
        alike[others == image] = -1
        nearest = np.argsort(-alike, kind="stable")[:NEAREST]
        nearest = others[nearest[alike[nearest] >= CANDIDATE]]
        pairs += [(min(image, other), max(image, other)) for other in nearest.tolist()]
    return pairs


# The close look


class _Similarities:
    """How alike the outlines of two images are, by pair, each computed once: the inverse hyperbolic
    tangent of their correlation, whose differences mean the same anywhere (Fisher)."""

    def __init__(self, thumbnails: np.ndarray):
        self.thumbnails = thumbnails
        self.known: dict[Pair, float] = {}

    def look(self, pairs: Sequence[Pair], text: str) -> None:
        """Compute those of these pairs that are not known yet, under a bar."""
        partners: dict[int, list[int]] = {}
        for first, second in sorted(set(pairs) - self.known.keys()):
            partners.setdefault(first, []).append(second)
        items = list(partners.items())
        chunks = [items[chunk.start : chunk.stop] for chunk in ranges(len(items), CHUNK)]
        task = partial(correlations, self.thumbnails)
        results = in_order(task, chunks, worth_starting(cpus(), len(chunks)))
        for chunk, found in zip(chunks, bar(text)(results, len(chunks)), strict=True):
            for (first, seconds), row in zip(chunk, found, strict=True):
                values = np.arctanh(np.clip(row, 0, 0.9999)).tolist()
                self.known |= {
                    (first, second): z for second, z in zip(seconds, values, strict=True)
                }

    def __getitem__(self, pair: Pair) -> float:
        return self.known[pair]

    def of(self, pairs: Sequence[Pair]) -> np.ndarray:
        """(P,)"""
        return np.array([self.known[pair] for pair in pairs])


# What is alike


def _thresholds(usual: np.ndarray) -> tuple[float, float]:
    """From where on images are alike anywhere, and where neighbours may be: so many spreads above the
    lower quarter of what is usual. Bursts are among those pairs too, in the upper quarters."""
    anywhere = np.arctanh(ALIKE)
    in_order = np.arctanh(IN_ORDER)
    if len(usual) < FEW:
        return anywhere, anywhere
    least, quarter = np.quantile(usual, (0.05, 0.25))
    spread = quarter - least
    anywhere = max(anywhere, quarter + ABOVE * spread)
    return anywhere, max(in_order, quarter + ABOVE_IN_ORDER * spread)


def _in_order(neighbours: np.ndarray, usual: np.ndarray, least: float) -> float:
    """The least similarity from which on neighbours are alike: of all that are as similar, a share of
    BY_CHANCE at most would be if the order meant nothing, by what is `usual` of pairs far apart.
    Infinity if there is none."""
    found = np.inf
    for candidate in np.sort(neighbours[neighbours >= least])[::-1]:
        by_chance = len(neighbours) * (1 + (usual >= candidate).sum()) / (1 + len(usual))
        if by_chance <= BY_CHANCE * (neighbours >= candidate).sum():
            found = candidate
    return float(found)


def _surest(groups: np.ndarray, similar: _Similarities) -> int:
    """The group whose least similar image is most like the one in its middle, which gives it its number;
    0 if all are alone."""
    least: dict[int, float] = {}
    for i in np.flatnonzero(groups != np.arange(len(groups))).tolist():
        middle = int(groups[i])
        likeness = similar[min(i, middle), max(i, middle)]
        least[middle] = min(likeness, least.get(middle, np.inf))
    return max(least, key=least.__getitem__, default=0)


def _groups(count: int, alike: Sequence[Pair], similar: _Similarities, least: float) -> np.ndarray:
    """The group of each image, (N,): linked by pairs that are alike, and each somewhat like the one
    that has most links, so that a chain does not run through a whole class."""
    groups = np.arange(count)
    links = sorted(set(alike))
    while links:
        # What hangs together, each with the image in its middle
        first, second = np.array(links).T
        shape = (count, count)
        graph = coo_array((np.ones(len(links)), (first, second)), shape)
        _, parts = connected_components(graph, directed=False)
        degrees = np.bincount(np.r_[first, second], minlength=count)
        by_degree = np.lexsort((np.arange(count), -degrees, parts))
        is_first = np.diff(parts[by_degree], prepend=-1) > 0
        middle_of = by_degree[is_first][parts]  # (N,)

        # Those that are like it are a group; the others are looked at again
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
