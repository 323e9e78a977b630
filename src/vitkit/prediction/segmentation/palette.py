"""Colours of classes, for masks with a palette and for overlays.

Legend: K classes, h w pixels of an image.
"""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitkit.data import IGNORED

OPACITY = 0.55  # of a class's colour over the image
QUALITY = 88  # of an overlay's JPEG
BACKGROUND = frozenset(("background",))
"""Names, in small letters, of classes that are no things: an overlay leaves them as they are."""


def backgrounds(labels: Sequence[str]) -> list[int]:
    """The numbers of the classes that are no things."""
    return [number for number, label in enumerate(labels) if label.lower() in BACKGROUND]


def palette(labels: Sequence[str]) -> np.ndarray:
    """A colour for each class number from 0, uint8 (256, 3): Pascal VOC's, whose first is black. That is for a
    background; if the first class is none, the colours begin with the second."""
    first = 1
    if labels[0].lower() in BACKGROUND:
        first = 0
    numbers = (np.arange(256) + first) % 256
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(3):  # three bits of a number in turn are a bit of red, of green and of blue
        for channel in range(3):
            is_on = (numbers >> (3 * bit + channel)) & 1
            colours[:, channel] |= (is_on << (7 - bit)).astype(np.uint8)
    return colours


def mask_png(mask: np.ndarray, labels: Sequence[str]) -> bytes:
    """A mask, uint8 (h, w), as a PNG whose pixels are the numbers of classes, with a palette to look at."""
    image = Image.fromarray(mask)
    image.putpalette(palette(labels).tobytes())
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def overlay(pixels: np.ndarray, mask: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """An image, uint8 (h, w, 3), under the colours of a mask's classes, (h, w): uint8 (h, w, 3). A background
    stays as it is, and what is ignored."""
    opacity = np.where(mask == IGNORED, 0, OPACITY).astype(np.float32)
    if labels[0].lower() in BACKGROUND:
        opacity[mask == 0] = 0
    coloured = palette(labels)[mask].astype(np.float32)
    mixed = pixels * (1 - opacity[..., None]) + coloured * opacity[..., None]
    return mixed.round().astype(np.uint8)


def overlay_jpeg(pixels: np.ndarray, mask: np.ndarray, labels: Sequence[str]) -> bytes:
    """An overlay as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(overlay(pixels, mask, labels)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
