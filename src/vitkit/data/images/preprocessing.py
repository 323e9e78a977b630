"""Preprocessing of every image before the model in evaluation; in training, an Augmentation replaces its
rule.

Images are uint8 until they are normalised on the model's device. For models of more bits they are
float32, with levels from 0 to 1.

Legend: B batch, C channels, h w pixels of the prepared image.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vitkit.data.images.native import (
    LONGEST,
    MOST_ALONG,
    computed_by_size,
    grid_of,
    image_of,
    naflex_grid_of,
    put,
    row_length,
    together,
)
from vitkit.data.images.pixels import Box, as_bytes, as_floats, grey
from vitkit.data.images.resizing import Resampling, resize, resize_as_pillow
from vitkit.system.console.text import counted
from vitkit.system.environment import MAX_PIXELS
from vitkit.system.errors import BadImage, BadSettings
from vitkit.system.values import check_settings

LARGEST = 1e6  # bound of a mean or a standard deviation of levels

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.data.images.pictures import Picture

# Type of prepared images before they are normalised
Values = Literal["uint8", "float32"]
Interpolation = Literal["bilinear", "bicubic"]
Rule = Literal["square", "shorter", "native", "naflex"]
MAX_SIDE = 8192


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for a model. A Preprocessing is saved with the model and never guessed.

    The defaults are those of the published ViT (mean and standard deviation 0.5: pixels from -1 to 1),
    with antialiasing, as Hugging Face and timm resize; Google's own evaluation resized without it.
    """

    size: tuple[int, int] = (224, 224)
    """Height and width of the prepared image, in pixels."""
    rule: Rule = "square"
    """How the image gets this size: "square", both sides are resized; "shorter", the shorter
    side is resized with the aspect ratio kept, and the centre is cropped. Or "native": the whole
    image with its aspect ratio, on a grid with about as many patches as `size`; "naflex": the same
    on the grid that SigLIP 2's NaFlex chooses."""
    resize: int = 0
    """Side to resize to before a centre crop, of the square or the shorter one; 256 and 224 are the
    usual pair. 0 is the size itself: a square then needs no crop."""
    interpolation: Interpolation = "bilinear"
    """How an image is resized."""
    antialias: bool = True
    """Whether a resize to fewer pixels averages over all of the old ones."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Subtracted from red, green and blue on the scale from 0 to 1; from each channel of a model of
    other images, which has as many as there are means."""
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Standard deviation, by which the difference is divided."""
    values: Values = "uint8"
    """The dtype of images before normalisation: uint8, levels of 8 bits; or float32, which keeps
    16 bits and more: from 0 to 1, floats unchanged."""
    patch: tuple[int, int] = (16, 16)
    """Height and width of the model's patches in pixels, for images with their aspect ratios; otherwise
    unused."""

    def __post_init__(self):
        for name in ("size", "mean", "std", "patch"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        check_settings(self)
        largest = MAX_SIDE
        if self.is_native:  # only the product of the sides is limited, the number of patches
            largest = MAX_SIDE**2
        known = [isinstance(side, int) and 1 <= side <= largest for side in self.size]
        if known != [True, True] or prod(self.size) > MAX_SIDE**2:
            raise BadSettings(
                f"size is {self.size}; it is a height and a width from 1 to {MAX_SIDE} pixels"
            )
        check_choice("rule", self.rule, get_args(Rule))
        self._check_native()
        check_choice("interpolation", self.interpolation, ("bilinear", "bicubic"))
        check_choice("antialias", self.antialias, (True, False))
        if self.resize and not max(self.size) <= self.resize <= MAX_SIDE:
            raise BadSettings(
                f"resize is {self.resize}; it must be from {max(self.size)}, for the crop of "
                f"{self.size[0]} x {self.size[1]} to fit, to {MAX_SIDE}, or 0"
            )
        check_choice("values", self.values, get_args(Values))
        _check_numbers("mean", self.mean)
        _check_numbers("std", self.std)
        if min(self.std) <= 0:
            raise BadSettings(f"std is {self.std}; its numbers are all positive")
        if len(self.mean) != len(self.std):
            raise BadSettings(
                f"there are {len(self.mean)} means and {len(self.std)} standard deviations; give one "
                "of each for every channel"
            )

    def _check_native(self) -> None:
        """Raise VitkitError for patches that are malformed, or that do not cover `size` with a native rule."""
        patch = [isinstance(side, int) and 1 <= side <= MAX_SIDE for side in self.patch]
        if patch != [True, True]:
            raise BadSettings(
                f"patch is {self.patch}; it is the height and width of a patch in pixels"
            )
        if not self.is_native:
            return
        if self.resize:
            raise BadSettings(
                f'resize is {self.resize}, but nothing is cut off if rule is "{self.rule}"; leave it out'
            )
        if self.size[0] % self.patch[0] or self.size[1] % self.patch[1]:
            raise BadSettings(
                f"size is {self.size}, but patches of {self.patch[0]} x {self.patch[1]} do not cover "
                f'it, as rule "{self.rule}" requires'
            )
        most = LONGEST**2
        if self.rule == "naflex":  # a panorama may have all patches in one row
            most = MOST_ALONG
        if self.patches > most:
            raise BadSettings(
                f"size is {self.size}, which has {self.patches:,} patches; images at their own proportions "
                f"have at most {most:,}"
            )

    @property
    def channels(self) -> int:
        """C, how many channels the model's images have."""
        return len(self.mean)

    @property
    def is_native(self) -> bool:
        """Whether images keep their own proportions, so that a batch may have several sizes."""
        return self.rule in ("native", "naflex")

    @property
    def patches(self) -> int:
        """The number of patches in `size`; for images in their own aspect ratios, the maximum."""
        return (self.size[0] // self.patch[0]) * (self.size[1] // self.patch[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a prepared image: (C, h, w). An image in its own aspect ratio has another shape, with at
        most as many patches."""
        return (self.channels, *self.size)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row in a batch of unknown images: (C, h, w), or (M,) for images of several sizes
        (native.py)."""
        if self.is_native:
            return (row_length(self.channels, self.patches, self.patch),)
        return self.shape

    def put(self, image: "Tensor", row: "Tensor") -> None:
        """Write a prepared image (C, h, w) into a row of a batch, of shape `row_shape`."""
        if self.is_native:
            put(image, row, self.patch)
        else:
            row.copy_(image)

    def together(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Combine prepared images (C, h, w) to a batch: (B, C, h, w) if they have one size, otherwise (B, M)."""
        if not self.is_native or not images:
            return np.array(images, dtype=self.dtype)
        return together(images, self.row_shape[0], self.patch)

    def image_of(self, images: np.ndarray, number: int) -> np.ndarray:
        """An image of a batch of `together`, (C, h, w)."""
        return image_of(images, number, self.channels, self.patch)

    def computed(self, compute: Callable[[Any], Sequence[Any]], images: Any) -> list[Any]:
        """Apply `compute` to a batch of images of any sizes, an array or a tensor.

        compute: images of one size (b, C, h, w) -> several results (b, ...).

        Returns the same number of results (B, ...).
        """
        if not self.is_native:
            return list(compute(images))
        return computed_by_size(compute, images, self.channels, self.patch)

    @property
    def dtype(self) -> np.dtype:
        """The type of prepared images."""
        return np.dtype(self.values)

    def decode(self, picture: "Picture", box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """A picture, or a box of it, before it is resized: (height, width, C), uint8, or float32 from 0 to 1.
        Raises BadImage. `reduce` applies to photographs in JPEG only, see `Picture.pixels`."""
        # Photographs, the case of nearly all models
        if self.values == "uint8" and self.channels == 3:
            return picture.pixels(box, reduce)
        if self.values == "uint8" and self.channels == 1:
            return grey(picture.pixels(box, reduce))

        stored = picture.stored(self.channels, box)
        stored = _with_channels(stored, self.channels, picture.name)
        if self.values == "float32":
            return as_floats(stored)
        return as_bytes(stored, picture.name)

    def __call__(self, image: Any, interpolation: Resampling | None = None) -> "Tensor":
        """An image as (C, h, w), uint8 or float32: a transform, as torchvision's data sets take it.

        The image is a Pillow image, an array (h, w, 3) or (h, w), a tensor (3, h, w), a path, the bytes
        of a file, or a Picture. Raises BadImage for one that cannot be decoded, and VitkitError for
        several.

        interpolation: replaces that of the settings, for something that belongs to an image, such as a mask.
        """
        import torch

        from vitkit.data.images.pictures import Picture
        from vitkit.data.sources.in_memory import as_pictures

        if not isinstance(image, Picture):
            pictures = list(as_pictures(image))
            if len(pictures) != 1:
                raise BadSettings(
                    f"there are {len(pictures)} images, and a transform takes one; call it for each"
                )
            image = pictures[0]
        return torch.from_numpy(self.array(image, interpolation))

    def array(self, picture: "Picture", interpolation: Resampling | None = None) -> np.ndarray:
        """The prepared image as an array (C, h, w), without PyTorch unless it resizes without
        antialiasing. Raises BadImage."""
        resized_height, resized_width = self._resized_size(picture)
        resized = (resized_height, resized_width)
        kernel = interpolation or self.interpolation
        if self.antialias:
            image = resize_as_pillow(self.decode(picture), resized, kernel)
        else:
            image = resize(self.decode(picture), resized, kernel).numpy()
        if self.is_native:
            return image

        height, width = self.size
        top, left = self._crop_corner(resized_height, resized_width)
        return image[:, top : top + height, left : left + width]

    def visible(self, picture: "Picture") -> tuple[float, float, float, float]:
        """The box of the upright picture that the model sees: (top, left, height, width) in the
        picture's own pixels, fractions of them included. Raises BadImage."""
        if self.is_native:
            height, width = picture.size
            return 0.0, 0.0, float(height), float(width)
        resized_height, resized_width = self._resized_size(picture)
        # Height of a resized pixel in pixels of the picture
        down = picture.size[0] / resized_height
        across = picture.size[1] / resized_width
        top, left = self._crop_corner(resized_height, resized_width)
        return top * down, left * across, self.size[0] * down, self.size[1] * across

    def _crop_corner(self, resized_height: int, resized_width: int) -> tuple[int, int]:
        """Top and left of the centre crop in the resized picture."""
        return round((resized_height - self.size[0]) / 2), round((resized_width - self.size[1]) / 2)

    def _resized_size(self, picture: "Picture") -> tuple[int, int]:
        """(height, width) of a picture after the resize, before the centre crop. Raises BadImage if it would
        be too large."""
        if self.is_native:
            choose = grid_of
            if self.rule == "naflex":
                choose = naflex_grid_of
            rows, columns = choose(picture.size, self.patches, self.patch)
            return rows * self.patch[0], columns * self.patch[1]
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
        """Prepared images (B, C, h, w), or one (C, h, w), on any device -> float32, levels from 0 to 1
        normalised: (x - mean) / std. Raises VitkitError for other images."""
        import torch

        expected = getattr(torch, self.values)
        has_channels = images.ndim in (3, 4) and images.shape[-3] == self.channels
        if images.dtype != expected or not has_channels:
            raise BadSettings(
                f"got {images.dtype} of shape {tuple(images.shape)}; expected {self.values} "
                f"(B, {self.channels}, h, w)"
            )
        if self.values == "uint8":
            return self.normalise_(images / 255)
        return self.normalise_(images.clone())

    def normalise_(self, images: "Tensor") -> "Tensor":
        """Normalise float (B, C, h, w) or (C, h, w) from 0 to 1 in place: (x - mean) / std."""
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            # Numbers instead of tensors, because a copy to the device would wait for it
            images[..., channel, :, :].sub_(mean).div_(std)
        return images

    def unnormalise(self, images: "Tensor") -> "Tensor":
        """Invert `normalise`: (B, C, h, w) -> float32 (B, C, h, w)."""
        out = images.float().clone()
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            out[:, channel].mul_(std).add_(mean)
        return out

    def levels(self, images: "Tensor") -> "Tensor":
        """Invert `normalise` and round to levels: (B, C, h, w) -> uint8 (B, C, h, w)."""
        return self.unnormalise(images).mul_(255).round_().clamp_(0, 255).byte()

    def __str__(self) -> str:
        """A summary: "shorter side to 256, centre of 224 x 224, bilinear, mean 0.5, std 0.5"."""
        size = f"{self.size[0]} x {self.size[1]}"
        if self.is_native:
            height, width = self.patch
            size = f"whole, at most {self.patches:,} patches of {height} x {width}"
            if self.rule == "naflex":
                size += " as NaFlex has them"
        if self.resize:
            side = "both sides" if self.rule == "square" else "shorter side"
            size = f"{side} to {self.resize}, centre of {size}"
        kernel = str(self.interpolation)
        if not self.antialias:
            kernel += " without antialiasing"
        text = f"{size}, {kernel}, mean {_as_text(self.mean)}, std {_as_text(self.std)}"
        if self.channels != 3:
            text += f", {counted(self.channels, 'channel')}"
        if self.values != "uint8":
            text += f" in {self.values}"
        return text

    def to_json(self) -> dict:
        """Plain values for JSON; `from_json` reads them."""
        plain = asdict(self)
        for name in ("size", "mean", "std", "patch"):
            plain[name] = list(plain[name])
        # Absent as in models that were saved before the field existed
        if not self.is_native:
            del plain["patch"]
        return plain

    @classmethod
    def from_json(cls, values: dict) -> "Preprocessing":
        """Read the values of `to_json`. A missing setting has its default, because older files may lack it,
        except size, mean and std. Raises VitkitError for anything that `to_json` does not write."""
        names = [field.name for field in fields(cls)]
        known = isinstance(values, dict) and values.keys() <= set(names)
        if not known or not {"size", "mean", "std"} <= values.keys():
            content = repr(values)
            if isinstance(values, dict):
                content = ", ".join(map(str, values))
            raise BadSettings(
                f"a preprocessing has the settings {', '.join(names)}; got {content[:200]}"
            )
        try:
            return cls(**values)
        except TypeError as error:  # such as a number instead of a list
            raise BadSettings(f"the preprocessing {values} is malformed: {error}") from None


def _with_channels(stored: np.ndarray, channels: int, name: str) -> np.ndarray:
    """Convert the channels of a file, (h, w, c), to those of a model, (h, w, C), of the same type.

    The same number of channels is unchanged. Grey is repeated for red, green and blue; colours become
    grey by their luma; and a model of 4 channels gets an opaque alpha channel. Raises BadImage for
    other numbers, because it is unknown which channel is which colour.
    """
    own = stored.shape[2]
    if own == channels:
        return stored
    if own == 3 and channels == 1:
        return grey(stored)
    if own == 1 and channels in (3, 4):
        stored = np.repeat(stored, 3, axis=2)
        own = 3
    if own == 3 and channels == 4:
        opaque = 1 if stored.dtype == np.float32 else 255
        alpha = np.full_like(stored[..., :1], opaque)
        stored = np.concatenate([stored, alpha], axis=2)
    if stored.shape[2] == channels:
        return stored
    raise BadImage(
        f"{name} has {own} channels, but the model's images have {channels}; a model of such images "
        f"has `model.channels={own}`"
    )


def _as_text(values: tuple[float, ...]) -> str:
    """The numbers as text: one number if all are equal, the first and the last of more than four."""
    numbers = [f"{value:.4g}" for value in values]
    if len(set(numbers)) == 1:
        return numbers[0]
    if len(numbers) > 4:
        return f"{numbers[0]} ... {numbers[-1]}"
    return ", ".join(numbers)


def _check_numbers(name: str, values: tuple) -> None:
    """Raise VitkitError unless there are values, and all are finite numbers below LARGEST."""
    numbers = [
        value
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    ]
    if not values or len(numbers) != len(values):
        shown = repr(values)[:100]
        raise BadSettings(f"{name} is {shown}; it is a number for each channel: three, for r, g, b")


def _as_tuple(name: str, value: object) -> tuple:
    """The value of a setting that has several numbers, as a tuple. Raises VitkitError for a single
    number."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    example = f"({value}, {value})" if name in ("size", "patch") else f"({value}, {value}, {value})"
    what = "a height and a width" if name in ("size", "patch") else "a number for each channel"
    raise BadSettings(f"{name} is {value!r}; it is {what}, such as {example}")


def check_choice(name: str, value: object, known: tuple) -> None:
    """Raise VitkitError unless a setting has one of its known values."""
    if value not in known:
        raise BadSettings(f"{name} is {value!r}; it is one of {', '.join(map(str, known))}")
