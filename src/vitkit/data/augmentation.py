"""What a training image goes through instead of the Preprocessing's rule: drawn first, as a small value, then applied.

What is drawn depends on the image's size alone, so it is known before a pixel is decoded, can be looked at, and applies to
whatever else belongs to the image: `place` moves a mask as it moves the image.

Legend: h w pixels of what the model gets.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


class Draw(NamedTuple):
    """What becomes of one image, as plain values. Boxes are (top, left, height, width) in pixels."""

    box: Box | None = None
    """What a crop keeps: of the upright image for "inception", of the resized square for "resize_crop", of the padded image
    for "pad_crop"; None for "none"."""
    flip: bool = False
    """Whether it is mirrored, left to right, after the crop."""
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()
    """Of the colours, in this order: policies.Colours, then randaugment.Operation (Google's) or policies.Policy."""
    erased: Box | None = None
    """The rectangle that is filled at the end."""


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
    from vitkit.data.policies import Policy, draw_colours, draw_erased
    from vitkit.data.randaugment import draw_operations

    changes, erased = [], None
    if any(how.colour_jitter):
        changes.append(draw_colours(how.colour_jitter, _seed(random)))
    if how.rand_augment[0] and how.rand_augment_by == "torchvision":
        changes.append(Policy(*how.rand_augment, _seed(random)))
    elif how.rand_augment[0]:
        generator = torch.Generator().manual_seed(_seed(random))
        changes += draw_operations(*how.rand_augment, preprocessing.size, generator)
    if how.erase:
        erased = draw_erased(how.erase, preprocessing.size, _seed(random))
    return Draw(box, flip, tuple(changes), erased)


def _seed(random: np.random.Generator) -> int:
    return int(random.integers(2**63))


def apply(drawn: Draw, picture: Picture, how: Augmentation, preprocessing: Preprocessing) -> Tensor:
    """A picture as uint8 (3, h, w), as it was drawn. Raises BadImage."""
    image = place(drawn, picture, how, preprocessing)
    return repaint(drawn, image, preprocessing)


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


def repaint(drawn: Draw, image: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Colours, RandAugment and erasing: uint8 (3, h, w) -> uint8 (3, h, w)."""
    for change in drawn.changes:
        image = change(image.contiguous())
    if drawn.erased is not None:
        top, left, height, width = drawn.erased
        levels = [min(max(round(255 * value), 0), 255) for value in preprocessing.mean]
        image = image.clone()
        fill = torch.tensor(levels, dtype=torch.uint8)[:, None, None]
        image[:, top : top + height, left : left + width] = fill
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


def warm_up(how: Augmentation) -> None:
    """Import what an augmentation needs: once here, rather than in every worker."""
    if how.repaints:
        import vitkit.data.policies
        import vitkit.data.randaugment  # noqa: F401
