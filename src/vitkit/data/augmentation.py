"""What a training image goes through instead of the Preprocessing's rule: drawn first, as a small value, then applied.

What is drawn depends on the image's size alone, so it is known before a pixel is decoded, can be looked at, and applies to
whatever else belongs to the image: `place` moves a mask as it moves the image.

Legend: h w pixels of what the model gets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.crops import inception_box, random_box
from vitkit.data.images import REDUCTIONS, Box, Picture
from vitkit.data.preprocessing import (
    MAX_SIDE,
    Interpolation,
    Preprocessing,
    Resampling,
    check_choice,
    resize,
)

MAGNITUDES = {"torchvision": 30, "google": 20}  # the largest of each RandAugment
ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")  # as torchvision numbers them


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
        check_choice("crop", self.crop, ("inception", "resize_crop", "pad_crop", "none"))
        check_choice("interpolation", self.interpolation, ("bilinear", "bicubic", None))
        check_choice("rand_augment_by", self.rand_augment_by, tuple(MAGNITUDES))
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
        if not 0 <= self.erase <= 1:
            raise ValueError(f"erase is {self.erase}; it is a share of the images, from 0 to 1")
        self._check_policies()

    def _check_policies(self) -> None:
        most = MAGNITUDES[self.rand_augment_by]
        pair = len(self.rand_augment) == 2
        if not pair or not (0 <= self.rand_augment[0] <= 16 and 0 <= self.rand_augment[1] <= most):
            raise ValueError(
                f"rand_augment is {self.rand_augment}; it is up to 16 layers and a magnitude from 0 to {most}"
            )
        jitter = self.colour_jitter
        if len(jitter) != 4 or min(jitter) < 0 or jitter[3] > 0.5:
            raise ValueError(
                f"colour_jitter is {jitter}; it is four numbers, for brightness, contrast, saturation and hue, of which none "
                f"is negative and the last at most 0.5"
            )

    @property
    def repaints(self) -> bool:
        """Whether it changes more than which pixels are where."""
        return any(self.colour_jitter) or self.rand_augment[0] > 0 or self.erase > 0


class Colours(NamedTuple):
    """A colour jitter as it was drawn."""

    order: tuple[int, ...]
    """Of ADJUSTMENTS."""
    amounts: tuple[float | None, ...]
    """Factors of the first three, part of the colour circle for the hue; None leaves one out."""


class Draw(NamedTuple):
    """What becomes of one image, as plain values. Boxes are (top, left, height, width) in pixels."""

    box: Box | None = None
    """What a crop keeps: of the upright image for "inception", of the resized square for "resize_crop", of the padded image
    for "pad_crop"; None for "none"."""
    flip: bool = False
    """Whether it is mirrored, left to right, after the crop."""
    colours: Colours | None = None
    operations: tuple = ()
    """Google's RandAugment, as randaugment.Operation."""
    seed: int | None = None
    """Of torchvision's RandAugment, which draws while it is applied."""
    erased: Box | None = None


def suit(how: Augmentation, preprocessing: Preprocessing) -> None:
    """Raises ValueError if the two cannot go together."""
    least = max(preprocessing.size)
    if how.crop == "resize_crop" and how.resize < least:
        height, width = preprocessing.size
        raise ValueError(
            f"resize is {how.resize}; a crop of {height} x {width} does not fit: make it {least} or more"
        )


def augment(
    picture: Picture, how: Augmentation, preprocessing: Preprocessing, random: np.random.Generator
) -> Tensor:
    """A picture as uint8 (3, h, w), augmented. Only what an Inception crop keeps is decoded. Raises BadImage.

    `how` must `suit` the preprocessing.
    """
    size = picture.size if how.crop == "inception" else (0, 0)
    return apply(draw(size, how, preprocessing, random), picture, how, preprocessing)


def draw(
    size: tuple[int, int],
    how: Augmentation,
    preprocessing: Preprocessing,
    random: np.random.Generator,
) -> Draw:
    """What happens to an image of so many pixels (height, width), which only an Inception crop looks at.

    Every random choice comes from `random`, in this order: crop, flip, and a seed for each of colour jitter, RandAugment
    and erasing, as far as they are on.
    """
    # Which pixels are where.
    box = None
    if how.crop == "inception":
        box = inception_box(*size, how.area, random)
    elif how.crop == "resize_crop":
        box = random_box(how.resize, how.resize, preprocessing.size, random)
    elif how.crop == "pad_crop":
        height, width = preprocessing.size
        box = random_box(height + 2 * how.pad, width + 2 * how.pad, (height, width), random)
    flip = how.flip and random.random() < 0.5
    if not how.repaints:
        return Draw(box, flip)

    # What colours they have.
    colours, operations, seed, erased = None, (), None, None
    if any(how.colour_jitter):
        colours = _draw_colours(how, _seed(random))
    if how.rand_augment[0] and how.rand_augment_by == "torchvision":
        seed = _seed(random)
    elif how.rand_augment[0]:
        operations = _draw_operations(how, preprocessing.size, _seed(random))
    if how.erase:
        erased = _draw_erased(how, preprocessing.size, _seed(random))
    return Draw(box, flip, colours, operations, seed, erased)


