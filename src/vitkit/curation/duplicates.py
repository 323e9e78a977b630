"""Which images are the same, or nearly: digests of files, a perceptual hash of what they show, and an
alignment of their thumbnails.

The hash is pHash (Zauner, 2010): the image in grey at 32 x 32, its discrete cosine transform, and
of the 8 x 8 lowest frequencies one bit each: above their median or not. Each image is also hashed as
it would be mirrored, turned by quarters, and cropped to parts. It is a candidate if one of these
hashes differs in at most MAX_BITS bits from the hash of another image.

Candidates are aligned, from where the hashes say that one lies in the other, by the affine map of
least squares (Lucas and Kanade, 1981). They are near-duplicates if their details then correlate by
MIN_CORRELATION; by more if most images have a candidate, as digits and X-rays do, whose details are
alike without being copies. Of a thing on plain ground the outline is nearly all that there is to
align, and any can may be moved and stretched onto any other: there more is asked too, unless the light
is the same, and the map must be one that a copy has, to a part of the picture in its own shape. What
has no contrast is the same only if the files are. Among more than MOST_PAIRS pairs of images, copies
that are turned or cropped are not looked for.

Legend: N, M images of two sets, P pairs of them, V variants of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 32  # pixels of the grey thumbnail
LOW = 8  # frequencies of it in each direction
MAX_BITS = 12  # of 64, in which the hashes of candidates differ
MOST = 2  # candidates of an image
STEPS = 6  # of the alignment
HOPELESS_AFTER = 2  # steps, by which the details of copies correlate by HOPELESS
HOPELESS = 0.5
FINE = 0.7  # pixels of SIDE: details are between this and COARSE
COARSE = 2.0
MARGIN = 3  # pixels at the edges whose details do not count: a turned image has black corners
SIDE_OF_DETAILS = SIDE - 2 * MARGIN
MIN_CORRELATION = 0.92  # of the details of near-duplicates
CROWDED = 0.5  # candidates for each image, on average, from which the pictures are of one kind
MIN_OF_ONE_KIND = 0.975  # the same, of pictures of one kind
SAME_LIGHT = 0.12  # of their contrast, by which copies of a plain picture differ, if by no more
NOTHING = 0.2  # standard deviations of a picture's details: a pixel with less has none
PLAIN = 0.4  # share of such pixels from which a picture is a thing on plain ground
SLACK = 0.05  # of an image's sides, by which a copy may lie outside of it, or be stretched
FLAT = 1.0  # levels: an image whose thumbnail varies less shows nothing
# Share of the pixels that have the details: a corner of land beside the sea is less
MIN_SPREAD = 0.05
MOST_PAIRS = 10**10  # of images, up to which copies that are turned or cropped are looked for
HASHES_AT_ONCE = 1 << 17  # pairs whose hashes are compared at once
ALIGNED_AT_ONCE = 250  # pairs


# Of a crop, its side as a share of the image's: how far from the edge it may begin
PLACES = {
    0.95: (0.025,),
    0.9: (0.025, 0.075),
    0.8: (0.02, 0.1, 0.18),
    0.7: (0.03, 0.11, 0.19, 0.27),
}


def _turns() -> Iterator[np.ndarray]:
    """The image itself, mirrored, upside down, and all of these turned by a quarter: (2, 3) each."""
    # The size and the start of an axis, as it is and turned round
    axes = ((1.0, 0.0), (-1.0, 1.0))
    for height, top in axes:
        for width, left in axes:
            yield np.array([[height, 0, top], [0, width, left]])
            yield np.array([[0, width, left], [height, 0, top]])  # by a quarter


def _crops() -> Iterator[np.ndarray]:
    """Parts of the image: (2, 3) each."""
    for side, places in PLACES.items():
        for top in places:
            for left in places:
                yield np.array([[side, 0, top], [0, side, left]])


# Variants of an image: where a point of the variant, (y, x, 1) in shares of its sides, lies in the image
TURNS = tuple(_turns())
CROPS = tuple(_crops())


class Appearance(NamedTuple):
    """The appearance of an image, in few bytes."""

    thumbnail: np.ndarray
    """uint8 (8, 8, 3)"""
    grey: np.ndarray
    """uint8 (SIDE, SIDE)"""


class Appearances(NamedTuple):
    """The appearance of N images, one row each, and their files."""

    digests: np.ndarray
    """uint64 (N,): of the files."""
    thumbnails: np.ndarray
    """uint8 (N, 8, 8, 3)"""
    greys: np.ndarray
    """uint8 (N, SIDE, SIDE)"""


@dataclass(frozen=True)
class Pair:
    """An image of one set, by its index, and the most similar image in another set, or among the
    images before it."""

    first: int
    second: int
    bits: int
    """In which their hashes differ; -1 if the files are the same."""
    count: int
    """How many images of the other set it is like, of up to MOST that are not the same file: of a
    picture that comes a thousand times there, one is named."""


def appearance(pixels: np.ndarray) -> Appearance:
    """The appearance of an image, uint8 (h, w, 3): a thumbnail in colour, and a larger one in
    grey."""
    image = Image.fromarray(pixels)
    grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    thumbnail = image.resize((8, 8), Image.Resampling.BOX)
    return Appearance(np.asarray(thumbnail), np.asarray(grey))


def nearest(first: Appearances, second: Appearances, earlier: bool = False) -> Iterator[Pair]:
    """The images of the first set that have a duplicate in the second, each with its nearest one.
    If the two are the same set, `earlier` looks among the images before each only. They come in
    order. All are compared with all, which takes N M / 2 10^7 seconds or so;
    with the same hashes alone, above MOST_PAIRS, N M / 10^9."""
    i, j, bits = _duplicates(first, second, earlier)

    # Sort the pairs by image, then by distance: the first one of each image is its nearest.
    order = np.lexsort((j, bits, i))
    i = i[order]
    j = j[order]
    bits = bits[order]
    nearest_pairs = np.flatnonzero(np.diff(i, prepend=-1))
    counts = np.diff(nearest_pairs, append=len(i))
    for pair, count in zip(nearest_pairs, counts, strict=True):
        yield Pair(int(i[pair]), int(j[pair]), int(bits[pair]), int(count))


def different(pictures: Sequence[np.ndarray]) -> int:
    """How many pictures, uint8 (h, w, 3), are no duplicate of one before them."""
    digests = [blake2b(picture.tobytes(), digest_size=8).digest() for picture in pictures]
    looks = [appearance(picture) for picture in pictures]
    appearances = Appearances(
        np.frombuffer(b"".join(digests), np.uint64),
        np.stack([each.thumbnail for each in looks]),
        np.stack([each.grey for each in looks]),
    )
    return len(pictures) - sum(1 for _ in nearest(appearances, appearances, earlier=True))


def _duplicates(
    first: Appearances, second: Appearances, earlier: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of duplicates and near-duplicates: their indices in both sets, and Pair.bits, int64
    (P,) each."""
    i, j = _same_files(first.digests, second.digests)
    bits = np.full(len(i), -1)

    # Near-duplicates: the second may be a part of the first, or turned; or the first a part of it
    few = len(first.digests) * len(second.digests) <= MOST_PAIRS
    variants = TURNS[:1]
    if few:
        variants = (*TURNS, *CROPS)
    near = _near(first, second, variants)
    pairs = [(i, j, bits), near]
    if earlier:
        pairs.append((near[1], near[0], near[2]))
    elif few:
        j, i, bits = _near(second, first, CROPS)
        pairs.append((i, j, bits))
    i, j, bits = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    if earlier:
        before = j < i
        i = i[before]
        j = j[before]
        bits = bits[before]

    # Each pair once, as it is nearest
    order = np.lexsort((bits, j, i))
    i = i[order]
    j = j[order]
    is_new = (np.diff(i, prepend=-1) != 0) | (np.diff(j, prepend=-1) != 0)
    return i[is_new], j[is_new], bits[order][is_new]


