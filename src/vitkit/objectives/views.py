"""Random views of images for self-distillation: crops, colours and blur, vectorised over a batch on its device.
Random numbers are a function of the examples' keys.

Images are float, from 0 to 1. Views are cut from the images of the loader, which should be whole
(`Augmentation(crop="none")`). These have a lower resolution than their files, so small crops are blurrier than
crops of the files would be.

Legend: B batch, H W an image's height and width, h w a view's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import uniforms

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey (ITU-R 601)
# Pixels of the blur's kernel: three of the largest standard deviations to either side, for images of 224
# pixels. For larger images the deviation is larger, and the kernel is truncated
TAPS = 13


@dataclass(frozen=True)
class View:
    """The settings of one view; the defaults are DINO's."""

    size: tuple[int, int]
    """Height and width in pixels."""
    area: tuple[float, float]
    """Smallest and largest share of the image that the view shows."""
    blur: float
    """Probability of a Gaussian blur."""
    solarise: float = 0.0
    """Probability that values from 0.5 on are inverted."""


def view(images: Tensor, keys: Tensor, number: int, how: View) -> Tensor:
    """(B, 3, H, W), (B,) -> (B, 3, *size): view `number` of every image."""
    # 13 uniform numbers for each example and view
    draws = uniforms(keys, 13, 1000 + number).mT  # (13, B)
    x = cropped(images, how, *draws[:5])
    x = coloured(x, *draws[5:10])
    grey, blur, solarise = draws[10:]

    # One image in five becomes grey
    x = torch.where(_rows(grey < 0.2), luma(x).expand_as(x), x)

    # The number that decides whether to blur also gives the strength: below the probability it is uniform, and
    # is mapped to 0.1 to 2 pixels, for images 224 pixels wide
    sigma = (0.1 + 1.9 * blur / max(how.blur, 1e-6)) * images.shape[-1] / 224
    x = torch.where(_rows(blur < how.blur), blurred(x, sigma), x)
    return torch.where(_rows(solarise < how.solarise) & (x >= 0.5), 1 - x, x)


def cropped(
    images: Tensor, how: View, area: Tensor, aspect: Tensor, y: Tensor, x: Tensor, flip: Tensor
) -> Tensor:
    """(B, 3, H, W) -> (B, 3, *size): a random part of each image, of an aspect ratio from 3/4 to
    4/3, resized bicubically; half of them are mirrored. The last five are uniform numbers, (B,)."""
    # Height and width as shares of the image's
    smallest, largest = how.area
    share = smallest + (largest - smallest) * area
    root = (4 / 3) ** ((2 * aspect - 1) / 2)  # square root of the aspect ratio
    height = (share.sqrt() / root).clamp(max=1)
    width = (share.sqrt() * root).clamp(max=1)

    # An affine map from the view's coordinates to the image's, both from -1 to 1
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = width * torch.where(flip < 0.5, -1, 1)
    theta[:, 0, 2] = (1 - width) * (2 * x - 1)
    theta[:, 1, 1] = height
    theta[:, 1, 2] = (1 - height) * (2 * y - 1)
    grid = F.affine_grid(theta, [len(images), 3, *how.size], align_corners=False)
    return F.grid_sample(images, grid, "bicubic", "border", align_corners=False).clamp(0, 1)


def coloured(
    x: Tensor, chance: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
) -> Tensor:
    """Colour jitter of four images in five, (B, 3, h, w) -> (B, 3, h, w): brightness and contrast (each by up to
    40 %), saturation (20 %) and hue (a tenth of the circle). The last five arguments are uniform numbers, (B,)."""
    # Brightness
    out = (x * _factor(brightness, 0.4)).clamp(0, 1)

    # Contrast: the distance from the image's mean grey
    middle = luma(out).mean((2, 3), keepdim=True)
    out = (middle + (out - middle) * _factor(contrast, 0.4)).clamp(0, 1)

    # Saturation: the distance from each pixel's grey
    grey = luma(out)
    out = (grey + (out - grey) * _factor(saturation, 0.2)).clamp(0, 1)

    # Hue
    out = turned(out, 0.1 * (2 * hue - 1)).clamp(0, 1)
    return torch.where(_rows(chance < 0.8), out, x)


def _factor(uniform: Tensor, most: float) -> Tensor:
    """A factor of each image from uniform numbers: (B,) from 0 to 1 -> (B, 1, 1, 1) from 1 - most to 1 + most."""
    return _rows(1 + most * (2 * uniform - 1))


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Change the hue by a share of the circle, (B, 3, h, w), (B,) -> (B, 3, h, w): a rotation of (red, green, blue)
    around the grey axis, which keeps their sum."""
    angle = 2 * torch.pi * turn
    cos = angle.cos()
    sin = angle.sin() / 3**0.5
    own = (1 + 2 * cos) / 3
    ahead = (1 - cos) / 3 - sin
    behind = (1 - cos) / 3 + sin
    red = torch.stack((own, ahead, behind), -1)
    green = torch.stack((behind, own, ahead), -1)
    blue = torch.stack((ahead, behind, own), -1)
    rotation = torch.stack((red, green, blue), 1)  # (B, 3, 3)
    return torch.einsum("bij,bjhw->bihw", rotation, x)


def blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """A Gaussian blur with a standard deviation in pixels for each image, with replicated edges: (B, 3, h, w),
    (B,) -> (B, 3, h, w)."""
    b, c, h, w = x.shape
    offsets = torch.arange(TAPS, device=x.device) - TAPS // 2
    weights = torch.softmax(-((offsets / sigma[:, None]) ** 2) / 2, -1)  # (B, taps), sum 1
    kernel = weights.repeat_interleave(c, 0)  # (B C, taps)

    # Every channel of every image has its own kernel: one convolution of B C groups
    out = F.pad(x.reshape(1, b * c, h, w), [TAPS // 2] * 4, mode="replicate")
    out = F.conv2d(out, kernel[:, None, None], groups=b * c)  # along the rows
    out = F.conv2d(out, kernel[:, None, :, None], groups=b * c)  # along the columns
    return out.view(b, c, h, w)


def luma(x: Tensor) -> Tensor:
    """Grey images: (B, 3, h, w) -> (B, 1, h, w)."""
    red, green, blue = x.split(1, 1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _rows(values: Tensor) -> Tensor:
    """A value for each image, shaped for broadcasting: (B,) -> (B, 1, 1, 1)."""
    return values[:, None, None, None]
