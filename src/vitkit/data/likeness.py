"""Which images are the same, or nearly: digests of files, and a perceptual hash of what they show.

The hash is pHash (Zauner, 2010): the image in grey at 32 x 32, its discrete cosine transform, and of the 8 x 8 lowest
frequencies one bit each: above their median or not. Images whose hashes differ in at most DISTANCE bits are candidates;
they count as near-duplicates where their 8 x 8 colour thumbnails, too, are alike. That finds what was scaled, encoded
again, or slightly changed in colour or framing. It does not find mirrored, turned or strongly cropped images.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

DISTANCE = 8  # bits of 64
DIFFERENCE = 20.0  # root mean square over a thumbnail, in levels of 255, after both have the same mean
BLOCK = 1 << 24  # comparisons at once


class Look(NamedTuple):
    """What an image looks like, in few bytes."""

    hash: np.uint64
    thumbnail: np.ndarray
    """uint8 (8, 8, 3)"""


class Pair(NamedTuple):
    """Two images that look the same: an index in each of two sets, and how many bits of their hashes differ."""

    first: int
    second: int
    bits: int


def look(pixels: np.ndarray) -> Look:
    """Of an image, uint8 (h, w, 3)."""
    from scipy.fft import dctn

    image = Image.fromarray(pixels)
    small = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64)
    low = dctn(small, norm="ortho")[:8, :8].ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    return Look(np.packbits(bits).view(np.uint64)[0], np.asarray(image.resize((8, 8), Image.Resampling.BOX)))


def near_pairs(
    hashes: tuple[np.ndarray, np.ndarray], thumbnails: tuple[np.ndarray, np.ndarray], distance: int = DISTANCE
) -> Iterator[Pair]:
    """Every pair of near-duplicates, one from each of two sets: hashes uint64 (N,), (M,), thumbnails uint8 (N, 8, 8, 3).

    All are compared with all, N M / 10^9 seconds or so.
    """
    rows = max(1, BLOCK // max(1, len(hashes[1])))
    for start in range(0, len(hashes[0]), rows):
        bits = np.bitwise_count(hashes[0][start : start + rows, None] ^ hashes[1][None])
        first, second = np.nonzero(bits <= distance)
        if not len(first):
            continue
        gap = thumbnails[0][start + first].astype(np.float32) - thumbnails[1][second]
        alike = gap.std(axis=(1, 2, 3)) <= DIFFERENCE
        for i, j in zip(first[alike].tolist(), second[alike].tolist(), strict=True):
            yield Pair(start + i, j, int(bits[i, j]))
