"""Images of any channels as pictures that people can look at.

Photographs, and grey, are as they are. Of other images nobody knows which channel is red, so people
see the mean of all channels, stretched from black to white.

Legend: B images, C channels, h w pixels.
"""

from typing import TYPE_CHECKING

import numpy as np

from vitkit.data.images.files import Encoded, Picture
from vitkit.data.images.levels import as_bytes, as_floats

if TYPE_CHECKING:
    from torch import Tensor

STRETCHED = (1, 99)  # percentiles that become black and white


def picture_for_people(picture: Picture) -> np.ndarray:
    """uint8 (h, w, 3). Raises BadImage."""
    if isinstance(picture, Encoded) or (picture.channels in (1, 3) and not picture.many_bits):
        return picture.pixels()
    return pixels_for_people(picture.stored(picture.channels))


def picture_to_look_at(picture: Picture) -> np.ndarray:
    """The same for whoever looks for what is wrong with images, uint8 (h, w, 3): grey of more than 8
    bits, which often has a small part of its range and would be black, is stretched too."""
    if is_stretched(picture):
        return pixels_for_people(picture.stored(picture.channels))
    return picture.pixels()


def is_stretched(picture: Picture) -> bool:
    """Whether `picture_to_look_at` stretches it."""
    if isinstance(picture, Encoded):
        return picture.channels == 1 and picture.many_bits
    return picture.channels not in (1, 3) or picture.many_bits


def pixels_for_people(pixels: np.ndarray) -> np.ndarray:
    """(h, w, C), uint8 or float32 -> uint8 (h, w, 3)."""
    channels = pixels.shape[2]
    if pixels.dtype == np.uint8 and channels in (1, 3):
        return np.repeat(pixels, 3 // channels, axis=2)
    pixels = as_floats(pixels)
    if channels != 3:
        pixels = pixels.mean(2, keepdims=True)
    black, white = np.percentile(pixels, STRETCHED)
    stretched = ((pixels - black) / max(white - black, 1e-9)).clip(0, 1)
    levels = as_bytes(stretched.astype(np.float32), "a picture")
    return np.repeat(levels, 3 // levels.shape[2], axis=2)


def prepared_for_people(images: "Tensor") -> "Tensor":
    """Prepared images (B, C, h, w), uint8 or float32 -> uint8 (B, 3, h, w)."""
    import torch

    if images.dtype == torch.uint8 and images.shape[1] == 3:
        return images
    pictures = images.cpu().permute(0, 2, 3, 1).numpy()  # (B, h, w, C)
    shown = np.stack([pixels_for_people(picture) for picture in pictures])
    return torch.from_numpy(shown).permute(0, 3, 1, 2)
