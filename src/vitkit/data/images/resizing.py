"""The two ways in which images are resized.

In evaluation Pillow resizes, as in the pipelines that published accuracies come from. In training
PyTorch does, which is faster: fewer than two values in a hundred differ, by one level, and that is
enough to change one prediction in five hundred.

Legend: C channels.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

# Of anything that belongs to an image: nearest is for masks, whose values are no levels.
Resampling = Literal["bilinear", "bicubic", "nearest"]


def resize_as_pillow(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Resampling
) -> np.ndarray:
    """(height, width, C) -> (C, *size), uint8 or float32, antialiased, to the bit what Pillow makes
    of it."""
    if pixels.shape[:2] == size:  # Pillow copies it
        return pixels.transpose(2, 0, 1).copy()
    kernel = Image.Resampling[interpolation.upper()]
    if pixels.shape[2] == 3 and pixels.dtype == np.uint8:
        image = Image.fromarray(pixels).resize(size[::-1], kernel)
        return np.array(image).transpose(2, 0, 1)
    resized = np.empty((pixels.shape[2], *size), pixels.dtype)
    for channel, plane in enumerate(np.moveaxis(pixels, 2, 0)):
        image = Image.fromarray(np.ascontiguousarray(plane))
        resized[channel] = np.asarray(image.resize(size[::-1], kernel))
    return resized


def resize(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Resampling, antialias: bool = False
) -> "Tensor":
    """(height, width, C) -> (C, *size), uint8 or float32, as PyTorch resizes."""
    import torch
    import torch.nn.functional as F

    if not pixels.flags.writeable:  # which torch would warn about
        pixels = pixels.copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    images = image[None]  # (1, C, height, width), channels last in memory: the fast way
    if images.shape[2:] == size:
        return image
    if interpolation == "nearest":
        return F.interpolate(images, size, mode="nearest-exact")[0]
    return F.interpolate(images, size, mode=interpolation, antialias=antialias)[0]
