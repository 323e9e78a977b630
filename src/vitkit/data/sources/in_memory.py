"""Images in the memory of a program, as pictures and as a Source.

An image is a path, the bytes of a file, a Pillow image, an array (h, w), (h, w, 3) or (h, w, 4), or
a tensor (3, h, w). Values are uint8, or float from 0 to 1, which a model for more than 8 bits gets
unreduced. Arrays have their channels last, as in Pillow, OpenCV and matplotlib; tensors first, as in
torchvision. Channels are red, green and blue.

Legend: N, B images, h w pixels.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.images import pillow
from vitkit.data.images.pictures import Picture, open_image
from vitkit.data.images.pixels import upright
from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import Store, read_file
from vitkit.system.console.text import counted, quoted
from vitkit.system.errors import BadData, BadImage, VitkitError
from vitkit.system.storage.files import impossible

KINDS = "paths, bytes of files, Pillow images, arrays or tensors"
OVERSHOOT = 1e-3  # largest excess over the range from 0 to 1, for rounding errors
ONE = str | PurePath | bytes | bytearray | Image.Image | Picture  # types of a single image


def as_pictures(images: Any) -> Iterator[Picture]:
    """Convert images to pictures: one image, or several in a list, an array (N, h, w, 3) or a tensor
    (N, 3, h, w). Raises VitkitError if they are not images, and BadImage, with its path or its number, for
    an image that cannot be used."""
    is_one = isinstance(images, ONE)
    if isinstance(images, np.ndarray | Tensor) and not _is_list(images):
        is_one = images.ndim < 4
    if is_one:
        images = [images]
    _check_collection(images)
    for number, image in enumerate(images):
        if isinstance(image, Picture):
            yield image
            continue
        name = name_of(image, f"image {number}")
        yield open_image(contents(image, name), name)


def from_images(images: Any) -> Source:
    """A Source of several images without targets: a list, a tuple, a 1-d array or a column of a table
    with images of any type; or an array (N, h, w, 3) or (N, h, w), or a tensor (N, 3, h, w). Raises
    VitkitError for anything else, and for paths that do not lead to a file."""
    values = _one_by_one(images)
    paths = [value for value in values if isinstance(value, str | PurePath)]
    missing = [path for path in paths if impossible(str(path)) or not Path(path).is_file()]
    if missing:
        raise BadData(
            f"of {counted(len(values), 'image')} {len(missing):,} are no file, the first is "
            f"{quoted(str(missing[0]))}"
        )
    count = len(values)
    return Source(Images(values), np.arange(count), np.full(count, -1), (), "none")


@dataclass(frozen=True, eq=False)
class Images(Store):
    """A store of images of any type."""

    values: Sequence[Any]

    def read(self, row: int) -> bytes | np.ndarray:
        return contents(self.values[row], self.name(row))

    def name(self, row: int) -> str:
        return name_of(self.values[row], f"image {row}")

    def identity(self, row: int) -> str:
        """A digest of the image, because arrays have no names that identify them."""
        image = self.read(row)
        if isinstance(image, np.ndarray):
            image = str(image.shape).encode() + image.tobytes()
        return hashlib.sha256(image).hexdigest()


def contents(image: Any, name: str) -> bytes | np.ndarray:
    """Convert an image to the bytes of a file, or to (h, w) or (h, w, 3), uint8 or float32. Raises
    BadImage for anything else."""
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if isinstance(image, str | PurePath):
        return read_file(str(image))
    if isinstance(image, Image.Image):
        return pixels_of_pillow(image, name)
    if isinstance(image, np.ndarray | Tensor):
        try:
            if isinstance(image, Tensor):
                several = images_of_tensor(image, name)
            else:
                several = images_of_array(image, name)
        except VitkitError as error:
            raise BadImage(str(error)) from None
        if len(several) != 1:
            raise BadImage(f"{name} is {len(several)} images in one array; give them one by one")
        return several[0]
    raise BadImage(f"{name} is a {type(image).__name__}; an image is one of {KINDS}")


def name_of(image: Any, otherwise: str) -> str:
    """The name of an image in messages: its path, if it is one; otherwise `otherwise`."""
    if isinstance(image, str | PurePath):
        return str(image)
    return otherwise


def _one_by_one(images: Any) -> list:
    """A list of the images. Raises VitkitError if this is not a collection of images."""
    if isinstance(images, ONE):
        kind = type(images).__name__
        raise BadData(f"the images are one {kind}; give a list of them, such as [image]")
    if hasattr(images, "to_numpy"):  # pandas and polars
        images = images.to_numpy()
    if isinstance(images, np.ndarray | Tensor):
        _check_array(images)
        if images.ndim == 2:  # a table of one column
            images = images[:, 0]
    _check_collection(images)
    values = list(images)
    if not values:
        raise BadData("there are no images: the list is empty")
    return values


def _check_collection(images: Any) -> None:
    """Raise VitkitError unless the images are an iterable with an order, which a set does not have."""
    if isinstance(images, dict | set | frozenset) or not hasattr(images, "__iter__"):
        raise BadData(f"the images are a {type(images).__name__}; give a list of {KINDS}")


def _is_list(array: np.ndarray | Tensor) -> bool:
    """Whether an array is a list of objects, such as paths, instead of pixels."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "OUST"


