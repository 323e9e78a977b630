"""Changes of colours: torchvision's jitter, RandAugment and erasing; and Google's RandAugment.

torchvision draws from PyTorch's global generator. It is seeded for each draw, and its state is
restored afterwards.

Google's RandAugment is that of AugReg, from the TPU's AutoAugment code: 16 operations, on a scale
of 10 that may be exceeded. The errors of the published code are kept, because the published models
were trained with them. Contrast is about a grey of h w / 256 (196 at 224 x 224) where the image's
mean was meant. Posterize keeps more bits, not fewer, the larger the magnitude: all at 20. Solarize
stores its threshold in eight bits, so a threshold of 256, at magnitude 10, becomes 0 and inverts
every value. Results differ from TensorFlow's by up to three levels for colour and sharpness, which
round at other places, and for a shear in the few rows that lie between two pixels.

Legend: h w pixels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import atan, degrees
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from vitkit.data.images.pixels import Box

# In the order of torchvision's numbers
ADJUSTMENTS = (
    "brightness",
    "contrast",
    "saturation",
    "hue",
)
GREY = 128  # level of the pixels that an operation of Google's RandAugment uncovers

Value = float | int | tuple[int, int, int] | None


class Colours(NamedTuple):
    """The drawn values of a colour jitter."""

    order: tuple[int, ...]
    """Numbers of ADJUSTMENTS in the order in which they are applied."""
    amounts: tuple[float | None, ...]
    """Factors of brightness, contrast and saturation, and the shift of the hue as a share of the colour
    circle; None leaves an adjustment out."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        for i in self.order:
            adjust = getattr(F, f"adjust_{ADJUSTMENTS[i]}")
            if self.amounts[i] is not None:
                image = adjust(image, self.amounts[i])
        return image


def draw_colours(strengths: tuple[float, float, float, float], seed: int) -> Colours:
    """Draw a jitter.

    strengths: largest change of each of ADJUSTMENTS.
    """
    with _seeded(seed):
        drawn = v2.ColorJitter(*strengths).make_params([])
    order = drawn["fn_idx"].tolist()
    amounts = [drawn[f"{name}_factor"] for name in ADJUSTMENTS]
    return Colours(tuple(order), tuple(amounts))


class Policy(NamedTuple):
    """torchvision's RandAugment. It draws while it is applied, so its seed represents what is drawn."""

    layers: int
    magnitude: int
    seed: int

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        with _seeded(self.seed):
            return v2.RandAugment(self.layers, self.magnitude)(image)


def draw_erased(share: float, size: tuple[int, int], seed: int) -> Box | None:
    """Draw the rectangle to erase, 2 to 33 % of an image of `size` (h, w); None for an image without.

    share: probability of a rectangle.
    """
    with _seeded(seed):
        if torch.rand(1) >= share:
            return None
        image = torch.empty(3, *size, device="meta")
        drawn = v2.RandomErasing(1.0, value=[0, 0, 0]).make_params([image])
    if drawn["v"] is None:  # no rectangle fitted
        return None
    return drawn["i"], drawn["j"], drawn["h"], drawn["w"]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global CPU generator inside the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


# Google's RandAugment


class Operation(NamedTuple):
    """The drawn values of one operation."""

    name: str
    """One of OPERATIONS."""
    value: Value
    """What its Kind draws: degrees, a factor, pixels, or None."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        return OPERATIONS[self.name].apply(image, self.value)


def draw_operations(
    layers: int, magnitude: int, size: tuple[int, int], generator: torch.Generator
) -> tuple[Operation, ...]:
    """Draw `layers` operations uniformly, with replacement, all with one magnitude.

    magnitude: 0 to 20, AugReg's largest. Posterize is not defined above 22. Magnitude 0 changes images
    too.
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
    """A kind of operation: how its value is drawn, and how it is applied."""

    draw: Callable[[float, tuple[int, int], torch.Generator], Any]
    """(level, (h, w), generator) -> the operation's value. The level is a tenth of the magnitude."""
    apply: Callable[[Tensor, Any], Tensor]
    """(uint8 (3, h, w), the operation's value) -> uint8 (3, h, w)."""


