"""What every image goes through before a model sees it, in evaluation; in training, an Augmentation
takes the place of its rule.

Images are uint8 until they are normalised, on the model's device. In evaluation Pillow resizes, as
in the pipelines that published accuracies come from; in training PyTorch does, which is faster:
fewer than two values in a hundred differ, by one level, and that is enough to turn a prediction in
five hundred.

Legend: B batch, h w pixels of what the model gets.
"""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from vitkit.data.images import BadImage, Picture
from vitkit.system.limits import MAX_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

Interpolation = Literal["bilinear", "bicubic"]
# Of anything that belongs to an image: nearest is for masks, whose values are no levels.
Resampling = Literal["bilinear", "bicubic", "nearest"]
MAX_SIDE = 8192


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes what the model was made for.

    It is saved with the model and never guessed.

    The defaults are the published ViT's (mean and standard deviation 0.5: pixels from -1 to 1),
    with antialiasing, as Hugging Face and timm resize; Google's own evaluation resized without it.
    """

    size: tuple[int, int] = (224, 224)
    """Height and width that the model gets, in pixels."""
    rule: Literal["square", "shorter"] = "square"
    """How it gets there: both sides to their size at once, or the shorter one, the shape kept, and
    the centre of that."""
    resize: int = 0
    """Side to resize to before a centre crop, of the square or the shorter one; 256 and 224 are the
    usual pair. 0 is the size itself: a square then needs no crop."""
    interpolation: Interpolation = "bilinear"
    """How an image is resized."""
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
        check_choice("rule", self.rule, ("square", "shorter"))
        check_choice("interpolation", self.interpolation, ("bilinear", "bicubic"))
        check_choice("antialias", self.antialias, (True, False))
        if self.resize and not max(self.size) <= self.resize <= MAX_SIDE:
            raise ValueError(
                f"resize is {self.resize}; it must be from {max(self.size)}, for the crop of "
                f"{self.size[0]} x {self.size[1]} to fit, to {MAX_SIDE}, or 0"
            )
        _check_colour("mean", self.mean)
        _check_colour("std", self.std)
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it is three numbers, all positive, for r, g, b")

    def __call__(self, picture: Picture, interpolation: Resampling | None = None) -> "Tensor":
        """A picture as uint8 (3, h, w). Raises BadImage.

        interpolation: instead of its own, for what belongs to the picture, as a mask does.
        """
        import torch

        return torch.from_numpy(self.array(picture, interpolation))

    def array(self, picture: Picture, interpolation: Resampling | None = None) -> np.ndarray:
        """The same as an array, uint8 (3, h, w), without PyTorch unless it resizes without
        antialiasing. Raises BadImage."""
        resized_height, resized_width = self._resized_size(picture)
        resized = (resized_height, resized_width)
        kernel = interpolation or self.interpolation
        if self.antialias:
            image = resize_as_pillow(picture.pixels(), resized, kernel)
        else:
            image = resize(picture.pixels(), resized, kernel).numpy()

        height, width = self.size
        top, left = self._crop_corner(resized_height, resized_width)
        return image[:, top : top + height, left : left + width]

    def visible(self, picture: Picture) -> tuple[float, float, float, float]:
        """The box of the upright picture that the model gets: (top, left, height, width) in the
        picture's own pixels, fractions of them included. Raises BadImage."""
        resized_height, resized_width = self._resized_size(picture)
        down = picture.size[0] / resized_height  # pixels of the picture for one of the resized
        across = picture.size[1] / resized_width
        top, left = self._crop_corner(resized_height, resized_width)
        return top * down, left * across, self.size[0] * down, self.size[1] * across

    def _crop_corner(self, resized_height: int, resized_width: int) -> tuple[int, int]:
        """Top and left of the centre crop in the resized picture."""
        return round((resized_height - self.size[0]) / 2), round((resized_width - self.size[1]) / 2)

    def _resized_size(self, picture: Picture) -> tuple[int, int]:
        """(height, width) of a picture before the centre crop.

        Raises BadImage for one that would be too large.
        """
        if self.rule == "square":
            if self.resize:
                return self.resize, self.resize
            return self.size
        height, width = picture.size
        shorter = min(height, width)
        side = self.resize or max(self.size)
        resized_height = int(side * height / shorter)
        resized_width = int(side * width / shorter)
        if resized_height * resized_width > MAX_PIXELS:
            raise BadImage(
                f"{picture.name} is {width} x {height} pixels: too narrow for a side of {side}"
            )
        return resized_height, resized_width

    def normalise(self, images: "Tensor") -> "Tensor":
        """uint8 (B, 3, h, w) on any device -> float32: (x / 255 - mean) / std."""
        import torch

        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"got {images.dtype} of shape {tuple(images.shape)}; expected uint8 (B, 3, h, w)"
            )
        return self.normalise_(images / 255)

    def normalise_(self, images: "Tensor") -> "Tensor":
        """Float (B, 3, h, w) from 0 to 1, changed to (x - mean) / std."""
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            # numbers, not tensors: no copy to the device that would wait for it
            images[:, channel].sub_(mean).div_(std)
        return images

    def unnormalise(self, images: "Tensor") -> "Tensor":
        """`normalise` undone: (B, 3, h, w) -> float32 (B, 3, h, w), from 0 to 1 where they were."""
        out = images.float().clone()
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            out[:, channel].mul_(std).add_(mean)
        return out

    def levels(self, images: "Tensor") -> "Tensor":
        """(B, 3, h, w) as `normalise` makes them -> uint8 (B, 3, h, w), the nearest levels."""
        return self.unnormalise(images).mul_(255).round_().clamp_(0, 255).byte()

    def __str__(self) -> str:
        """All of it, for people: "shorter side to 256, centre of 224 x 224, bilinear, mean 0.5, std
        0.5"."""
        size = f"{self.size[0]} x {self.size[1]}"
        if self.resize:
            side = "both sides" if self.rule == "square" else "shorter side"
            size = f"{side} to {self.resize}, centre of {size}"
        kernel = str(self.interpolation)
        if not self.antialias:
            kernel += " without antialiasing"
        return f"{size}, {kernel}, mean {_in_words(self.mean)}, std {_in_words(self.std)}"

    def to_json(self) -> dict:
        """Plain values; from_json is the way back."""
        plain = {}
        for name, value in asdict(self).items():
            plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_json(cls, values: dict) -> "Preprocessing":
        """A setting that is absent has its default, for earlier code may not have had it; but not
        the size, mean and deviation. Raises ValueError for what no to_json has written."""
        names = [field.name for field in fields(cls)]
        known = isinstance(values, dict) and values.keys() <= set(names)
        if not known or not {"size", "mean", "std"} <= values.keys():
            content = repr(values)
            if isinstance(values, dict):
                content = ", ".join(map(str, values))
            raise ValueError(
                f"a preprocessing has the settings {', '.join(names)}; got {content[:200]}"
            )
        try:
            return cls(**values)
        except TypeError as error:  # a number instead of a list, and the like
            raise ValueError(f"the preprocessing {values} is malformed: {error}") from None


