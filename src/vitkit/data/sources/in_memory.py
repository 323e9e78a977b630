"""Images that a program holds, as pictures and as a Source.

An image is a path, the bytes of a file, a Pillow image, an array (h, w), (h, w, 3) or (h, w, 4), or a
tensor (3, h, w); of numbers uint8, or float from 0 to 1 (see pixels.py).

Legend: N images, h w their pixels.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitkit.data.images.files import BadImage, Picture, open_image
from vitkit.data.images.pixels import images_of_array, images_of_tensor, pixels_of_pillow
from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import read_file
from vitkit.system.console.text import counted

KINDS = "paths, bytes of files, Pillow images, arrays or tensors"
ONE = str | PurePath | bytes | bytearray | Image.Image | Picture  # no list of images


def as_pictures(images: Any) -> Iterator[Picture]:
    """Images as pictures: one, or several in a list, an array (N, h, w, 3) or a tensor (N, 3, h, w).

    Raises ValueError for what holds no images, and BadImage for one that is none, with its path or
    which of them it is.
    """
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
    """Several images, without targets: a list, a tuple, a 1-d array, or a column of a table, of
    images of any sort; or an array (N, h, w, 3) or (N, h, w), or a tensor (N, 3, h, w).

    Raises ValueError for what is none of these, and for paths where there is no file.
    """
    values = _one_by_one(images)
    paths = [value for value in values if isinstance(value, str | PurePath)]
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        raise ValueError(
            f"of {counted(len(values), 'image')} {len(missing):,} are no file, the first is "
            f"{str(missing[0])!r}"
        )
    count = len(values)
    return Source(Images(values), np.arange(count), np.full(count, -1), (), "none")


@dataclass(frozen=True, eq=False)
class Images:
    """A store of images of any sort."""

    values: Sequence[Any]

    def read(self, row: int) -> bytes | np.ndarray:
        return contents(self.values[row], self.name(row))

    def name(self, row: int) -> str:
        return name_of(self.values[row], f"image {row}")

    def identity(self, row: int) -> str:
        """A digest: no name tells one array from another."""
        image = self.read(row)
        if isinstance(image, np.ndarray):
            image = str(image.shape).encode() + image.tobytes()
        return hashlib.sha256(image).hexdigest()

    def prepare(self, rows: np.ndarray) -> None:
        pass

    def chunks(self, rows: np.ndarray) -> None:
        """One is read as quickly as another."""


def contents(image: Any, name: str) -> bytes | np.ndarray:
    """An image as the bytes of a file, or (h, w) or (h, w, 3), uint8 or float32. Raises BadImage for
    what is none."""
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if isinstance(image, str | PurePath):
        return read_file(str(image))
    if isinstance(image, Image.Image):
        return pixels_of_pillow(image, name)
    if isinstance(image, np.ndarray | Tensor):
        read = images_of_array
        if isinstance(image, Tensor):
            read = images_of_tensor
        try:
            several = read(image, name)
        except ValueError as error:
            raise BadImage(str(error)) from None
        if len(several) != 1:
            raise BadImage(f"{name} is {len(several)} images in one array; give them one by one")
        return several[0]
    raise BadImage(f"{name} is a {type(image).__name__}; an image is one of {KINDS}")


def name_of(image: Any, otherwise: str) -> str:
    """What a user would call an image: its path, if it is one."""
    if isinstance(image, str | PurePath):
        return str(image)
    return otherwise


def _one_by_one(images: Any) -> list:
    """The images in a list. Raises ValueError for what is no collection of images."""
    if isinstance(images, ONE):
        kind = type(images).__name__
        raise ValueError(f"the images are one {kind}; give a list of them, such as [image]")
    if hasattr(images, "to_numpy"):  # pandas and polars
        images = images.to_numpy()
    if isinstance(images, np.ndarray | Tensor):
        _check_array(images)
        if images.ndim == 2:  # a table of one column
            images = images[:, 0]
    _check_collection(images)
    values = list(images)
    if not values:
        raise ValueError("there are no images: the list is empty")
    return values


def _check_collection(images: Any) -> None:
    """Raises ValueError for what holds no images one after the other; a set has no order."""
    if isinstance(images, dict | set | frozenset) or not hasattr(images, "__iter__"):
        raise ValueError(f"the images are a {type(images).__name__}; give a list of {KINDS}")


def _is_list(array: np.ndarray | Tensor) -> bool:
    """Whether an array holds things, such as paths, and no pixels."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "OUST"


def _check_array(array: np.ndarray | Tensor) -> None:
    """Raises ValueError for an array that is neither a list of images nor their pixels."""
    shape = tuple(array.shape)
    if _is_list(array):
        is_right = len(shape) == 1 or shape[1:] == (1,)
    else:
        is_right = len(shape) in (3, 4)
    if not is_right:
        raise ValueError(
            f"the images are an array of {array.dtype} {shape}; give a list of {KINDS}, or an array "
            "(N, h, w, 3) or (N, h, w)"
        )
