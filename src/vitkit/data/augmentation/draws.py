"""An augmentation of one image: drawn first, as a small value, then applied.

What is drawn depends only on the image's size, so it is known before a pixel is decoded, can be
inspected, and can be applied to everything that belongs to the image: `apply_geometry` moves a mask
as it moves the image.

Legend: C channels, h w pixels of what the model gets.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.augmentation.settings import Augmentation
from vitkit.data.images.jpeg import REDUCTIONS
from vitkit.data.images.pictures import Picture
from vitkit.data.images.pixels import Box
from vitkit.data.images.preprocessing import MAX_SIDE, Preprocessing
from vitkit.data.images.readers import Decoded
from vitkit.data.images.resizing import Resampling, resize
from vitkit.data.masks.legend import IGNORED

BY_SIZE = ("inception", "scale_crop")  # crops that depend on the size of the image
ASPECT = (0.75, 1.33)  # width / height; TensorFlow's default, which is not 4/3
ATTEMPTS = 100


class ColourChange(Protocol):
    """A drawn change of colours, (C, h, w) -> (C, h, w)."""

    def __call__(self, image: Tensor) -> Tensor: ...


class Draw(NamedTuple):
    """The random changes of one image, as plain values.

    Boxes are (top, left, height, width) in pixels.
    """

    box: Box | None = None
    """What a crop keeps: of the upright image for "inception", of the resized image for "resize_crop" and
    "scale_crop", of the padded image for "pad_crop"; None for "none"."""
    flip: bool = False
    """Whether the image is mirrored, left to right, after the crop."""
    colour_changes: tuple[ColourChange, ...] = ()
    """Colour jitter (Colours), then RandAugment (Operation for Google's, Policy for torchvision's)."""
    erased: Box | None = None
    """The rectangle that is erased at the end; None for none."""
    scaled: tuple[int, int] | None = None
    """Height and width to which "scale_crop" resizes the image; None for other crops."""


def augment(
    picture: Picture,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    random: np.random.Generator,
) -> Tensor:
    """Augment a picture: (C, h, w), uint8 or float32. Raises BadImage.

    Of an Inception crop only the part that it keeps is decoded. The augmentation must fit the
    preprocessing (`check_fits`).
    """
    size = None
    if augmentation.crop in BY_SIZE:  # other crops do not need it, and it may require a decode
        size = picture.size
    drawn = draw(size, augmentation, preprocessing, random)
    return apply(drawn, picture, augmentation, preprocessing)


def augment_with_mask(
    picture: Picture,
    mask: np.ndarray,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    random: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Augment a picture and its mask, uint8 (height, width): (C, h, w) as `augment` makes it, and uint8 (h, w).

    The crop, the resize and the flip are the same for both; a mask is resized to the nearest pixel. Pixels
    outside of the picture, and those that are erased, are IGNORED. Raises BadImage.
    """
    drawn = draw(picture.size, augmentation, preprocessing, random)
    image = apply(drawn, picture, augmentation, preprocessing)
    of_mask = replace(preprocessing, mean=(0.5,), std=(0.5,), values="uint8")
    codes = Picture(Decoded(mask[..., None], picture.name))
    whole = replace(augmentation, reduced_decode=False)
    moved = apply_geometry(drawn, codes, whole, of_mask, "nearest", fill=IGNORED)[0]
    if drawn.erased is not None:
        moved = moved.clone()
        _crop(moved[None], drawn.erased)[:] = IGNORED
    return image, moved


def draw(
    size: tuple[int, int] | None,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    random: np.random.Generator,
) -> Draw:
    """Draw the random changes of an image.

    size: height and width of the image in pixels; only the crops of BY_SIZE need it.
    random: source of all random choices, in this order: crop, flip, and a seed for each of colour
        jitter, RandAugment and erasing that is switched on.
    """
    # Geometry
    scaled = None
    if augmentation.crop == "scale_crop":
        assert size is not None, "the crop depends on the image's size"
        scaled = _draw_scaled(size, augmentation, random)
    box = _draw_box(scaled or size, augmentation, preprocessing.size, random)
    flip = augmentation.flip and random.random() < 0.5
    if not augmentation.changes_colours:
        return Draw(box, flip, scaled=scaled)

    # Colours. Imported here because torchvision's transforms take long to import and most runs do not
    # need them.
    from vitkit.data.augmentation.colours import Policy, draw_colours, draw_erased, draw_operations

    changes: list[ColourChange] = []
    if any(augmentation.colour_jitter):
        changes.append(draw_colours(augmentation.colour_jitter, _seed(random)))
    layers, magnitude = augmentation.rand_augment
    if layers and augmentation.rand_augment_by == "torchvision":
        changes.append(Policy(layers, magnitude, _seed(random)))
    if layers and augmentation.rand_augment_by == "google":
        generator = torch.Generator().manual_seed(_seed(random))
        changes += draw_operations(layers, magnitude, preprocessing.size, generator)
    erased = None
    if augmentation.erase:
        erased = draw_erased(augmentation.erase, preprocessing.size, _seed(random))
    return Draw(box, flip, tuple(changes), erased, scaled)