def resize_as_pillow(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Resampling
) -> np.ndarray:
    """uint8 (height, width, 3) -> uint8 (3, *size), antialiased, to the bit what Pillow makes of
    it."""
    kernel = Image.Resampling[interpolation.upper()]
    image = Image.fromarray(pixels).resize(size[::-1], kernel)
    return np.array(image).transpose(2, 0, 1)


def resize(
    pixels: np.ndarray, size: tuple[int, int], interpolation: Resampling, antialias: bool = False
) -> "Tensor":
    """uint8 (height, width, 3) -> uint8 (3, *size), as PyTorch resizes."""
    import torch
    import torch.nn.functional as F

    if not pixels.flags.writeable:  # which torch would warn about
        pixels = pixels.copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    images = image[None]  # (1, 3, height, width), channels last in memory: the fast way
    if images.shape[2:] == size:
        return image
    if interpolation == "nearest":
        return F.interpolate(images, size, mode="nearest-exact")[0]
    return F.interpolate(images, size, mode=interpolation, antialias=antialias)[0]


def _in_words(values: tuple[float, ...]) -> str:
    """Three numbers, or one if they are the same."""
    return ", ".join(f"{value:.4g}" for value in dict.fromkeys(values))


def _check_side(name: str, size: tuple[int, ...]) -> None:
    if len(size) != 2 or not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in size):
        raise ValueError(
            f"{name} is {size}; it is a height and a width from 1 to {MAX_SIDE} pixels"
        )


def _check_colour(name: str, values: tuple) -> None:
    numbers = [value for value in values if isinstance(value, int | float) and isfinite(value)]
    if len(values) != 3 or len(numbers) != 3:
        raise ValueError(f"{name} is {values}; it is three numbers, for r, g, b")


def check_choice(name: str, value, known: tuple) -> None:
    """Raises ValueError unless a setting has one of its known values."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(str, known))}")
