"""What every image goes through before a model sees it, in evaluation (Preprocessing) and in training (Augmentation).

Images are uint8 until they are normalised, on the model's device. In evaluation Pillow resizes, as in the pipelines that
published accuracies come from; in training PyTorch does, which is faster: fewer than two values in a hundred differ, by
one level, and that is enough to turn a prediction in five hundred.

Legend: B batch, h w pixels of what the model gets.
"""

from dataclasses import asdict, dataclass, fields
from functools import cache
from math import isfinite
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit.data.crops import inception_box, random_box
from vitkit.data.images import MAX_PIXELS, REDUCTIONS, BadImage, Box, Picture

Interpolation = Literal["bilinear", "bicubic"]
MAX_SIDE = 8192
MAGNITUDES = {"torchvision": 30, "google": 20}  # the largest of each RandAugment


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes what the model was made for. It is saved with the model and never guessed.

    The defaults are the published ViT's (mean and standard deviation 0.5: pixels from -1 to 1), with antialiasing, as
    Hugging Face and timm resize; Google's own evaluation resized without it.
    """

    size: tuple[int, int] = (224, 224)
    """Height and width that the model gets, in pixels."""
    rule: Literal["square", "shorter"] = "square"
    """How it gets there: both sides to their size at once, or the shorter one, the shape kept, and the centre of that."""
    resize: int = 0
    """Side to resize to before a centre crop, of the square or the shorter one; 256 and 224 are the usual pair. 0 is the
    size itself: a square then needs no crop."""
    interpolation: Interpolation = "bilinear"
    """Of the resize."""
    antialias: bool = True
    """Whether a resize to fewer pixels averages over all of the old ones."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Subtracted from red, green and blue on the scale from 0 to 1."""
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """What the rest is divided by."""

    def __post_init__(self):
        for name in ("size", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_side("size", self.size)
        _check_choice("rule", self.rule, ("square", "shorter"))
        _check_choice("interpolation", self.interpolation, ("bilinear", "bicubic"))
        _check_choice("antialias", self.antialias, (True, False))
        if self.resize and not max(self.size) <= self.resize <= MAX_SIDE:
            raise ValueError(
                f"resize is {self.resize}; it must be from {max(self.size)}, for the crop of {self.size[0]} x {self.size[1]} "
                f"to fit, to {MAX_SIDE}, or 0"
            )
        for name in ("mean", "std"):
            values = getattr(self, name)
            numbers = len(values) == 3 and all(
                isinstance(value, int | float) and isfinite(value) for value in values
            )
            if not numbers or (name == "std" and min(values) <= 0):
                raise ValueError(
                    f"{name} is {values}; it is three numbers{', all positive' * (name == 'std')}, for r, g, b"
                )

    def __call__(self, picture: Picture) -> Tensor:
        """A picture as uint8 (3, h, w). Raises BadImage."""
        size = (self.resize, self.resize) if self.resize else self.size
        if self.rule == "shorter":
            height, width = picture.size
            short, side = min(height, width), self.resize or max(self.size)
            size = (int(side * height / short), int(side * width / short))
            if size[0] * size[1] > MAX_PIXELS:
                raise BadImage(
                    f"{picture.name} is {width} x {height} pixels: too narrow for a side of {side}"
                )
        image = (as_pillow if self.antialias else resize)(
            picture.pixels(), size, self.interpolation
        )
        top, left = (round((have - want) / 2) for have, want in zip(size, self.size, strict=True))
        return image[:, top : top + self.size[0], left : left + self.size[1]]

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, h, w) on any device -> float32: (x / 255 - mean) / std."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"got {images.dtype} of shape {tuple(images.shape)}; expected uint8 (B, 3, h, w)"
            )
        return self.normalise_(images / 255)

    def normalise_(self, images: Tensor) -> Tensor:
        """Float (B, 3, h, w) from 0 to 1, changed to (x - mean) / std."""
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            images[:, channel].sub_(mean).div_(
                std
            )  # numbers, not tensors: no copy to the device that would wait for it
        return images

    def unnormalise(self, images: Tensor) -> Tensor:
        """`normalise` undone: (B, 3, h, w) -> float32 (B, 3, h, w), from 0 to 1 where they were."""
        out = images.float().clone()
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            out[:, channel].mul_(std).add_(mean)
        return out

    def levels(self, images: Tensor) -> Tensor:
        """(B, 3, h, w) as `normalise` makes them -> uint8 (B, 3, h, w), the nearest levels."""
        return self.unnormalise(images).mul_(255).round_().clamp_(0, 255).byte()

    def __str__(self) -> str:
        """All of it, for people: "shorter side to 256, centre of 224 x 224, bilinear, mean 0.5, std 0.5"."""
        side = "both sides" if self.rule == "square" else "shorter side"
        kernel = self.interpolation + " without antialiasing" * (not self.antialias)
        mean, std = (
            ", ".join(f"{value:.4g}" for value in dict.fromkeys(values))
            for values in (self.mean, self.std)
        )
        cut = f"{side} to {self.resize}, centre of " if self.resize else ""
        return f"{cut}{self.size[0]} x {self.size[1]}, {kernel}, mean {mean}, std {std}"

    def to_json(self) -> dict:
        """Plain values; from_json is the way back."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict) -> "Preprocessing":
        """Raises ValueError for what to_json would not have written."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or values.keys() != set(names):
            found = ", ".join(map(str, values)) if isinstance(values, dict) else repr(values)
            raise ValueError(
                f"a preprocessing has the settings {', '.join(names)}; got {found[:200]}"
            )
        try:
            return cls(**values)
        except TypeError as error:  # a number where there should be a list, and the like
            raise ValueError(f"the preprocessing {values} is malformed: {error}") from None


