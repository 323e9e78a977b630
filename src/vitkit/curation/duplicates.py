"""Which images are the same, or nearly: digests of files, and a perceptual hash of what they show.

The hash is pHash (Zauner, 2010): the image in grey at 32 x 32, its discrete cosine transform, and
of the 8 x 8 lowest frequencies one bit each: above their median or not. Images whose hashes differ
in at most MAX_BITS bits are candidates. They count as near-duplicates if their 8 x 8 colour
thumbnails, too, differ little, compared to their own contrast: digits on black, or X-rays, are all
within a few levels of one another.

That finds what was scaled, encoded again, or slightly changed in colour or framing. It does not
find mirrored, turned or strongly cropped images; and empty ones, which have no contrast, only if
the files are the same.

Legend: N, M images of two sets, P pairs of them.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image

MAX_BITS = 8  # of 64, in which the hashes of near-duplicates differ
# Their thumbnails, once both have the same mean, differ by at most so many levels of 255, root mean
# square ...
MAX_DIFFERENCE = 20.0
# ... and by at most this share of the standard deviation of the flatter one; twice that if the
# hashes are close, that is, differ in at most CLOSE_BITS bits.
MAX_SHARE = 0.35
CLOSE_BITS = 2
FLAT = 1.0  # levels: an image whose thumbnail varies less shows nothing
HASHES_AT_ONCE = 1 << 21  # pairs whose hashes are compared at once
THUMBNAILS_AT_ONCE = 50_000  # pairs whose thumbnails are


class Appearance(NamedTuple):
    """What an image looks like, in few bytes."""

    hash: np.uint64
    thumbnail: np.ndarray
    """uint8 (8, 8, 3)"""


class Appearances(NamedTuple):
    """What N images look like, one row each, and their files."""

    digests: np.ndarray
    """uint64 (N,): of the files."""
    hashes: np.ndarray
    """uint64 (N,)"""
    thumbnails: np.ndarray
    """uint8 (N, 8, 8, 3)"""


class Pair(NamedTuple):
    """An image of one set, by its index, and what it is most like in another, or among those that
    come before it."""

    first: int
    second: int
    bits: int
    """In which their hashes differ; -1 if the files are the same."""
    count: int
    """How many images of the other set it is like: of a picture that comes a thousand times there,
    one is named."""


def appearance(pixels: np.ndarray) -> Appearance:
    """What an image, uint8 (h, w, 3), looks like: its perceptual hash (pHash) and a thumbnail."""
    from scipy.fft import dctn

    # The hash: which of the 64 lowest frequencies of the cosine transform are above their median
    image = Image.fromarray(pixels)
    grey = image.convert("L").resize((32, 32), Image.Resampling.BILINEAR)
    low = dctn(np.asarray(grey, dtype=np.float64), norm="ortho")[:8, :8].ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    thumbnail = np.asarray(image.resize((8, 8), Image.Resampling.BOX))
    return Appearance(np.packbits(bits).view(np.uint64)[0], thumbnail)


def nearest(first: Appearances, second: Appearances, earlier: bool = False) -> Iterator[Pair]:
    """The images of the first set that have a duplicate in the second, each with its nearest one.
    If the two are the same set, `earlier` looks among the images before each only. They come in
    order. All are compared with all, which takes N M / 10^9 seconds or so."""
    block_size = max(1, HASHES_AT_ONCE // max(1, len(second.hashes)))
    for start in range(0, len(first.hashes), block_size):
        stop = start + block_size
        block = Appearances(
            first.digests[start:stop], first.hashes[start:stop], first.thumbnails[start:stop]
        )
        i, j, bits = _duplicates(block, second)
        if earlier:
            before = j < start + i
            i = i[before]
            j = j[before]
            bits = bits[before]

        # Sort the pairs by image, then by distance: the first one of each image is its nearest.
        order = np.lexsort((j, bits, i))
        i = i[order]
        j = j[order]
        bits = bits[order]
        nearest_pairs = np.flatnonzero(np.diff(i, prepend=-1))
        counts = np.diff(nearest_pairs, append=len(i))
        for pair, count in zip(nearest_pairs, counts, strict=True):
            yield Pair(start + int(i[pair]), int(j[pair]), int(bits[pair]), int(count))


def different(pictures: Sequence[np.ndarray]) -> int:
    """How many pictures, uint8 (h, w, 3), are no duplicate of one before them."""
    digests = [blake2b(picture.tobytes(), digest_size=8).digest() for picture in pictures]
    looks = [appearance(picture) for picture in pictures]
    appearances = Appearances(
        np.frombuffer(b"".join(digests), np.uint64),
        np.array([each.hash for each in looks]),
        np.stack([each.thumbnail for each in looks]),
    )
    return len(pictures) - sum(1 for _ in nearest(appearances, appearances, earlier=True))


def _duplicates(
    first: Appearances, second: Appearances
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of duplicates and near-duplicates: their indices in both sets, and Pair.bits, int64
    (P,) each."""
    # Candidates: pairs i, j whose hashes are close.
    all_bits = np.bitwise_count(first.hashes[:, None] ^ second.hashes).ravel()  # (N M,)
    candidates = np.flatnonzero(all_bits <= MAX_BITS)
    i, j = np.divmod(candidates, len(second.hashes))
    same_file = first.digests[i] == second.digests[j]
    bits = np.where(same_file, -1, all_bits[candidates].astype(np.int64))

    # Those that are the same file, or whose thumbnails are close too.
    keep = same_file.copy()
    for start in range(0, len(i), THUMBNAILS_AT_ONCE):
        unsure = start + np.flatnonzero(~same_file[start : start + THUMBNAILS_AT_ONCE])
        max_share = np.where(bits[unsure] <= CLOSE_BITS, 2 * MAX_SHARE, MAX_SHARE)
        first_thumbnails = first.thumbnails[i[unsure]]
        second_thumbnails = second.thumbnails[j[unsure]]
        keep[unsure] = _alike(first_thumbnails, second_thumbnails, max_share)
    return i[keep], j[keep], bits[keep]


def _alike(first: np.ndarray, second: np.ndarray, max_share: np.ndarray) -> np.ndarray:
    """Whether thumbnails uint8 (P, 8, 8, 3) differ by no more than a share (P,) of their contrast:
    bool (P,)."""
    first = first.astype(np.float32)
    second = second.astype(np.float32)
    difference = (first - second).std(axis=(1, 2, 3))
    contrast = np.minimum(first.std(axis=(1, 2, 3)), second.std(axis=(1, 2, 3)))
    close = (difference <= MAX_DIFFERENCE) & (difference <= max_share * contrast)
    return close & _shows_something(first) & _shows_something(second)


def _shows_something(thumbnails: np.ndarray) -> np.ndarray:
    """Whether thumbnails float32 (P, 8, 8, 3) vary from pixel to pixel: bool (P,)."""
    return thumbnails.var(axis=(1, 2)).mean(axis=1) > FLAT**2
