"""The two implementations of resizing.

In evaluation Pillow resizes, as in the pipelines of the published accuracies. In training PyTorch
resizes, because it is faster. Fewer than two values in a hundred differ, by one level, which is
enough to change one prediction in five hundred.

Legend: C channels.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

# "nearest" is for masks, whose values are not levels
Resampling = Literal["bilinear", "bicubic", "nearest"]


def resize_as_pillow(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Resampling
) -> np.ndarray:
    """Resize (height, width, C) to (C, *size), uint8 or float32, antialiased, with exactly Pillow's result."""
    if pixels.shape[:2] == size:  # Pillow would copy the image
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
    """Resize (height, width, C) to (C, *size), uint8 or float32, with PyTorch."""
    import torch
    import torch.nn.functional as F

    if not pixels.flags.writeable:  # torch would warn
        pixels = pixels.copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    images = image[None]  # (1, C, height, width), channels last in memory, which is faster
    if images.shape[2:] == size:
        return image
    if interpolation == "nearest":
        return F.interpolate(images, size, mode="nearest-exact")[0]
    return F.interpolate(images, size, mode=interpolation, antialias=antialias)[0]
