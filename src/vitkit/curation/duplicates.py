"""Finds duplicates and near-duplicates: with digests of the files, a perceptual hash of the pixels, and an
alignment of the thumbnails.

The hash is pHash (Zauner, 2010): the discrete cosine transform of the grey image at 32 x 32, and one bit
for each of the 8 x 8 lowest frequencies: whether it is above their median. Each image is also hashed
mirrored, turned by 90, 180 and 270 degrees, and cropped. A pair is a candidate if one of these hashes
differs in at most MAX_BITS bits from the hash of the other image.

The two images of a candidate are aligned by an affine map, fitted with least squares (Lucas and Kanade,
1981), which starts at the variant that the hashes found. They are near-duplicates if the correlation of
their details is then at least MIN_CORRELATION. It must be larger, MIN_OF_ONE_KIND, if most images have a
candidate: digits or X-rays have similar details without being copies. An object on a plain background has
little more than an outline, so that any can could be stretched onto any other. Then the correlation must
be larger too, unless the brightness also agrees, and the map must be that of a copy: to a part of the
image, without distortion. Images without contrast are duplicates only if their files are equal. With more
than MOST_PAIRS pairs of images, the search leaves out copies that are turned or cropped.

Legend: N, M images of two sets, P pairs of them, V variants of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 32  # pixels of the grey thumbnail
LOW = 8  # frequencies of the hash in each direction
MAX_BITS = 12  # largest difference of the hashes of candidates, of 64 bits
MOST = 2  # candidates per image
STEPS = 6  # steps of the alignment
HOPELESS_AFTER = 2  # steps after which pairs with a correlation below HOPELESS are given up
HOPELESS = 0.5
FINE = 0.7  # details are what a filter of this width keeps and one of COARSE removes, in pixels of SIDE
COARSE = 2.0
MARGIN = 3  # pixels at the edges that are ignored: a turned image has black corners
SIDE_OF_DETAILS = SIDE - 2 * MARGIN
MIN_CORRELATION = 0.92  # smallest correlation of the details of near-duplicates
CROWDED = 0.5  # mean number of candidates per image above which all images are of one kind
MIN_OF_ONE_KIND = 0.975  # smallest correlation among images of one kind
# Largest difference between copies of a plain image, as a share of their contrast
SAME_LIGHT = 0.12
# Pixels are without details below this, in standard deviations of the image's details
NOTHING = 0.2
PLAIN = 0.4  # an image is plain if more than this share of its pixels is without details
SLACK = 0.05  # share of the sides by which a copy may lie outside the image, or be stretched
FLAT = 1.0  # an image has no contrast if the standard deviation of its thumbnail is below this
# Smallest effective share of the pixels that have details: an image of the sea and a corner of land has less
MIN_SPREAD = 0.05
MOST_PAIRS = 10**10  # most pairs of images for which the search includes turned and cropped copies
HASH_BATCH = 1 << 17  # pairs whose hashes are compared together
ALIGNMENT_BATCH = 250  # pairs that are aligned together


# Crops: for each size, where they start; both as shares of the image's side
PLACES = {
    0.95: (0.025,),
    0.9: (0.025, 0.075),
    0.8: (0.02, 0.1, 0.18),
    0.7: (0.03, 0.11, 0.19, 0.27),
}


def _turns() -> Iterator[np.ndarray]:
    """The 8 combinations of turns by 90 degrees and mirroring, (2, 3) each; the first is the identity."""
    # Size and start of an axis, unchanged and reversed
    axes = ((1.0, 0.0), (-1.0, 1.0))
    for height, top in axes:
        for width, left in axes:
            yield np.array([[height, 0, top], [0, width, left]])
            yield np.array([[0, width, left], [height, 0, top]])  # axes exchanged


def _crops() -> Iterator[np.ndarray]:
    """Square crops, (2, 3) each."""
    for side, places in PLACES.items():
        for top in places:
            for left in places:
                yield np.array([[side, 0, top], [0, side, left]])


# Variants of an image, as matrices that map a point (y, x, 1) of the variant to the image, in shares of the sides
TURNS = tuple(_turns())
CROPS = tuple(_crops())


class Appearance(NamedTuple):
    """Thumbnails of an image, by which duplicates are found."""

    thumbnail: np.ndarray
    """In colour: uint8 (8, 8, 3)."""
    grey: np.ndarray
    """In grey: uint8 (SIDE, SIDE)."""


class Appearances(NamedTuple):
    """Digests and thumbnails of N images, one row per image."""

    digests: np.ndarray
    """Digests of the files: uint64 (N,)."""
    thumbnails: np.ndarray
    """Thumbnails in colour: uint8 (N, 8, 8, 3)."""
    greys: np.ndarray
    """Thumbnails in grey: uint8 (N, SIDE, SIDE)."""


@dataclass(frozen=True)
class Pair:
    """An image, and the most similar image in another set or among the images before it."""

    first: int
    """Index of the image."""
    second: int
    """Index of the most similar one."""
    bits: int
    """Number of bits in which their hashes differ; -1 if the files are the same."""
    count: int
    """Number of images that are duplicates of the first: all with the same file, and up to MOST
    others."""


def appearance(pixels: np.ndarray) -> Appearance:
    """Make the thumbnails of an image, uint8 (h, w, 3)."""
    image = Image.fromarray(pixels)
    grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    thumbnail = image.resize((8, 8), Image.Resampling.BOX)
    return Appearance(np.asarray(thumbnail), np.asarray(grey))


def nearest(first: Appearances, second: Appearances, earlier: bool = False) -> Iterator[Pair]:
    """The images of the first set that have a duplicate in the second, in order, each with its nearest
    duplicate.

    earlier: compare each image only with those before it; both sets must be the same.
    All pairs are compared, which takes about N M / 2 10^7 seconds; above MOST_PAIRS, without turned and
    cropped copies, N M / 10^9.
    """
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
    """The number of pictures, uint8 (h, w, 3), that are not duplicates of an earlier one."""
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

    # Near-duplicates: the second may be turned, or a crop of the first; or the first a crop of the second
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

    # Keep each pair once, with the fewest bits
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
    for start in range(0, len(i), ALIGNMENT_BATCH):
        chunk = slice(start, start + ALIGNMENT_BATCH)
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
    """The matrix (SIDE, SIDE) that takes a part of SIDE pixels, given by its start and its size as shares,
    and stretches it to SIDE pixels; a negative size reverses them."""
    centres = (np.arange(SIDE) + 0.5) / SIDE
    places = ((start + size * centres) * SIDE - 0.5).clip(0, SIDE - 1)
    weights = 1 - np.abs(places[:, None] - np.arange(SIDE))  # linear interpolation
    return np.maximum(weights, 0).astype(np.float32)


def _candidates(
    hashes: np.ndarray, copies: np.ndarray, files: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The nearest candidates of each image, at most MOST, without those that are the same file.

    Args:
        hashes: The hashes of all variants of the images, (V, N).
        copies: The hashes of possible copies, (M,).
        files: Digests of the files of both, (N,) and (M,).

    Returns:
        The indices of image, copy and nearest variant, and the number of bits in which the hashes differ,
        int64 (P,) each.
    """
    found = []
    block = max(1, HASH_BATCH // len(copies))
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
    """Align copies with images, (P, SIDE, SIDE) each, by least squares.

    places: matrices (P, 2, 3) at which to start, as in TURNS and CROPS.
    Returns the best correlation of the details, (P,), and the matrices with which it was reached, (P, 2, 3).
    """
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

        # A Gauss-Newton step, with pixels in units of the image's contrast
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
    """The positions (y, x, 1) of a thumbnail's pixels, in shares of its sides: float32 (3, SIDE SIDE)."""
    centres = (np.arange(SIDE) + 0.5) / SIDE
    y, x = np.meshgrid(centres, centres, indexing="ij")
    return np.stack([y.ravel(), x.ravel(), np.ones(SIDE**2)]).astype(np.float32)


def _difference(images: np.ndarray, copies: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The mean absolute difference between copies (P, SIDE, SIDE) and the images sampled at their places
    (P, 2, 3), in standard deviations of the copies: (P,)."""
    there = (places @ _points()) * SIDE - 0.5
    seen = _sampled(_smooth(images, FINE)[:, None], there)[:, 0]
    wanted = _smooth(copies, FINE).reshape(len(copies), -1)
    return np.abs(seen - wanted).mean(1) / (wanted.std(1) + 1e-6)


def _is_part(places: np.ndarray) -> np.ndarray:
    """Whether these places (P, 2, 3) lie within the image and are not distorted, except for SLACK: bool
    (P,)."""
    corners = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]).T
    there = places @ corners  # (P, 2, 4)
    is_inside = ((there > -SLACK) & (there < 1 + SLACK)).all((1, 2))
    scales = np.linalg.svd(places[:, :, :2], compute_uv=False)  # (P, 2), along two axes
    return is_inside & (scales[:, 0] < (1 + SLACK) * scales[:, 1])


def _sampled(images: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Sample images (P, C, SIDE, SIDE) at points (P, 2, Q) in pixels, by linear interpolation: (P, C, Q)."""
    points = points.clip(0, SIDE - 1.001)
    corner = points.astype(np.int32)  # the pixel above and to the left
    y, x = (points - corner).transpose(1, 0, 2)[:, :, None]  # (P, 1, Q)

    # The index of that pixel in the flattened images
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
    """Whether thumbnails (N, SIDE, SIDE) are without details in a large part: bool (N,)."""
    details = _details(_smooth(greys, FINE)).reshape(len(greys), -1)
    return (np.abs(details) < NOTHING * details.std(1, keepdims=True)).mean(1) > PLAIN


def _standardised(thumbnails: np.ndarray) -> np.ndarray:
    """Thumbnails, scaled to a mean of 0 and a standard deviation of 1, one row each."""
    flat = thumbnails.reshape(len(thumbnails), -1)
    flat = flat - flat.mean(1, keepdims=True)
    return flat / (flat.std(1, keepdims=True) + 1e-6)


def _smooth(thumbnails: np.ndarray, sigma: float) -> np.ndarray:
    """Thumbnails (P, SIDE, SIDE) after a Gaussian filter, float32."""
    from scipy.ndimage import gaussian_filter1d

    blur = gaussian_filter1d(np.eye(SIDE, dtype=np.float32), sigma, axis=0)
    return blur @ thumbnails.astype(np.float32) @ blur.T


def _shows_something(images: Appearances) -> np.ndarray:
    """Whether images have contrast, and details in more than a few places: bool (N,)."""
    contrast = images.thumbnails.astype(np.float32).var(axis=(1, 2)).mean(axis=1)  # (N,)
    details = _details(_smooth(images.greys, FINE)).reshape(len(contrast), SIDE_OF_DETAILS**2)
    energy = details**2
    spread = energy.mean(1) ** 2 / np.maximum((energy**2).mean(1), 1e-12)  # 1 if all are equal
    return (contrast > FLAT**2) & (spread > MIN_SPREAD)
