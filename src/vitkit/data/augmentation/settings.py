"""Settings of the augmentation of training images; draws.py applies them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vitkit.data.images.preprocessing import MAX_SIDE, Interpolation, Preprocessing, check_choice
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.values import check_settings

CROPS = ("inception", "resize_crop", "pad_crop", "scale_crop", "none")
LARGEST_SCALE = 16.0
MAGNITUDES = {"torchvision": 30, "google": 20}  # largest magnitude of each RandAugment
MAX_LAYERS = 16  # of RandAugment


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image instead of the Preprocessing's rule; its size and statistics
    remain.

    The default is the paper's pre-training: an Inception crop and a flip (Section 4.1, App. B.1).
    """

    crop: Literal["inception", "resize_crop", "pad_crop", "scale_crop", "none"] = "inception"
    """inception: a random part of the image, resized. resize_crop: a resize to a square, and a
    random crop of it (BiT's, for fine-tuning). pad_crop: what the Preprocessing does, shifted at
    random by up to `pad` pixels (CIFAR's). scale_crop: a resize by a random factor that keeps the
    proportions, and a random crop of it, filled up at the right and the bottom (usual for masks).
    none: what the Preprocessing does."""
    area: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest part of the image that an Inception crop may take."""
    resize: int = 0
    """Side of the square before a resize_crop; BiT uses 448 for 384, and 160 for 128. Of a
    scale_crop: side of a square with as many pixels as an image has at a factor of 1."""
    scales: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest factor of a scale_crop, by which height and width are multiplied."""
    size: tuple[int, int] | None = None
    """Height and width of training images, for a model that reads images with their own
    proportions; None is the model's own. Other models have one size, in training too."""
    pad: int = 4
    """Black pixels added on every side before a pad_crop."""
    flip: bool = True
    """Mirror every other image, left to right."""
    rand_augment: tuple[int, int] = (0, 0)
    """Number of RandAugment's layers, and their magnitude; 0 layers switches it off."""
    rand_augment_by: Literal["torchvision", "google"] = "torchvision"
    """Implementation of RandAugment: torchvision's, with magnitudes from 0 to 30, where 15 rotates
    by 15 degrees; or that of Google's models (AugReg), with magnitudes from 0 to 20, where 15
    rotates by 45 degrees."""
    colour_jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Largest change of brightness, contrast, saturation (a factor from 1 - it to 1 + it) and hue
    (a turn, up to 0.5)."""
    erase: float = 0.0
    """Share of the images in which a rectangle of 2 to 33 % of the area is erased: filled with the
    mean that is subtracted later."""
    interpolation: Interpolation | None = None
    """Interpolation of an "inception" crop or a "resize_crop"; None uses that of the Preprocessing,
    which a "pad_crop" and "none" always use."""
    antialias: bool | None = None
    """Whether these two crops antialias when they make an image smaller; None does what the
    Preprocessing does. Google's pipeline did not antialias."""
    auto: bool = False
    """Whether a run first tests which of these changes preserve the classes, and switches the others off
    (docs/finetuning.md): with the published weights that it begins with, or, from scratch, by the pixels of
    small pictures, which tell whether images may be mirrored and cropped."""
    reduced_decode: bool = False
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size if that leaves enough pixels: faster for large
    photographs, with slightly different pixels."""

    def __post_init__(self):
        for name in ("area", "rand_augment", "colour_jitter", "scales"):
            value = getattr(self, name)
            numbers = tuple(value) if isinstance(value, Iterable) else (value,)
            object.__setattr__(self, name, numbers)
        check_settings(self)
        check_choice("crop", self.crop, CROPS)
        check_choice("interpolation", self.interpolation, ("bilinear", "bicubic", None))
        check_choice("rand_augment_by", self.rand_augment_by, tuple(MAGNITUDES))
        if len(self.area) != 2 or not 0 < self.area[0] <= self.area[1] <= 1:
            raise BadSettings(
                f"area is {self.area}; it is two shares of the image, 0 < smallest <= largest <= 1"
            )
        least_side = 1 if self.crop in ("resize_crop", "scale_crop") else 0
        if not least_side <= self.resize <= MAX_SIDE:
            raise BadSettings(
                f"resize is {self.resize}; a {self.crop} needs a side from 1 to {MAX_SIDE} pixels"
            )
        scales_fit = len(self.scales) == 2 and 0 < self.scales[0] <= self.scales[1] <= LARGEST_SCALE
        if not scales_fit:
            raise BadSettings(
                f"scales is {self.scales}; it is two factors, 0 < smallest <= largest <= {LARGEST_SCALE:g}"
            )
        if self.size is not None:
            object.__setattr__(self, "size", tuple(self.size))
            if not all(1 <= side <= MAX_SIDE for side in self.size):
                raise BadSettings(
                    f"size is {self.size}; it is a height and a width from 1 to {MAX_SIDE} pixels"
                )
        if not 0 <= self.pad <= MAX_SIDE:
            raise BadSettings(f"pad is {self.pad}; it is from 0 to {MAX_SIDE} pixels")
        if not 0 <= self.erase <= 1:
            raise BadSettings(f"erase is {self.erase}; it is a share of the images, from 0 to 1")
        largest = MAGNITUDES[self.rand_augment_by]
        if (
            len(self.rand_augment) != 2
            or not 0 <= self.rand_augment[0] <= MAX_LAYERS
            or not 0 <= self.rand_augment[1] <= largest
        ):
            raise BadSettings(
                f"rand_augment is {self.rand_augment}; it is up to {MAX_LAYERS} layers and a "
                f"magnitude from 0 to {largest}"
            )
        jitter = self.colour_jitter
        if len(jitter) != 4 or min(jitter) < 0 or jitter[3] > 0.5:
            raise BadSettings(
                f"colour_jitter is {jitter}; it is four numbers, for brightness, contrast, "
                f"saturation and hue, of which none is negative and the last at most 0.5"
            )

    @property
    def changes_colours(self) -> bool:
        """Whether the augmentation changes the values of pixels, not only their positions."""
        return self.needs_colours or self.erase > 0

    @property
    def needs_colours(self) -> bool:
        """Whether the augmentation works only with levels of red, green and blue."""
        layers, _ = self.rand_augment
        return any(self.colour_jitter) or layers > 0


def check_fits(augmentation: Augmentation, preprocessing: Preprocessing) -> None:
    """Raise VitkitError if the two cannot be combined, or if `augmentation.auto` is not resolved yet."""
    if augmentation.auto:
        raise BadSettings("the augmentation is auto: a run decides first what the classes survive")
    is_photograph = preprocessing.channels in (1, 3) and preprocessing.values == "uint8"
    if augmentation.needs_colours and not is_photograph:
        raise BadSettings(
            "colour_jitter and rand_augment are for grey, or red, green and blue, of 8 bits, and the "
            f"images have {counted(preprocessing.channels, 'channel')} in {preprocessing.values}: leave them out "
            "(`data.augmentation.colour_jitter=(0, 0, 0, 0)`, `data.augmentation.rand_augment=(0, 0)`)"
        )
    least = max(preprocessing.size)
    if augmentation.crop == "resize_crop" and augmentation.resize < least:
        height, width = preprocessing.size
        raise BadSettings(
            f"resize is {augmentation.resize}; a crop of {height} x {width} does not fit: "
            f"make it {least} or more"
        )


def square_before_crop(side: int) -> int:
    """The side of the square to which BiT resizes an image before a random crop of this side: 160 for
    128, 448 for 384."""
    if side < 160:
        return side * 160 // 128
    return side * 448 // 384
