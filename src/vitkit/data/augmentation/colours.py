"""What is done to colours: by torchvision, jitter, its RandAugment and erasing; and the RandAugment
of Google's models.

torchvision draws from PyTorch's global generator, which is seeded for each draw, and left as it
was.

Google's is RandAugment as AugReg had it, from the TPU's AutoAugment code: 16 operations, on a scale
of 10 that may be exceeded. Slips of the published code are kept, for the published models saw them.
Contrast is about a grey of h w / 256 (196 at 224 x 224) where the image's mean was meant. Posterize
keeps the more, the larger the magnitude: all, at 20. Solarize's threshold is stored in eight bits,
so that 256, at 10, is 0 and every value is turned around. Beside TensorFlow's results, colour and
sharpness differ by up to three levels (they round at other places), a shear in the few rows that
lie between two pixels.

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

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")  # as torchvision numbers them
GREY = 128  # what an operation of Google's uncovers

Value = float | int | tuple[int, int, int] | None


class Colours(NamedTuple):
    """The drawn values of a colour jitter."""

    order: tuple[int, ...]
    """Which of ADJUSTMENTS comes first, second and so on, by number."""
    amounts: tuple[float | None, ...]
    """Factors of the first three, part of the colour circle for the hue; None leaves one out."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        for i in self.order:
            adjust = getattr(F, f"adjust_{ADJUSTMENTS[i]}")
            if self.amounts[i] is not None:
                image = adjust(image, self.amounts[i])
        return image


def draw_colours(strengths: tuple[float, float, float, float], seed: int) -> Colours:
    """A jitter of at most these strengths, by ADJUSTMENTS."""
    with _seeded(seed):
        drawn = v2.ColorJitter(*strengths).make_params([])
    order = drawn["fn_idx"].tolist()
    amounts = [drawn[f"{name}_factor"] for name in ADJUSTMENTS]
    return Colours(tuple(order), tuple(amounts))


class Policy(NamedTuple):
    """torchvision's RandAugment, which draws while it is applied: what was drawn is its seed."""

    layers: int
    magnitude: int
    seed: int

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        with _seeded(self.seed):
            return v2.RandAugment(self.layers, self.magnitude)(image)


def draw_erased(share: float, size: tuple[int, int], seed: int) -> Box | None:
    """A rectangle of 2 to 33 % of an image of `size` (h, w), for a share of the images; None for
    the others."""
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
    """PyTorch's global generator, of the CPU, begins with this seed inside, and goes on as before
    outside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


# Google's RandAugment


class Operation(NamedTuple):
    """The drawn values of one operation."""

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
    """A kind of operation: how it is drawn, and how it is applied."""

    draw: Callable[[float, tuple[int, int], torch.Generator], Any]
    """(level, (h, w), generator) -> its value. The level is the magnitude over 10."""
    apply: Callable[[Tensor, Any], Tensor]
    """(uint8 (3, h, w), its value) -> uint8 (3, h, w)"""


# What is drawn for an operation


def no_value(level: float, *_) -> None:
    """For operations without a value."""


def of_level(value: Callable[[float], Any]) -> Callable:
    """A function of the level alone: nothing is drawn."""
    return lambda level, *_: value(level)


def either_sign(most: float) -> Callable:
    """A value that grows with the level, up to `most` at level 1; its sign is drawn."""

    def draw(level: float, size: tuple[int, int], generator: torch.Generator) -> float:
        negative = torch.rand((), generator=generator) >= 0.5
        return -most * level if negative else most * level

    return draw


def square(level: float, size: tuple[int, int], generator: torch.Generator) -> tuple[int, int, int]:
    """A centre (y, x) anywhere, and half the side: 40 pixels at level 1."""
    y = int(torch.randint(size[0], (), generator=generator))
    x = int(torch.randint(size[1], (), generator=generator))
    return y, x, int(40 * level)


# What operations do: uint8 (3, h, w) and a value -> uint8 (3, h, w)


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


def affine(
    image: Tensor, x: float = 0.0, y: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> Tensor:
    """Shifted by pixels, or sheared around the middle of the first pixel; the nearest pixel's
    value."""
    angles = [degrees(atan(shear_x)), degrees(atan(shear_y))]
    return F.affine(image, 0.0, [x, y], 1.0, angles, fill=GREY, center=[0.5, 0.5])


# A factor; 1 changes nothing, and is that of a magnitude of 5.
ENHANCEMENT = of_level(lambda level: 1.8 * level + 0.1)
# Name: its value, what it does. The order counts: operations are drawn by their number.
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