def _draw_scaled(
    size: tuple[int, int], augmentation: Augmentation, random: np.random.Generator
) -> tuple[int, int]:
    """Draw the height and width to which a "scale_crop" resizes an image of this size; its sides are at most
    MAX_SIDE pixels."""
    height, width = size
    factor = random.uniform(*augmentation.scales) * augmentation.resize / (height * width) ** 0.5
    factor = min(factor, MAX_SIDE / max(size))
    return max(1, round(factor * height)), max(1, round(factor * width))


def _draw_box(
    size: tuple[int, int] | None,
    augmentation: Augmentation,
    crop_size: tuple[int, int],
    random: np.random.Generator,
) -> Box | None:
    """Draw the box that the crop keeps (Draw.box)."""
    if augmentation.crop == "inception":
        assert size is not None, "an Inception crop depends on the image's size"
        return inception_box(*size, augmentation.area, random)
    if augmentation.crop == "resize_crop":
        return random_box(augmentation.resize, augmentation.resize, crop_size, random)
    if augmentation.crop == "scale_crop":
        assert size is not None, "the crop depends on the image's size"
        height, width = (max(own, kept) for own, kept in zip(size, crop_size, strict=True))
        return random_box(height, width, crop_size, random)
    if augmentation.crop == "pad_crop":
        height = crop_size[0] + 2 * augmentation.pad
        width = crop_size[1] + 2 * augmentation.pad
        return random_box(height, width, crop_size, random)
    return None


def _seed(random: np.random.Generator) -> int:
    return int(random.integers(2**63))


def apply(
    drawn: Draw, picture: Picture, augmentation: Augmentation, preprocessing: Preprocessing
) -> Tensor:
    """Apply the drawn changes to a picture: (C, h, w). Raises BadImage."""
    image = apply_geometry(drawn, picture, augmentation, preprocessing)
    return apply_colours(drawn, image, preprocessing)


def apply_geometry(
    drawn: Draw,
    picture: Picture,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    interpolation: Resampling | None = None,
    fill: int = 0,
) -> Tensor:
    """Crop, resize and flip: a picture as (C, h, w). Raises BadImage.

    interpolation: replaces the interpolation of the settings; "nearest" for a mask of the image's size.
    fill: level of the pixels outside of the picture in a "pad_crop", or in a "scale_crop" with `interpolation`;
        an image of the latter is filled with the preprocessing's mean, which is 0 to the model.
    """
    size = preprocessing.size
    kernel = interpolation or augmentation.interpolation or preprocessing.interpolation
    antialias = augmentation.antialias
    if antialias is None:
        antialias = preprocessing.antialias

    if drawn.box is None:  # no crop
        image = preprocessing(picture, interpolation)
    elif augmentation.crop == "inception":
        reduction = _reduction(drawn.box, size, augmentation)
        image = resize(preprocessing.decode(picture, drawn.box, reduction), size, kernel, antialias)
    elif augmentation.crop == "resize_crop":
        square = (augmentation.resize, augmentation.resize)
        reduction = _reduction((0, 0, *picture.size), square, augmentation)
        whole = resize(preprocessing.decode(picture, None, reduction), square, kernel, antialias)
        image = _crop(whole, drawn.box)
    elif augmentation.crop == "scale_crop":
        assert drawn.scaled is not None, "the draw is of another crop"
        reduction = _reduction((0, 0, *picture.size), drawn.scaled, augmentation)
        decoded = preprocessing.decode(picture, None, reduction)
        whole = resize(decoded, drawn.scaled, kernel, antialias)
        image = _mean_image(preprocessing, whole.dtype)
        if interpolation is not None:
            image = torch.full((len(whole), *size), fill, dtype=whole.dtype)
        kept = _crop(whole, drawn.box)
        image[:, : kept.shape[1], : kept.shape[2]] = kept
    else:
        whole = preprocessing(picture, interpolation)
        image = _crop(F.pad(whole, [augmentation.pad] * 4, value=fill), drawn.box)

    if drawn.flip:
        image = image.flip(-1)
    return image