@dataclass(frozen=True)
class Augmentation:
    """What a training image goes through instead of the Preprocessing's rule; its size and statistics remain.

    The default is the paper's pre-training: an Inception crop and a flip (Section 4.1, App. B.1).
    """

    crop: Literal["inception", "resize_crop", "pad_crop", "none"] = "inception"
    """A random part resized to the size; a square resize and a random crop of it (BiT's, for fine-tuning); a random shift
    by up to `pad` pixels (CIFAR's); or what the Preprocessing does."""
    area: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest part of the image that an Inception crop may take."""
    resize: int = 0
    """Side of the square before a resize_crop; BiT has 448 for 384, 160 for 128."""
    pad: int = 4
    """Black pixels added on every side before a pad_crop."""
    flip: bool = True
    """Mirror every other image, left to right."""
    rand_augment: tuple[int, int] = (0, 0)
    """RandAugment's layers and magnitude; 0 layers is none."""
    rand_augment_by: Literal["torchvision", "google"] = "torchvision"
    """Whose it is: torchvision's, with magnitudes from 0 to 30, of which 15 turns by 15 degrees; or that of Google's models
    (AugReg), from 0 to 20, of which 15 turns by 45."""
    colour_jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Largest change of brightness, contrast, saturation (a factor from 1 - it to 1 + it) and hue (a turn, up to 0.5)."""
    erase: float = 0.0
    """Share of the images that lose a rectangle of 2 to 33 % of their area, filled with the mean that is subtracted later."""
    interpolation: Interpolation | None = None
    """Of the resize; None does as the Preprocessing does."""
    antialias: bool | None = None
    """Of the resize; None does as the Preprocessing does. Google's pipeline did not antialias."""
    reduced_decode: bool = False
    """Decode a JPEG at 1/2, 1/4 or 1/8 where that leaves enough pixels: faster for large photographs, other pixels."""

    def __post_init__(self):
        for name in ("area", "rand_augment", "colour_jitter"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_choice("crop", self.crop, ("inception", "resize_crop", "pad_crop", "none"))
        _check_choice("interpolation", self.interpolation, ("bilinear", "bicubic", None))
        if len(self.area) != 2 or not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(
                f"area is {self.area}; it is two shares of the image, 0 < smallest <= largest <= 1"
            )
        if not 0 <= self.resize <= MAX_SIDE or (self.crop == "resize_crop" and self.resize < 1):
            raise ValueError(
                f"resize is {self.resize}; a resize_crop needs a side from 1 to {MAX_SIDE} pixels"
            )
        if not 0 <= self.pad <= MAX_SIDE:
            raise ValueError(f"pad is {self.pad}; it is from 0 to {MAX_SIDE} pixels")
        _check_choice("rand_augment_by", self.rand_augment_by, tuple(MAGNITUDES))
        most = MAGNITUDES[self.rand_augment_by]
        if len(self.rand_augment) != 2 or not (
            0 <= self.rand_augment[0] <= 16 and 0 <= self.rand_augment[1] <= most
        ):
            raise ValueError(
                f"rand_augment is {self.rand_augment}; it is up to 16 layers and a magnitude from 0 to {most}"
            )
        if (
            len(self.colour_jitter) != 4
            or min(self.colour_jitter) < 0
            or self.colour_jitter[3] > 0.5
        ):
            raise ValueError(
                f"colour_jitter is {self.colour_jitter}; it is four numbers, for brightness, contrast, saturation and hue, "
                f"of which none is negative and the last at most 0.5"
            )
        if not 0 <= self.erase <= 1:
            raise ValueError(f"erase is {self.erase}; it is a share of the images, from 0 to 1")


def suit(how: Augmentation, preprocessing: Preprocessing) -> None:
    """Raises ValueError where the two cannot go together."""
    height, width = preprocessing.size
    if how.crop == "resize_crop" and how.resize < max(height, width):
        least = max(height, width)
        raise ValueError(
            f"resize is {how.resize}; a crop of {height} x {width} does not fit: make it {least} or more"
        )


def augment(
    picture: Picture, how: Augmentation, preprocessing: Preprocessing, random: np.random.Generator
) -> Tensor:
    """A picture as uint8 (3, h, w), augmented. Only what an Inception crop keeps is decoded. Raises BadImage.

    Every random choice comes from `random`, in this order: crop, flip, colour jitter, RandAugment,
    erasing. `how` must `suit` the preprocessing.
    """
    size = preprocessing.size
    kernel = how.interpolation or preprocessing.interpolation
    antialias = preprocessing.antialias if how.antialias is None else how.antialias
    if how.crop == "inception":
        box = inception_box(*picture.size, how.area, random)
        image = resize(picture.pixels(box, _reduction(box, size, how)), size, kernel, antialias)
    elif how.crop == "resize_crop":
        square = (how.resize, how.resize)
        whole = picture.pixels(None, _reduction((0, 0, *picture.size), square, how))
        image = _cut(resize(whole, square, kernel, antialias), random_box(*square, size, random))
    else:
        image = preprocessing(picture)
        if how.crop == "pad_crop":
            padded = F.pad(image, [how.pad] * 4)
            image = _cut(padded, random_box(*padded.shape[1:], size, random))
    if how.flip and random.random() < 0.5:
        image = image.flip(-1)
    for policy in policies(how, preprocessing.mean):
        image = _seeded(policy, image, random)
    return image


def as_pillow(pixels: np.ndarray, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """uint8 (height, width, 3) -> uint8 (3, *size), antialiased, to the bit what Pillow makes of it."""
    kernel = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[
        interpolation
    ]
    image = Image.fromarray(pixels).resize(size[::-1], kernel)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def resize(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Interpolation, antialias: bool = False
) -> Tensor:
    """uint8 (height, width, 3) -> uint8 (3, *size)."""
    if not pixels.flags.writeable:  # which torch would warn about
        pixels = pixels.copy()
    images = torch.from_numpy(pixels).permute(2, 0, 1)[
        None
    ]  # channels last in memory: interpolate's fast way
    if images.shape[2:] != size:
        images = F.interpolate(images, size, mode=interpolation, antialias=antialias)
    return images[0]


def _cut(image: Tensor, box: Box) -> Tensor:
    top, left, height, width = box
    return image[:, top : top + height, left : left + width]


def _reduction(box: Box, size: tuple[int, int], how: Augmentation) -> int:
    """The largest reduction that leaves a box at least as many pixels as it is then resized to."""
    fitting = (n for n in REDUCTIONS if box[2] // n >= size[0] and box[3] // n >= size[1])
    return next(fitting, 1) if how.reduced_decode else 1


def _seeded(policy, image: Tensor, random: np.random.Generator) -> Tensor:
    """A policy draws from PyTorch's global generator: it is seeded for this image, and left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(random.integers(2**63)))
        return policy(image.contiguous())


@cache
def policies(how: Augmentation, mean: tuple[float, float, float]) -> tuple:
    """The transforms that an image goes through once it has its size; torchvision is imported for those who use them only."""
    if not (any(how.colour_jitter) or how.rand_augment[0] or how.erase):
        return ()
    from torchvision.transforms import v2

    from vitkit.data.randaugment import RandAugment

    kind = {"torchvision": v2.RandAugment, "google": RandAugment}[how.rand_augment_by]
    found = [v2.ColorJitter(*how.colour_jitter)] if any(how.colour_jitter) else []
    found += [kind(*how.rand_augment)] if how.rand_augment[0] else []
    fill = [min(max(round(255 * value), 0), 255) for value in mean]
    found += [v2.RandomErasing(how.erase, value=fill)] if how.erase else []
    return tuple(found)


def _check_side(name: str, size: tuple[int, ...]) -> None:
    if len(size) != 2 or not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in size):
        raise ValueError(
            f"{name} is {size}; it is a height and a width from 1 to {MAX_SIDE} pixels"
        )


def _check_choice(name: str, value, known: tuple) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(str, known))}")