def _same_files(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of equal digests: their indices, int64 (P,) each."""
    order = np.argsort(second, kind="stable")
    start = np.searchsorted(second[order], first, "left")
    count = np.searchsorted(second[order], first, "right") - start
    i = np.repeat(np.arange(len(first)), count)
    within = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    return i, order[np.repeat(start, count) + within]


def _near(
    images: Appearances, copies: Appearances, variants: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of an image and a near-duplicate among the copies, which is one of these variants of it:
    their indices and the bits in which their hashes differ, int64 (P,) each."""
    rows = np.flatnonzero(_shows_something(images))
    columns = np.flatnonzero(_shows_something(copies))
    greys = images.greys[rows]
    copied = copies.greys[columns]
    if not len(rows) or not len(columns):
        none = np.zeros(0, np.int64)
        return none, none, none

    # Candidates: whose hashes are close
    hashes = np.stack([_hashes(greys, variant) for variant in variants])  # (V, N)
    files = (images.digests[rows], copies.digests[columns])
    i, j, variant, bits = _candidates(hashes, _hashes(copied, TURNS[0]), files)

    # Those whose details correlate once they are aligned
    correlations = np.zeros(len(i))
    differences = np.zeros(len(i))
    is_part = np.zeros(len(i), bool)
    for start in range(0, len(i), ALIGNED_AT_ONCE):
        chunk = slice(start, start + ALIGNED_AT_ONCE)
        places = np.stack(variants)[variant[chunk]]
        best, fitted = _aligned(greys[i[chunk]], copied[j[chunk]], places)
        correlations[chunk] = best
        differences[chunk] = _difference(greys[i[chunk]], copied[j[chunk]], fitted)
        is_part[chunk] = _is_part(fitted)
    least = np.full(len(i), MIN_CORRELATION)
    is_plain = _is_plain(greys)[i] | _is_plain(copied)[j]
    least[is_plain & (differences > SAME_LIGHT)] = MIN_OF_ONE_KIND
    if len(i) > len(rows) * CROWDED:
        least[:] = MIN_OF_ONE_KIND
    keep = (correlations >= least) & (is_part | ~is_plain)
    return rows[i[keep]], columns[j[keep]], bits[keep]


def _hashes(greys: np.ndarray, variant: np.ndarray) -> np.ndarray:
    """The hashes, uint64 (N,), of a variant of grey thumbnails (N, SIDE, SIDE)."""
    from scipy.fft import dct

    # Sampling and the transform are linear in rows and in columns
    cosines = dct(np.eye(SIDE), norm="ortho", axis=0)[:LOW].astype(np.float32)
    is_turned = variant[0, 0] == 0
    if is_turned:
        greys = greys.transpose(0, 2, 1)
        variant = variant[::-1]
    down = cosines @ _sampling(variant[0, 0], variant[0, 2])
    right = cosines @ _sampling(variant[1, 1], variant[1, 2])
    low = (down @ greys.astype(np.float32) @ right.T).reshape(len(greys), -1)
    bits = low > np.median(low[:, 1:], axis=1, keepdims=True)  # the first is the mean brightness
    return np.packbits(bits, axis=1).view(np.uint64)[:, 0]


def _sampling(size: float, start: float) -> np.ndarray:
    """The matrix (SIDE, SIDE) that stretches a part of SIDE pixels, which begins at `start` and is as
    long as `size`, both as shares, to all of them; a negative size turns it round."""
    centres = (np.arange(SIDE) + 0.5) / SIDE
    places = ((start + size * centres) * SIDE - 0.5).clip(0, SIDE - 1)
    weights = 1 - np.abs(places[:, None] - np.arange(SIDE))  # linear interpolation
    return np.maximum(weights, 0).astype(np.float32)


def _candidates(
    hashes: np.ndarray, copies: np.ndarray, files: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of images, whose variants have the hashes (V, N), and copies, hashes (M,): image, copy,
    nearest variant, and the bits in which the hashes differ, int64 (P,) each. Of an image at most
    MOST, the nearest; none that is the same file, by the digests (N,) and (M,)."""
    found = []
    block = max(1, HASHES_AT_ONCE // len(copies))
    for start in range(0, hashes.shape[1], block):
        here = hashes[:, start : start + block]
        bits = np.full((here.shape[1], len(copies)), 255, np.uint8)
        for each in here:
            np.minimum(bits, np.bitwise_count(each[:, None] ^ copies), out=bits)
        is_same_file = files[0][start : start + block, None] == files[1]
        i, j = np.nonzero((bits <= MAX_BITS) & ~is_same_file)
        close = bits[i, j]

        # The nearest ones of each image
        order = np.lexsort((j, close, i))
        i = i[order]
        j = j[order]
        rank = np.arange(len(i)) - np.searchsorted(i, i)
        i = i[rank < MOST]
        j = j[rank < MOST]
        each = np.bitwise_count(here[:, i] ^ copies[j])  # (V, P)
        found.append((start + i, j, each.argmin(0), each.min(0).astype(np.int64)))
    i, j, variant, bits = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return i, j, variant, bits


def _aligned(
    images: np.ndarray, copies: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How the details of copies (P, SIDE, SIDE) correlate with those of images (P, SIDE, SIDE) at the
    places that fit best, by least squares from where they are said to be, (P, 2, 3): (P,), and these
    places, (P, 2, 3)."""
    images = _smooth(images, FINE)
    copies = _smooth(copies, FINE)
    images = np.stack([images, *np.gradient(images, axis=(1, 2))], axis=1)  # (P, 3, S, S)
    points = _points()
    places = places.astype(np.float32)
    best = np.full(len(places), -1.0)
    fitted = places.copy()
    open_pairs = np.arange(len(places))
    for step in range(STEPS):
        if step >= HOPELESS_AFTER:
            open_pairs = open_pairs[best[open_pairs] >= HOPELESS]
        if not len(open_pairs):
            break
        here = places[open_pairs]
        there = (here @ points) * SIDE - 0.5  # (P, 2, S S)
        seen, down, right = _sampled(images[open_pairs], there).transpose(1, 0, 2)  # (P, S S)
        wanted = copies[open_pairs]
        correlation = _detail_correlation(seen, wanted)
        is_better = correlation > best[open_pairs]
        best[open_pairs[is_better]] = correlation[is_better]
        fitted[open_pairs[is_better]] = here[is_better]

        # A step of Gauss and Newton, in units of the image's contrast
        contrast = seen.std(axis=1, keepdims=True) + 1e-6
        error = _standardised(wanted) - _standardised(seen)
        along = np.stack([down, right], axis=1) / contrast[:, None] * SIDE  # (P, 2, S S)
        jacobian = (along[:, :, None] * points).reshape(len(here), 6, -1)  # (P, 6, S S)
        normal = jacobian @ jacobian.transpose(0, 2, 1)
        damping = 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(6)
        move = np.linalg.solve(normal + damping, jacobian @ error[:, :, None])
        places[open_pairs] = here + move.reshape(-1, 2, 3).astype(np.float32)
    return best, fitted


def _points() -> np.ndarray:
    """Where the pixels of a thumbnail lie, (y, x, 1) in shares of its sides: float32 (3, SIDE SIDE)."""
    centres = (np.arange(SIDE) + 0.5) / SIDE
    y, x = np.meshgrid(centres, centres, indexing="ij")
    return np.stack([y.ravel(), x.ravel(), np.ones(SIDE**2)]).astype(np.float32)


def _difference(images: np.ndarray, copies: np.ndarray, places: np.ndarray) -> np.ndarray:
    """By how much the pixels of copies (P, SIDE, SIDE) differ from those of images at their places (P, 2,
    3), as a share of the copies' standard deviations: (P,)."""
    there = (places @ _points()) * SIDE - 0.5
    seen = _sampled(_smooth(images, FINE)[:, None], there)[:, 0]
    wanted = _smooth(copies, FINE).reshape(len(copies), -1)
    return np.abs(seen - wanted).mean(1) / (wanted.std(1) + 1e-6)


def _is_part(places: np.ndarray) -> np.ndarray:
    """Whether what lies at these places (P, 2, 3) is a part of the image, but for SLACK, in the shape
    that it has there: bool (P,)."""
    corners = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]).T
    there = places @ corners  # (P, 2, 4)
    is_inside = ((there > -SLACK) & (there < 1 + SLACK)).all((1, 2))
    shrinking = np.linalg.svd(places[:, :, :2], compute_uv=False)  # (P, 2), along two axes
    return is_inside & (shrinking[:, 0] < (1 + SLACK) * shrinking[:, 1])