# How the value of an operation is drawn


def no_value(level: float, *_) -> None:
    """Draw nothing: for operations without a value."""


def of_level(value: Callable[[float], Any]) -> Callable:
    """Compute the value from the level alone, without drawing anything."""
    return lambda level, *_: value(level)


def either_sign(most: float) -> Callable:
    """Draw the sign of a value that grows with the level, up to `most` at level 1."""

    def draw(level: float, size: tuple[int, int], generator: torch.Generator) -> float:
        negative = torch.rand((), generator=generator) >= 0.5
        return -most * level if negative else most * level

    return draw


def square(level: float, size: tuple[int, int], generator: torch.Generator) -> tuple[int, int, int]:
    """Draw a square: a centre (y, x) anywhere in the image, and half the side, 40 pixels at level 1."""
    y = int(torch.randint(size[0], (), generator=generator))
    x = int(torch.randint(size[1], (), generator=generator))
    return y, x, int(40 * level)


# The operations: uint8 (3, h, w) and a value -> uint8 (3, h, w)


def solarize_add(image: Tensor, addition: int) -> Tensor:
    """Brighten the darker half of the values."""
    brightened = (image.int() + addition).clamp(max=255).byte()
    return torch.where(image < 128, brightened, image)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Multiply each value's distance from the grey h w / 256 by a factor."""
    grey = min(image[0].numel() // 256, 255)
    return (grey + factor * (image.float() - grey)).clamp(0, 255).byte()


def cutout(image: Tensor, square: tuple[int, int, int]) -> Tensor:
    """Fill a square with grey: (centre y, centre x, half a side). A part of it may lie outside."""
    y, x, half = square
    image = image.clone()
    image[:, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = GREY
    return image


def affine(
    image: Tensor, x: float = 0.0, y: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> Tensor:
    """Shift by pixels, or shear around the centre of the first pixel, with the nearest pixel's value."""
    angles = [degrees(atan(shear_x)), degrees(atan(shear_y))]
    return F.affine(image, 0.0, [x, y], 1.0, angles, fill=GREY, center=[0.5, 0.5])


# A factor that is 1, and so changes nothing, at magnitude 5
ENHANCEMENT = of_level(lambda level: 1.8 * level + 0.1)
# Name: how its value is drawn, and what it does. Operations are drawn by number, so their order matters.
OPERATIONS: dict[str, Kind] = {
    "AutoContrast": Kind(no_value, lambda image, _: F.autocontrast(image)),
    "Equalize": Kind(no_value, lambda image, _: F.equalize(image)),
    "Invert": Kind(no_value, lambda image, _: F.invert(image)),
    "Rotate": Kind(either_sign(30), lambda image, angle: F.rotate(image, angle, fill=GREY)),
    "Posterize": Kind(of_level(lambda level: max(int(4 * level), 1)), F.posterize),
    "Solarize": Kind(of_level(lambda level: int(256 * level) % 256), F.solarize),
    "Color": Kind(ENHANCEMENT, F.adjust_saturation),
    "Contrast": Kind(ENHANCEMENT, contrast),
    "Brightness": Kind(ENHANCEMENT, F.adjust_brightness),
    "Sharpness": Kind(ENHANCEMENT, F.adjust_sharpness),
    "ShearX": Kind(either_sign(0.3), lambda image, shear: affine(image, shear_x=shear)),
    "ShearY": Kind(either_sign(0.3), lambda image, shear: affine(image, shear_y=shear)),
    "TranslateX": Kind(either_sign(100), lambda image, pixels: affine(image, x=pixels)),
    "TranslateY": Kind(either_sign(100), lambda image, pixels: affine(image, y=pixels)),
    "Cutout": Kind(square, cutout),
    "SolarizeAdd": Kind(of_level(lambda level: int(110 * level)), solarize_add),
}
