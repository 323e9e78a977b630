"""RandAugment as AugReg had it, from the TPU's AutoAugment code: 16 operations, on a scale of 10
that may be exceeded.

Slips of the published code are kept, for the published models saw them. Contrast is about a grey of
h w / 256 (196 at 224 x 224) where the image's mean was meant. Posterize keeps the more, the larger
the magnitude: all, at 20. Solarize's threshold is stored in eight bits, so that 256, at 10, is 0
and every value is turned around. Beside TensorFlow's results, colour and sharpness differ by up to
three levels (they round at other places), a shear in the few rows that lie between two pixels.

Legend: h w pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import atan, degrees
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

GREY = 128  # what an operation uncovers

Value = float | int | tuple[int, int, int] | None


class Operation(NamedTuple):
    """One operation as it was drawn."""

    name: str
    """One of OPERATIONS."""
    value: Value
    """What its kind draws: degrees, a factor, pixels ..."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        return OPERATIONS[self.name].apply(image, self.value)


def draw_operations(
    layers: int, magnitude: int, size: tuple[int, int], generator: torch.Generator
) -> tuple[Operation, ...]:
    """`layers` operations, one after another, each drawn from all of them and always applied, at
    one magnitude.

    magnitude: 0 to 20, AugReg's largest; above 22 posterize has no meaning, and 0 is not without
    effect.
    size: (h, w) of the images.
    """
    names = list(OPERATIONS)
    operations = []
    for i in torch.randint(len(names), (layers,), generator=generator).tolist():
        value = OPERATIONS[names[i]].draw(magnitude / 10, size, generator)
        operations.append(Operation(names[i], value))
    return tuple(operations)


@dataclass(frozen=True)
class Kind:
    """How an operation is drawn, and how it is applied."""

    draw: Callable[[float, tuple[int, int], torch.Generator], Any]
    """(level, (h, w), generator) -> its value. The level is the magnitude over 10."""
    apply: Callable[[Tensor, Any], Tensor]
    """(uint8 (3, h, w), its value) -> uint8 (3, h, w)"""


# Values. Most are functions of the level alone, for which nothing is drawn.


def no_value(level: float, *_) -> None:
    """For operations without a value."""


def bits_kept(level: float, *_) -> int:
    return max(int(4 * level), 1)


def threshold(level: float, *_) -> int:
    return int(256 * level) % 256


def enhancement(level: float, *_) -> float:
    """A factor; 1 changes nothing, and is that of a magnitude of 5."""
    return 1.8 * level + 0.1


def addition(level: float, *_) -> int:
    return int(110 * level)


def either_sign(most: float) -> Callable:
    """So much at level 1, in either direction."""

    def draw(level: float, size: tuple[int, int], generator: torch.Generator) -> float:
        negative = torch.rand((), generator=generator) >= 0.5
        return -most * level if negative else most * level

    return draw


def square(level: float, size: tuple[int, int], generator: torch.Generator) -> tuple[int, int, int]:
    """A centre (y, x) anywhere, and half the side: 40 pixels at level 1."""
    y = int(torch.randint(size[0], (), generator=generator))
    x = int(torch.randint(size[1], (), generator=generator))
    return y, x, int(40 * level)


# Operations: uint8 (3, h, w) and a value -> uint8 (3, h, w)


def autocontrast(image: Tensor, _: None) -> Tensor:
    return F.autocontrast(image)


def equalize(image: Tensor, _: None) -> Tensor:
    return F.equalize(image)


def invert(image: Tensor, _: None) -> Tensor:
    return F.invert(image)


def solarize_add(image: Tensor, addition: int) -> Tensor:
    """Brightens the darker half of the values."""
    brightened = (image.int() + addition).clamp(max=255).byte()
    return torch.where(image < 128, brightened, image)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Distances from the grey of h w / 256, times a factor."""
    grey = min(image[0].numel() // 256, 255)
    return (grey + factor * (image.float() - grey)).clamp(0, 255).byte()


def cutout(image: Tensor, at: tuple[int, int, int]) -> Tensor:
    """A square is grey, of which a part may lie outside: (centre y, centre x, half a side)."""
    y, x, half = at
    image = image.clone()
    image[:, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = GREY
    return image


def rotate(image: Tensor, angle: float) -> Tensor:
    return F.rotate(image, angle, fill=GREY)


def translate_x(image: Tensor, pixels: float) -> Tensor:
    return affine(image, x=pixels)


def translate_y(image: Tensor, pixels: float) -> Tensor:
    return affine(image, y=pixels)


def shear_x(image: Tensor, shear: float) -> Tensor:
    return affine(image, shear_x=shear)


def shear_y(image: Tensor, shear: float) -> Tensor:
    return affine(image, shear_y=shear)


def affine(
    image: Tensor, x: float = 0.0, y: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> Tensor:
    """Shifted by pixels, or sheared around the middle of the first pixel; the nearest pixel's
    value."""
    angles = [degrees(atan(shear_x)), degrees(atan(shear_y))]
    return F.affine(image, 0.0, [x, y], 1.0, angles, fill=GREY, center=[0.5, 0.5])


# Name: its value, what it does. The order counts: operations are drawn by their number.
OPERATIONS: dict[str, Kind] = {
    "AutoContrast": Kind(no_value, autocontrast),
    "Equalize": Kind(no_value, equalize),
    "Invert": Kind(no_value, invert),
    "Rotate": Kind(either_sign(30), rotate),
    "Posterize": Kind(bits_kept, F.posterize),
    "Solarize": Kind(threshold, F.solarize),
    "Color": Kind(enhancement, F.adjust_saturation),
    "Contrast": Kind(enhancement, contrast),
    "Brightness": Kind(enhancement, F.adjust_brightness),
    "Sharpness": Kind(enhancement, F.adjust_sharpness),
    "ShearX": Kind(either_sign(0.3), shear_x),
    "ShearY": Kind(either_sign(0.3), shear_y),
    "TranslateX": Kind(either_sign(100), translate_x),
    "TranslateY": Kind(either_sign(100), translate_y),
    "Cutout": Kind(square, cutout),
    "SolarizeAdd": Kind(addition, solarize_add),
}
