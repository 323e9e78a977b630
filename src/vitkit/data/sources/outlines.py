"""Similarity of the outlines of two images: the middle of one is searched for in the other at several
zooms and angles, by normalised cross-correlation. It is about 0.4 for two photographs of different things,
and above 0.9 for shots of the same thing. A coarse correlation of fewer pixels selects the pairs that are
worth the search.

Augmented copies of images are often mirrored or rotated by quarter turns. So the other image is compared
unchanged, and also in that of these ways whose coarse correlation is highest.

Legend: S pixels of a thumbnail's side, V zooms and angles.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image
from scipy import fft, ndimage

SIDE = 64  # pixels of a thumbnail's side

# The coarse correlation
COARSE = 16  # pixels of a side
MIDDLE = 0.75  # share of an image's sides that is searched for in the others
CROPS = (0.6, 0.67, 0.75, 0.84, 0.94)  # shares of the other image's sides that it may fill
STEP = 0.06  # distance between two crops, as a share of the sides
REACH = 0.2  # largest distance of a crop from the middle
COPIES = 7  # ways to mirror an image or to rotate it by quarter turns
COPY = 0.7  # smallest coarse correlation of an image and its mirrored or rotated copy

# The detailed search
FINE = 48  # pixels of a side
TEMPLATE = 30  # pixels of the middle that is searched for
ZOOMS = (0.8, 0.89, 1, 1.12, 1.25)
ANGLES = (-6, -3, 0, 3, 6)  # degrees


# The coarse correlation


def glances(thumbnails: np.ndarray) -> np.ndarray:
    """The middle of each image at COARSE pixels, with mean 0 and norm 1: float32 (N, COARSE²)."""
    middle = _sampling(MIDDLE, 0)
    return _normed(middle @ thumbnails.astype(np.float32) @ middle.T)


def crops(thumbnail: np.ndarray) -> np.ndarray:
    """The crops of an image that may show the middle of another image: float32 (crops, COARSE²)."""
    pixels = thumbnail.astype(np.float32)
    crops = []
    for samplings in _all_samplings():
        rows = samplings @ pixels  # (shifts, COARSE, S)
        both = np.einsum("asq,btq->abst", rows, samplings, optimize=True)
        crops.append(both.reshape(-1, COARSE, COARSE))
    return _normed(np.concatenate(crops))


def _normed(images: np.ndarray) -> np.ndarray:
    """Flatten images, and give each mean 0 and norm 1: float32 (n, pixels)."""
    rows = images.reshape(len(images), -1)
    rows = rows - rows.mean(1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.maximum(norms, 1e-6)).astype(np.float32)


@cache
def _all_samplings() -> tuple[np.ndarray, ...]:
    """For each share of CROPS, the samplings at all shifts: float32 (shifts, COARSE, S)."""
    samplings = []
    for share in CROPS:
        steps = int(min((1 - share) / 2, REACH) / STEP + 1e-9)
        shifts = [STEP * step for step in range(-steps, steps + 1)]
        samplings.append(np.stack([_sampling(share, shift) for shift in shifts]))
    return tuple(samplings)


def _sampling(share: float, shift: float) -> np.ndarray:
    """A matrix that averages a part of a row of pixels: float32 (COARSE, S)."""
    middle = SIDE * (0.5 + shift)
    edges = np.linspace(middle - SIDE * share / 2, middle + SIDE * share / 2, COARSE + 1)
    edges = edges.clip(0, SIDE)
    pixels = np.arange(SIDE)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    overlap = overlap.clip(0)
    return (overlap / overlap.sum(1, keepdims=True)).astype(np.float32)


# Mirrored and rotated copies


def as_copied(images: np.ndarray) -> np.ndarray:
    """All ways to mirror square images or rotate them by quarter turns: (n, S, S) -> (COPIES, n, S, S)."""
    ways = []
    for mirrored in (images, images[:, :, ::-1]):
        ways += [np.rot90(mirrored, quarters, (1, 2)) for quarters in range(4)]
    return np.stack(ways[1:])  # the first is the image itself


def glances_as_copied(seen: np.ndarray) -> np.ndarray:
    """The `glances` of mirrored and rotated images, computed from those of the images: (n, COARSE²) ->
    (COPIES, n, COARSE²)."""
    return as_copied(seen.reshape(-1, COARSE, COARSE)).reshape(COPIES, len(seen), -1)


def centre_crops(thumbnail: np.ndarray) -> np.ndarray:
    """The centred crops of `crops`, where a copy shows the same part: float32 (zooms, COARSE²)."""
    pixels = thumbnail.astype(np.float32)
    samplings = [_sampling(share, 0) for share in CROPS]
    return _normed(np.stack([sampling @ pixels @ sampling.T for sampling in samplings]))


# The detailed search


def correlations(
    thumbnails: np.ndarray, items: Sequence[tuple[int, list[int]]]
) -> list[np.ndarray]:
    """The highest correlation of each image with the middles of its partners, at any zoom, angle and
    position; partners that may be copies are also mirrored or rotated."""
    # An image may be the partner of several others
    images = sorted({image for first, seconds in items for image in (first, *seconds)})
    row_of = {image: row for row, image in enumerate(images)}
    outlines = _outlines(thumbnails[images])
    spectra = _middles(outlines)
    copied = glances_as_copied(glances(thumbnails[images]))

    rows = []
    for first, seconds in items:
        views, norms = _views(outlines[row_of[first]])
        own = np.array([row_of[second] for second in seconds])
        found = _highest(views, norms, spectra[own])

        # Mirrored or rotated, in the way with the highest coarse correlation
        coarse = (copied[:, own] @ centre_crops(thumbnails[first]).T).max(2)  # (COPIES, seconds)
        ways = coarse.argmax(0)
        possible_copies = np.flatnonzero(coarse.max(0) >= COPY)
        if len(possible_copies):
            copies = as_copied(outlines[own[possible_copies]])
            ways_of = copies[ways[possible_copies], np.arange(len(possible_copies))]
            as_copies = _highest(views, norms, _middles(ways_of))
            found[possible_copies] = np.maximum(found[possible_copies], as_copies)
        rows.append(found)
    return rows


def _highest(views: np.ndarray, norms: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """The highest correlation of an image's views with middles, given by their spectra: (n,)."""
    places = FINE - TEMPLATE + 1
    products = fft.irfft2(views[None] * middles[:, None], s=(FINE, FINE))
    return (products[..., :places, :places] / norms).max((1, 2, 3))


