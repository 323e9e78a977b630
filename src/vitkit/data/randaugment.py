"""RandAugment as AugReg had it, from the TPU's AutoAugment code: 16 operations, on a scale of 10 that may be exceeded.

Slips of the published code are kept, for the published models saw them. Contrast is about a grey of h w / 256 (196 at 224 x
224) where the image's mean was meant. Posterize keeps the more, the larger the magnitude: all, at 20. Solarize's threshold is
stored in eight bits, so that 256, at 10, is 0 and every value is turned around. Beside TensorFlow's results, colour and
sharpness differ by up to three levels (they round at other places), a shear in the few rows that lie between two pixels.

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
    """`layers` operations, one after another, each drawn from all of them and always applied, at one magnitude.

    magnitude: 0 to 20, AugReg's largest; above 22 posterize has no meaning, and 0 is not without effect. size: (h, w) of
    the images.
    """
    names = list(OPERATIONS)
    chosen = torch.randint(len(names), (layers,), generator=generator).tolist()
    level = magnitude / 10
    return tuple(
        Operation(names[i], OPERATIONS[names[i]].draw(level, size, generator)) for i in chosen
    )


@dataclass(frozen=True)
class Kind:
    """How an operation is drawn, and how it is applied."""

    draw: Callable[[float, tuple[int, int], torch.Generator], Any]
    """(level, (h, w), generator) -> its value. The level is the magnitude over 10."""
    apply: Callable[[Tensor, Any], Tensor]
    """(uint8 (3, h, w), its value) -> uint8 (3, h, w)"""


def fixed(value: Callable[[float], Value]) -> Callable:
    """A function of the level alone; nothing is drawn."""
    return lambda level, size, generator: value(level)


def signed(most: float) -> Callable:
    """So much at level 1, in either direction."""

    def draw(level: float, size: tuple[int, int], generator: torch.Generator) -> float:
        value = most * level
        return value if torch.rand((), generator=generator) < 0.5 else -value

    return draw


def square(level: float, size: tuple[int, int], generator: torch.Generator) -> tuple[int, int, int]:
    """A centre (y, x) anywhere, and half the side: 40 pixels at level 1."""
    y, x = (int(torch.randint(side, (), generator=generator)) for side in size)
    return y, x, int(40 * level)


def nothing(level: float) -> None:
    """The operation has no value."""


def enhancement(level: float) -> float:
    """A factor; 1 changes nothing, and is that of a magnitude of 5."""
    return 1.8 * level + 0.1


def solarize_add(image: Tensor, addition: int) -> Tensor:
    """Brightens the darker half of the values."""
    return torch.where(image < 128, (image.int() + addition).clamp(max=255).byte(), image)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Distances from the grey named above, times a factor."""
    grey = min(image[0].numel() // 256, 255)
    return (grey + factor * (image.float() - grey)).clamp(0, 255).byte()


def cutout(image: Tensor, at: tuple[int, int, int]) -> Tensor:
    """A square is grey, of which a part may lie outside: (centre y, centre x, half a side)."""
    y, x, half = at
    image = image.clone()
    image[:, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = GREY
    return image


def moved(
    image: Tensor, x: float = 0.0, y: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> Tensor:
    """Shifted by pixels, or sheared around the middle of the first pixel; the nearest pixel's value."""
    shear = [degrees(atan(shear_x)), degrees(atan(shear_y))]
    return F.affine(image, 0.0, [x, y], 1.0, shear, fill=GREY, center=[0.5, 0.5])


OPERATIONS: dict[str, Kind] = {
    "AutoContrast": Kind(fixed(nothing), lambda image, _: F.autocontrast(image)),
    "Equalize": Kind(fixed(nothing), lambda image, _: F.equalize(image)),
    "Invert": Kind(fixed(nothing), lambda image, _: F.invert(image)),
    "Rotate": Kind(signed(30), lambda image, angle: F.rotate(image, angle, fill=GREY)),
    "Posterize": Kind(fixed(lambda level: max(int(4 * level), 1)), F.posterize),
    "Solarize": Kind(fixed(lambda level: int(256 * level) % 256), F.solarize),
    "Color": Kind(fixed(enhancement), F.adjust_saturation),
    "Contrast": Kind(fixed(enhancement), contrast),
    "Brightness": Kind(fixed(enhancement), F.adjust_brightness),
    "Sharpness": Kind(fixed(enhancement), F.adjust_sharpness),
    "ShearX": Kind(signed(0.3), lambda image, shear: moved(image, shear_x=shear)),
    "ShearY": Kind(signed(0.3), lambda image, shear: moved(image, shear_y=shear)),
    "TranslateX": Kind(signed(100), lambda image, pixels: moved(image, x=pixels)),
    "TranslateY": Kind(signed(100), lambda image, pixels: moved(image, y=pixels)),
    "Cutout": Kind(square, cutout),
    "SolarizeAdd": Kind(fixed(lambda level: int(110 * level)), solarize_add),
}
