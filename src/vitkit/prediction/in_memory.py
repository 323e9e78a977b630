"""The inputs of `vitkit.predict` as Items: names, and images in memory.

Images in memory have no name: they are called "image 0", "image 1", ..., by their position.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import IOBase
from itertools import count
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitkit.data import Source, forked
from vitkit.data.sources.in_memory import images_of_array, images_of_tensor, pixels_of_pillow
from vitkit.prediction.items import (
    DataSetItems,
    Group,
    Item,
    Pictures,
    items_of,
    pictures,
    words_of_model,
)
from vitkit.system.errors import BadData, BadImage
from vitkit.system.values import given

EXPECTED = (
    "a file, a folder, a pattern, a web address, bytes, an open file, a Pillow image, an array, a tensor, or "
    "several of these"
)


@dataclass(frozen=True, eq=False)
class InMemory:
    """A Group of items in memory."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, i: int) -> Item:
        return self.items[i]


def as_items(images: Any, labels: Sequence[str] = ()) -> Sequence[Item] | Iterator[Item]:
    """The items that `vitkit.predict` classifies: an Iterator if `images` is an iterator, else a
    Sequence.

    labels: names of the model's classes; the classes of a data set that match get these names.

    Raises VitkitError if something is not an image, or if a name matches nothing.
    """
    if isinstance(images, Pictures):
        return images
    if isinstance(images, Source):
        return Pictures.of([DataSetItems(images, words_of_model(images.labels, labels))])
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":  # of names
        images = images.tolist()
    if _is_one(images):
        return _listed([images], labels)
    # A table of pandas or polars: iterating over it would yield the names of its columns
    if hasattr(images, "columns"):
        names = ", ".join(map(str, list(images.columns)[:5]))
        raise BadData(f"images is a table; give the column that holds them, one of {names}")
    if isinstance(images, Mapping) or not isinstance(images, Iterable):
        raise BadData(f"{_described(images)} is not an image; give {EXPECTED}")
    if isinstance(images, Sequence):
        return _listed(images, labels)
    return _one_by_one(images)


def _is_one(value: Any) -> bool:
    """Whether a value is a single input, not a list of inputs."""
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, IOBase)
    if isinstance(value, (*kinds, np.ndarray, Tensor, Image.Image, Item)):
        return True
    return hasattr(value, "read") and not isinstance(value, Sequence)


def _described(value: Any) -> str:
    """A value in a few words."""
    text = given(value)
    kind = f"of type {type(value).__name__}"
    if text == kind:
        return f"a value {kind}"
    return f"{text}, {kind},"


def _listed(images: Sequence[Any], labels: Sequence[str]) -> Pictures:
    """The items of a list of names and images in memory, in its order."""
    groups: list[Group] = []
    in_memory: list[Item] = []
    names: list[str] = []

    def end_group() -> None:
        """Make a group of the collected names or items (only one of the two lists is non-empty)."""
        groups.append(InMemory(tuple(in_memory)))
        in_memory.clear()
        groups.extend(pictures(names, labels).groups)
        names.clear()

    numbers = count()
    for image in images:
        if isinstance(image, str | os.PathLike):
            if in_memory:
                end_group()
            names.append(os.fspath(image))
            next(numbers)
        else:
            if names:
                end_group()
            in_memory += _items_in_memory(image, numbers, forked())
    end_group()
    return Pictures.of(group for group in groups if len(group))


def _one_by_one(images: Iterable[Any]) -> Iterator[Item]:
    """The items of an iterator, each made when it is requested."""
    numbers = count()
    for image in images:
        if isinstance(image, str | os.PathLike):
            next(numbers)
            yield from items_of(os.fspath(image))
        else:
            yield from _items_in_memory(image, numbers, lazily=False)


def _items_in_memory(image: Any, numbers: Iterator[int], lazily: bool) -> list[Item]:
    """The items of a value in memory. lazily: decode a Pillow image, or read an Item, when it is
    requested; otherwise before it is sent to another process."""
    if isinstance(image, Item):
        next(numbers)
        return [image if lazily else Item(image.name, _read_now(image.read), image.truth)]
    if isinstance(image, bytes | bytearray | memoryview):
        return [_item(bytes(image), numbers)]
    if hasattr(image, "read") and not isinstance(image, Image.Image):  # an open file
        data = image.read()
        if not isinstance(data, bytes):
            raise BadData(f"image {next(numbers)} is a file that gives no bytes; open it as 'rb'")
        return [_item(data, numbers)]
    if isinstance(image, Image.Image):
        name = f"image {next(numbers)}"
        read = partial(pixels_of_pillow, image, name)
        return [Item(name, read if lazily else _read_now(read))]

    # An array of one or several images; `first` is the number of its first image
    first = next(numbers)
    if isinstance(image, np.ndarray):
        arrays = images_of_array(image, f"image {first}")
    elif isinstance(image, Tensor):
        arrays = images_of_tensor(image, f"image {first}")
    else:
        raise BadData(f"image {first} is {_described(image)} and not an image; give {EXPECTED}")
    items = [Item(f"image {first}", partial(_identity, arrays[0]))]
    return items + [_item(array, numbers) for array in arrays[1:]]


def _item(data: bytes | np.ndarray, numbers: Iterator[int]) -> Item:
    """The item of an encoded image's bytes, or of pixels."""
    return Item(f"image {next(numbers)}", partial(_identity, data))


def _identity(data: bytes | np.ndarray) -> bytes | np.ndarray:
    return data


def _read_now(read: Callable[[], bytes | np.ndarray]) -> Callable[[], bytes | np.ndarray]:
    """A picklable function that returns the result of `read`, called now, or raises the BadImage that it
    raised."""
    try:
        return partial(_identity, read())
    except (BadImage, OSError) as error:
        return partial(_raise_bad_image, str(error))


def _raise_bad_image(sentence: str) -> bytes:
    """Raises BadImage with this message. Takes the place of a function that reads an image."""
    raise BadImage(sentence)