def _seed(random: np.random.Generator) -> int:
    return int(random.integers(2**63))


def _draw_colours(how: Augmentation, seed: int) -> Colours:
    with _seeded(seed):
        drawn = _colour_jitter(how.colour_jitter).make_params([])
    amounts = [drawn[f"{name}_factor"] for name in ADJUSTMENTS]
    return Colours(tuple(drawn["fn_idx"].tolist()), tuple(amounts))


def _draw_operations(how: Augmentation, size: tuple[int, int], seed: int) -> tuple:
    from vitkit.data.randaugment import draw_operations

    return draw_operations(*how.rand_augment, size, torch.Generator().manual_seed(seed))


def _draw_erased(how: Augmentation, size: tuple[int, int], seed: int) -> Box | None:
    with _seeded(seed):
        if torch.rand(1) >= how.erase:
            return None
        drawn = _random_erasing().make_params([torch.empty(3, *size, device="meta")])
    if drawn["v"] is None:  # no rectangle fitted
        return None
    return drawn["i"], drawn["j"], drawn["h"], drawn["w"]


def apply(drawn: Draw, picture: Picture, how: Augmentation, preprocessing: Preprocessing) -> Tensor:
    """A picture as uint8 (3, h, w), as it was drawn. Raises BadImage."""
    image = place(drawn, picture, how, preprocessing)
    return repaint(drawn, image, how, preprocessing) if how.repaints else image


def place(
    drawn: Draw,
    picture: Picture,
    how: Augmentation,
    preprocessing: Preprocessing,
    interpolation: Resampling | None = None,
) -> Tensor:
    """Crop, resize and flip: a picture as uint8 (3, h, w). Raises BadImage.

    interpolation: instead of the image's, for what belongs to it: "nearest" for a mask of the image's size.
    """
    size = preprocessing.size
    kernel = interpolation or how.interpolation or preprocessing.interpolation
    antialias = preprocessing.antialias if how.antialias is None else how.antialias
    if how.crop == "inception":
        part = picture.pixels(drawn.box, _reduction(drawn.box, size, how))
        image = resize(part, size, kernel, antialias)
    elif how.crop == "resize_crop":
        square = (how.resize, how.resize)
        whole = picture.pixels(None, _reduction((0, 0, *picture.size), square, how))
        image = _cut(resize(whole, square, kernel, antialias), drawn.box)
    else:
        image = preprocessing(picture, interpolation)
        if how.crop == "pad_crop":
            image = _cut(F.pad(image, [how.pad] * 4), drawn.box)
    return image.flip(-1) if drawn.flip else image


def repaint(drawn: Draw, image: Tensor, how: Augmentation, preprocessing: Preprocessing) -> Tensor:
    """Colours, RandAugment and erasing: uint8 (3, h, w) -> uint8 (3, h, w)."""
    if drawn.colours is not None:
        image = _recolour(image.contiguous(), drawn.colours)
    if drawn.seed is not None:
        with _seeded(drawn.seed):
            image = _rand_augment(*how.rand_augment)(image.contiguous())
    for operation in drawn.operations:
        image = operation(image.contiguous())
    if drawn.erased is not None:
        top, left, height, width = drawn.erased
        levels = [min(max(round(255 * value), 0), 255) for value in preprocessing.mean]
        image = image.clone()
        fill = torch.tensor(levels, dtype=torch.uint8)[:, None, None]
        image[:, top : top + height, left : left + width] = fill
    return image


def _recolour(image: Tensor, colours: Colours) -> Tensor:
    from torchvision.transforms.v2 import functional

    for i in colours.order:
        if colours.amounts[i] is not None:
            adjust = getattr(functional, f"adjust_{ADJUSTMENTS[i]}")
            image = adjust(image, colours.amounts[i])
    return image


def _cut(image: Tensor, box: Box) -> Tensor:
    top, left, height, width = box
    return image[:, top : top + height, left : left + width]


def _reduction(box: Box, size: tuple[int, int], how: Augmentation) -> int:
    """The largest reduction that leaves a box at least as many pixels as it is then resized to."""
    if not how.reduced_decode:
        return 1
    fitting = (n for n in REDUCTIONS if box[2] // n >= size[0] and box[3] // n >= size[1])
    return next(fitting, 1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator, which torchvision draws from, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


# torchvision's transforms; imported, and made, by those who use them only


def warm_up(how: Augmentation) -> None:
    """Import what an augmentation needs: once here, rather than in every worker."""
    if how.repaints:
        import vitkit.data.randaugment  # noqa: F401


@cache
def _colour_jitter(strengths: tuple[float, float, float, float]):
    from torchvision.transforms import v2

    return v2.ColorJitter(*strengths)


@cache
def _rand_augment(layers: int, magnitude: int):
    from torchvision.transforms import v2

    return v2.RandAugment(layers, magnitude)


@cache
def _random_erasing():
    from torchvision.transforms import v2

    return v2.RandomErasing(1.0, value=[0, 0, 0])