def apply_colours(drawn: Draw, image: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Apply the drawn colour changes, then erase: (C, h, w) -> (C, h, w).

    Colour changes need uint8 values and 1 or 3 channels.
    """
    for change in drawn.colour_changes:
        channels = len(image)  # a grey image is expanded, and its three channels stay equal
        image = change(image.expand(3, -1, -1).contiguous())[:channels]
    if drawn.erased is not None:
        image = image.clone()
        _crop(image, drawn.erased)[:] = _mean_levels(preprocessing, image.dtype)
    return image


def _mean_levels(preprocessing: Preprocessing, dtype: torch.dtype) -> Tensor:
    """The mean that is subtracted from each channel, in the levels of images: (C, 1, 1)."""
    if dtype != torch.uint8:
        return torch.tensor(preprocessing.mean)[:, None, None]
    levels = [min(max(round(255 * value), 0), 255) for value in preprocessing.mean]
    return torch.tensor(levels, dtype=torch.uint8)[:, None, None]


def _mean_image(preprocessing: Preprocessing, dtype: torch.dtype) -> Tensor:
    """An image that has the mean everywhere: (C, h, w)."""
    return _mean_levels(preprocessing, dtype).repeat(1, *preprocessing.size)


def _crop(image: Tensor, box: Box) -> Tensor:
    """A view of a box of an image (C, h, w)."""
    top, left, height, width = box
    return image[:, top : top + height, left : left + width]


def _reduction(box: Box, size: tuple[int, int], augmentation: Augmentation) -> int:
    """The largest reduction that leaves a box at least as many pixels as it is resized to."""
    if not augmentation.reduced_decode:
        return 1
    _, _, height, width = box
    for reduction in reversed(REDUCTIONS):
        if height // reduction >= size[0] and width // reduction >= size[1]:
            return reduction
    return 1


def preload(augmentation: Augmentation) -> None:
    """Import the modules that an augmentation needs here, once, instead of in every worker."""
    if augmentation.changes_colours:
        import vitkit.data.augmentation.colours  # noqa: F401


# Position of a training crop


def inception_box(
    height: int, width: int, area: tuple[float, float], random: np.random.Generator
) -> Box:
    """The crop of TensorFlow's sample_distorted_bounding_box, with which the paper's models were
    trained.

    The aspect ratio is drawn uniformly. Then the height is drawn uniformly from those heights for which
    the area lies within its bounds, as shares of the image, and the width within the image. So the
    height is uniform, not the area. After 100 attempts without a fit the crop is the whole image.
    """
    low = area[0] * height * width
    high = area[1] * height * width
    for _ in range(ATTEMPTS):
        # An aspect ratio, and the heights that are possible with it
        aspect = random.uniform(*ASPECT)
        tallest = round((high / aspect) ** 0.5)
        if round(tallest * aspect) > width:  # the image's width limits the height
            tallest = int((width + 0.5 - 1e-7) / aspect)
            if round(tallest * aspect) > width:
                tallest -= 1
        tallest = min(tallest, height)
        shortest = min(round((low / aspect) ** 0.5), tallest)

        # A height. If rounding moved the area just out of its bounds, one pixel may correct it.
        h = shortest + int(random.integers(tallest - shortest + 1))
        if h * round(h * aspect) < low:
            h += 1
        if h * round(h * aspect) > high:
            h -= 1
        w = round(h * aspect)

        # A position, if the box fits. As in the original, a crop smaller than the image never touches its
        # last row or column.
        fits = low <= h * w <= high and 0 < h <= height and 0 < w <= width
        if not fits:
            continue
        top = 0
        left = 0
        if h < height:
            top = int(random.integers(height - h))
        if w < width:
            left = int(random.integers(width - w))
        return top, left, h, w
    return 0, 0, height, width


def random_box(height: int, width: int, size: tuple[int, int], random: np.random.Generator) -> Box:
    """A box of the given size at a uniformly drawn position."""
    top = int(random.integers(height - size[0] + 1))
    left = int(random.integers(width - size[1] + 1))
    return top, left, *size
