"""RandAugment as AugReg had it, from the TPU's AutoAugment code: 16 operations, on a scale of 10 that may be exceeded.

Slips of the published code are kept, for the published models saw them. Contrast is about a grey of h w / 256 (196 at 224 x
224) where the image's mean was meant. Posterize keeps the more, the larger the magnitude: all, at 20. Solarize's threshold is
stored in eight bits, so that 256, at 10, is 0 and every value is turned around. Beside TensorFlow's results, colour and
sharpness differ by up to three levels (they round at other places), a shear in the few rows that lie between two pixels.

Legend: h w pixels.
"""

from dataclasses import dataclass
from math import atan, degrees

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

GREY = 128  # what an operation uncovers


@dataclass(frozen=True)
class RandAugment:
    """So many operations, one after another, each drawn from all of them and always applied, at one magnitude.

    Draws from PyTorch's global generator, as torchvision's transforms do.
    """

    layers: int
    magnitude: int
    """0 to 20, AugReg's largest; above 22 posterize has no meaning. 0 is not without effect."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        operations = list(OPERATIONS.values())
        for i in torch.randint(len(operations), (self.layers,)).tolist():
            image = operations[i](image, self.magnitude / 10)
        return image


def solarize_add(image: Tensor, addition: int) -> Tensor:
    """Brightens the darker half of the values."""
    return torch.where(image < 128, (image.int() + addition).clamp(max=255).byte(), image)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Distances from the grey named above, times a factor."""
    grey = min(image[0].numel() // 256, 255)
    return (grey + factor * (image.float() - grey)).clamp(0, 255).byte()


def cutout(image: Tensor, half: int) -> Tensor:
    """A square of twice `half` a side is grey; its centre is anywhere, so part of it may be outside."""
    y, x = (int(torch.randint(side, ())) for side in image.shape[1:])
    image = image.clone()
    image[:, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = GREY
    return image


def moved(
    image: Tensor, x: float = 0.0, y: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> Tensor:
    """Shifted by pixels, or sheared around the middle of the first pixel; the nearest pixel's value."""
    shear = [degrees(atan(shear_x)), degrees(atan(shear_y))]
    return F.affine(image, 0.0, [x, y], 1.0, shear, fill=GREY, center=[0.5, 0.5])


def either(value: float) -> float:
    """The value or its negative."""
    return value if torch.rand(()) < 0.5 else -value


def enhancement(level: float) -> float:
    """A factor; 1 changes nothing, and is that of a magnitude of 5."""
    return 1.8 * level + 0.1


OPERATIONS = {  # of an image and a level, the magnitude over 10
    "AutoContrast": lambda image, level: F.autocontrast(image),
    "Equalize": lambda image, level: F.equalize(image),
    "Invert": lambda image, level: F.invert(image),
    "Rotate": lambda image, level: F.rotate(image, either(30 * level), fill=GREY),
    "Posterize": lambda image, level: F.posterize(image, max(int(4 * level), 1)),
    "Solarize": lambda image, level: F.solarize(image, int(256 * level) % 256),
    "Color": lambda image, level: F.adjust_saturation(image, enhancement(level)),
    "Contrast": lambda image, level: contrast(image, enhancement(level)),
    "Brightness": lambda image, level: F.adjust_brightness(image, enhancement(level)),
    "Sharpness": lambda image, level: F.adjust_sharpness(image, enhancement(level)),
    "ShearX": lambda image, level: moved(image, shear_x=either(0.3 * level)),
    "ShearY": lambda image, level: moved(image, shear_y=either(0.3 * level)),
    "TranslateX": lambda image, level: moved(image, x=either(100 * level)),
    "TranslateY": lambda image, level: moved(image, y=either(100 * level)),
    "Cutout": lambda image, level: cutout(image, int(40 * level)),
    "SolarizeAdd": lambda image, level: solarize_add(image, int(110 * level)),
}
