"""Which images are the same, or nearly: digests of files, and a perceptual hash of what they show.

The hash is pHash (Zauner, 2010): the image in grey at 32 x 32, its discrete cosine transform, and of the 8 x 8 lowest
frequencies one bit each: above their median or not. Images whose hashes differ in at most DISTANCE bits are candidates;
they count as near-duplicates where their 8 x 8 colour thumbnails, too, differ little beside their own contrast: digits on
black, or X-rays, are all within a few levels of one another. That finds what was scaled, encoded again, or slightly changed
in colour or framing. It does not find mirrored, turned or strongly cropped images; and empty ones, which have no contrast,
only where the files are the same.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

DISTANCE = 8  # bits of 64
# A thumbnail differs by no more than so many levels of 255, root mean square, after both have the same mean,
DIFFERENCE = 20.0
# and by no more than this share of the standard deviation of the flatter one; twice that in at most CLOSE bits.
SHARE = 0.35
CLOSE = 2
FLAT = 1.0  # levels by which a thumbnail varies over its places, of an image that shows nothing
BLOCK = 1 << 21  # comparisons at once
SLICE = 50_000  # candidates whose thumbnails are compared at once


class Look(NamedTuple):
    """What an image looks like, in few bytes."""

    hash: np.uint64
    thumbnail: np.ndarray
    """uint8 (8, 8, 3)"""


class Looks(NamedTuple):
    """Of N images, one row each."""

    digests: np.ndarray
    """uint64 (N,): of the files."""
    hashes: np.ndarray
    """uint64 (N,)"""
    thumbnails: np.ndarray
    """uint8 (N, 8, 8, 3)"""


class Pair(NamedTuple):
    """An image of one set, by its index, and what it is most like in another."""

    first: int
    second: int
    bits: int
    """In which their hashes differ; -1 where the files are the same."""
    count: int
    """How many images of the other set it is like: of a picture that comes a thousand times there, one is named."""


def look(pixels: np.ndarray) -> Look:
    """Of an image, uint8 (h, w, 3)."""
    from scipy.fft import dctn

    image = Image.fromarray(pixels)
    grey = image.convert("L").resize((32, 32), Image.Resampling.BILINEAR)
    low = dctn(np.asarray(grey, dtype=np.float64), norm="ortho")[:8, :8].ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    thumbnail = np.asarray(image.resize((8, 8), Image.Resampling.BOX))
    return Look(np.packbits(bits).view(np.uint64)[0], thumbnail)


def nearest(first: Looks, second: Looks) -> Iterator[Pair]:
    """Every image of the first set that is in the second, or nearly, in order, with the one there that it is most like.

    All are compared with all, N M / 10^9 seconds or so.
    """
    count = len(second.hashes)
    rows = max(1, BLOCK // max(1, count))
    for start in range(0, len(first.hashes), rows):
        block = Looks(*(array[start : start + rows] for array in first))

        # Candidates: pairs i, j whose hashes are close.
        bits = np.bitwise_count(block.hashes[:, None] ^ second.hashes).ravel()
        candidates = np.flatnonzero(bits <= DISTANCE)
        i, j = np.divmod(candidates, count)
        same = block.digests[i] == second.digests[j]
        distances = np.where(same, -1, bits[candidates].astype(np.int64))

        # Those that are the same file, or whose thumbnails are close too.
        keep = same.copy()
        for at in range(0, len(candidates), SLICE):
            unsure = at + np.flatnonzero(~same[at : at + SLICE])
            share = SHARE * np.where(distances[unsure] <= CLOSE, 2, 1)
            keep[unsure] = _alike(block.thumbnails[i[unsure]], second.thumbnails[j[unsure]], share)
        i, j, distances = i[keep], j[keep], distances[keep]

        # Of each image the nearest, and how many more there are.
        order = np.lexsort((j, distances, i))
        images, firsts, counts = np.unique(i[order], return_index=True, return_counts=True)
        for image, k, times in zip(images, order[firsts], counts, strict=True):
            yield Pair(start + int(image), int(j[k]), int(distances[k]), int(times))


def _alike(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Whether thumbnails uint8 (N, 8, 8, 3) differ by no more than a share (N,) of their contrast: bool (N,)."""
    first = first.astype(np.float32)
    second = second.astype(np.float32)
    gap = (first - second).std(axis=(1, 2, 3))
    contrast = np.minimum(first.std(axis=(1, 2, 3)), second.std(axis=(1, 2, 3)))
    close = (gap <= DIFFERENCE) & (gap <= share * contrast)
    return close & _shows_something(first) & _shows_something(second)


def _shows_something(thumbnails: np.ndarray) -> np.ndarray:
    """Whether thumbnails float32 (N, 8, 8, 3) vary over their places: bool (N,)."""
    return thumbnails.var(axis=(1, 2)).mean(axis=1) > FLAT**2