def _outlines(thumbnails: np.ndarray) -> np.ndarray:
    """Details of medium size with equal strength everywhere in an image: float32 (n, FINE, FINE)."""
    small = [
        Image.fromarray(grey).resize((FINE, FINE), Image.Resampling.BILINEAR) for grey in thumbnails
    ]
    grey = np.stack([np.asarray(image, np.float32) for image in small])
    details = _blurred(grey, 1) - _blurred(grey, 4)
    local = np.sqrt(_blurred(details**2, 6))
    overall = np.sqrt(np.mean(details**2, (1, 2), keepdims=True))
    return details / (local + 0.3 * overall + 1e-3)


def _blurred(images: np.ndarray, sigma: float) -> np.ndarray:
    """Images (n, h, w) blurred by a Gaussian of `sigma` pixels."""
    return ndimage.gaussian_filter(images, (0, sigma, sigma))


def _middles(outlines: np.ndarray) -> np.ndarray:
    """The conjugate spectra of the middles, with mean 0 and norm 1: complex64 (n, FINE, FINE/2 + 1)."""
    margin = (FINE - TEMPLATE) // 2
    middle = outlines[:, margin : margin + TEMPLATE, margin : margin + TEMPLATE]
    middle = _normed(middle).reshape(-1, TEMPLATE, TEMPLATE)
    return np.conj(fft.rfft2(middle, s=(FINE, FINE)))


def _views(outlines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The spectra of an image at all zooms and angles, complex64 (V, FINE, FINE/2 + 1); and the norm of
    every part of it that has the size of a middle, (V, places, places)."""
    image = Image.fromarray(outlines)
    turns = []
    for matrix in _turns():
        turned = image.transform(
            (FINE, FINE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
        )
        turns.append(np.asarray(turned))
    views = np.stack(turns)
    sums = _sums(views)
    squares = _sums(views**2) - sums**2 / TEMPLATE**2
    least = 0.05 * TEMPLATE**2  # so that nothing correlates with an area without details
    return fft.rfft2(views), np.sqrt(np.maximum(squares, least))


@cache
def _turns() -> tuple[tuple[float, ...], ...]:
    """The affine maps of all zooms and angles about the middle of an image."""
    maps = []
    for zoom in ZOOMS:
        for angle in np.deg2rad(ANGLES):
            cosine = np.cos(angle) / zoom
            sine = np.sin(angle) / zoom
            across = FINE / 2 * (1 - cosine + sine)
            down = FINE / 2 * (1 - sine - cosine)
            maps.append((cosine, -sine, across, sine, cosine, down))
    return tuple(maps)


def _sums(images: np.ndarray) -> np.ndarray:
    """The sums of all squares with sides of TEMPLATE pixels: (V, places, places)."""
    spans = _spans()
    return (spans @ images.astype(np.float64) @ spans.T).astype(np.float32)


@cache
def _spans() -> np.ndarray:
    """A matrix of ones at TEMPLATE consecutive pixels of a row, for all positions: float64 (places, FINE)."""
    places = np.arange(FINE - TEMPLATE + 1)[:, None]
    pixels = np.arange(FINE)
    return ((pixels >= places) & (pixels < places + TEMPLATE)).astype(np.float64)