def _check_array(array: np.ndarray | Tensor) -> None:
    """Raise VitkitError for an array that is neither a list of images nor their pixels."""
    shape = tuple(array.shape)
    if _is_list(array):
        is_right = len(shape) == 1 or shape[1:] == (1,)
    else:
        is_right = len(shape) in (3, 4)
    if not is_right:
        raise BadData(
            f"the images are an array of {array.dtype} {shape}; give a list of {KINDS}, or an array "
            "(N, h, w, 3) or (N, h, w)"
        )


# Convert Pillow images, arrays and tensors to arrays for open_image


def pixels_of_pillow(image: Image.Image, name: str) -> np.ndarray:
    """Convert a Pillow image of any mode to uint8 (h, w, 3), upright, like a file; with transparency to
    uint8 (h, w, 4), and grey of 16 bits to uint16 (h, w). Raises BadImage if its file cannot be decoded."""
    with pillow.as_bad_image(name):
        turn = pillow.orientation(image)
        if image.mode == "RGBA":
            return upright(np.asarray(image), turn)
        if image.mode.startswith("I;16"):
            return upright(np.asarray(image)[..., None], turn)[..., 0]
        pixels = pillow.rgb(image, (0, 0, image.height, image.width))
    return upright(pixels, turn)


def images_of_array(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The image of an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), or the images of a batch
    (B, h, w, channels): each (h, w, 3), (h, w, 4) or (h, w), uint8 or float32.

    Values are uint8, float from 0 to 1, or 16-bit grey; a fourth channel is alpha. Images with other
    numbers of channels, uint8, uint16 or float32 (h, w, C), are unchanged. Raises VitkitError, with
    type and shape, for anything else.
    """
    if _is_bands(array):
        if array.ndim == 4:
            return list(array)
        return [array]
    channels_last = array.ndim == 2 or (array.ndim in (3, 4) and array.shape[-1] in (1, 3, 4))
    if not channels_last or not array.size:
        advice = ""
        if array.ndim in (3, 4) and array.shape[-3] in (1, 3):
            advice = "; its channels are first: give array.transpose(1, 2, 0)"
            if array.ndim == 4:
                advice = "; its channels are first: give array.transpose(0, 2, 3, 1)"
        raise BadData(
            f"{name} is an array of {array.dtype} {array.shape}; an image is (h, w, 3) or (h, w), "
            f"and several are (B, h, w, 3){advice}"
        )
    if array.dtype == np.uint16 and array.ndim == 2:
        return [array]
    levels = _levels(array, name)
    if levels.shape[-1] == 1 and levels.ndim > 2:
        levels = levels[..., 0]
    if array.ndim == 4:
        return list(levels)
    return [levels]


def _is_bands(array: np.ndarray) -> bool:
    """Whether an array is (h, w, C) or (B, h, w, C) with channels other than grey, RGB and RGBA."""
    if array.ndim not in (3, 4) or array.dtype not in (np.uint8, np.uint16, np.float32):
        return False
    height, width, channels = array.shape[-3:]
    is_16_bits = array.dtype == np.uint16
    has_others = channels not in (1, 3, 4) or is_16_bits
    return has_others and height not in (1, 3) and channels < min(height, width)


def _levels(array: np.ndarray, name: str) -> np.ndarray:
    """Convert the floats of an array to float32. Raises VitkitError for floats outside of 0 to 1, and for
    other types."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise BadData(
            f"{name} is an array of {array.dtype}; values are uint8 from 0 to 255, or float from 0 "
            "to 1"
        )
    least = float(array.min())
    most = float(array.max())
    if not (least >= -OVERSHOOT and most <= 1 + OVERSHOOT):  # NaN is outside too
        advice = (
            "the image before mean and standard deviation are applied: vitkit normalises it itself"
        )
        if least >= 0 and most > 2:
            advice = "it as uint8, or divide it by 255"
        raise BadData(
            f"{name} has values from {least:.4g} to {most:.4g}; floats go from 0 to 1: give {advice}"
        )
    return array.astype(np.float32).clip(0, 1)


def images_of_tensor(tensor: Tensor, name: str) -> list[np.ndarray]:
    """The image of a tensor (3, h, w), (1, h, w) or (h, w), or the images of a batch (B, 3, h, w), on any
    device: each (h, w, 3) or (h, w), uint8 or float32.

    Values are uint8, or float from 0 to 1. Other numbers of channels, (C, h, w), are treated as in
    `images_of_array`. Raises VitkitError, with type and shape, for anything else.
    """
    channels_first = tensor.ndim == 2
    if tensor.ndim in (3, 4):
        channels, height, width = tensor.shape[-3:]
        is_bands = channels < min(height, width) and width not in (1, 3)
        channels_first = channels in (1, 3) or is_bands
    if not channels_first or not tensor.numel():
        advice = ""
        if tensor.ndim in (3, 4) and tensor.shape[-1] in (1, 3):
            advice = "; its channels are last: give tensor.movedim(-1, -3)"
        raise BadData(
            f"{name} is a tensor of {str(tensor.dtype).removeprefix('torch.')} "
            f"{tuple(tensor.shape)}; an image is (3, h, w), and several are (B, 3, h, w){advice}"
        )
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)  # numpy has no bfloat16
    array = tensor.numpy()
    if array.ndim > 2:
        array = np.moveaxis(array, -3, -1)
    return images_of_array(array, name)