def _sampled(images: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Images (P, C, SIDE, SIDE) at points (P, 2, Q) in pixels, by linear interpolation: (P, C, Q)."""
    points = points.clip(0, SIDE - 1.001)
    corner = points.astype(np.int32)  # the pixel above and to the left
    y, x = (points - corner).transpose(1, 0, 2)[:, :, None]  # (P, 1, Q)

    # Where that pixel is when the numbers of all images are in a row
    at = corner[:, 0] * SIDE + corner[:, 1]
    rows = np.arange(len(images), dtype=np.int32)[:, None] * images.shape[1] * SIDE**2
    planes = np.arange(images.shape[1], dtype=np.int32)[:, None] * SIDE**2
    at = (at + rows)[:, None] + planes  # (P, C, Q)
    flat = images.ravel()
    upper = flat.take(at) * (1 - x) + flat.take(at + 1) * x
    lower = flat.take(at + SIDE) * (1 - x) + flat.take(at + SIDE + 1) * x
    return upper * (1 - y) + lower * y


def _detail_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The correlation (P,) of the details of smoothed thumbnails, (P, S S) and (P, S, S)."""
    first = _standardised(_details(first.reshape(second.shape)))
    second = _standardised(_details(second))
    return (first * second).mean(1)


def _details(smoothed: np.ndarray) -> np.ndarray:
    """The details of smoothed thumbnails (P, SIDE, SIDE), without the edges."""
    details = smoothed - _smooth(smoothed, COARSE)
    return details[:, MARGIN:-MARGIN, MARGIN:-MARGIN]


def _is_plain(greys: np.ndarray) -> np.ndarray:
    """Which thumbnails (N, SIDE, SIDE) are mostly without details: bool (N,)."""
    details = _details(_smooth(greys, FINE)).reshape(len(greys), -1)
    return (np.abs(details) < NOTHING * details.std(1, keepdims=True)).mean(1) > PLAIN


def _standardised(thumbnails: np.ndarray) -> np.ndarray:
    """Thumbnails with a mean of 0 and a standard deviation of 1, a row each."""
    flat = thumbnails.reshape(len(thumbnails), -1)
    flat = flat - flat.mean(1, keepdims=True)
    return flat / (flat.std(1, keepdims=True) + 1e-6)


def _smooth(thumbnails: np.ndarray, sigma: float) -> np.ndarray:
    """Thumbnails (P, SIDE, SIDE) behind a Gaussian filter, float32."""
    from scipy.ndimage import gaussian_filter1d

    blur = gaussian_filter1d(np.eye(SIDE, dtype=np.float32), sigma, axis=0)
    return blur @ thumbnails.astype(np.float32) @ blur.T


def _shows_something(images: Appearances) -> np.ndarray:
    """Which images (N,) vary from pixel to pixel, and have details in more than a few places: bool."""
    contrast = images.thumbnails.astype(np.float32).var(axis=(1, 2)).mean(axis=1)  # (N,)
    details = _details(_smooth(images.greys, FINE)).reshape(len(contrast), SIDE_OF_DETAILS**2)
    energy = details**2
    spread = energy.mean(1) ** 2 / np.maximum((energy**2).mean(1), 1e-12)  # 1 if all are as strong
    return (contrast > FLAT**2) & (spread > MIN_SPREAD)
