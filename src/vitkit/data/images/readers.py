"""Readers of pictures: of a file that Pillow opens, and of an array. `stacks.py` has a third one, for TIFF
files and arrays with any number of channels.

A damaged file may make a decoder raise any exception. Readers do not handle this: `Picture` in
pictures.py converts every exception to BadImage.

Legend: C channels, h w pixels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from PIL import Image

from vitkit.data.images import jpeg, pillow, stacks
from vitkit.data.images.pixels import (
    Box,
    as_bytes,
    before_turn,
    cut,
    levels,
    on_white,
    reduced,
    upright,
    upright_size,
)
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadImage

SCANS = 10  # scans of an ordinary progressive JPEG


class Reader(Protocol):
    """The protocol of readers. Its members are those of `Picture`, where they are explained."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def channels(self) -> int: ...
    @property
    def many_bits(self) -> bool: ...
    def exif(self) -> Mapping[int, object]: ...
    def pixels(self, box: Box, reduce: int = 1) -> np.ndarray: ...
    def stored(self, channels: int, box: Box) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Encoded:
    """A Reader of a file that Pillow opens."""

    data: bytes
    name: str
    jpeg_header: jpeg.Header | None = None
    """Header of an upright JPEG that jpeg.py can decode without Pillow."""
    tiff_header: stacks.StackHeader | None = None
    """Header of a TIFF, if the package that reads all of its bits is installed."""

    @cached_property
    def image(self) -> Image.Image:
        """The image as an open Pillow image. Raises BadImage beyond the limits."""
        image = pillow.open_lazily(self.data)
        limit = max_pixels()
        pixels = image.width * image.height
        if not 0 < pixels <= limit:
            raise BadImage(
                f"{self.name} claims to be {image.width} x {image.height} pixels; "
                f"from 1 to {limit:,} pixels are accepted; {pillow.REMEDY}"
            )
        memory = pillow.memory(image)
        if memory > pillow.USUAL_MEMORY * limit:
            raise BadImage(
                f"{self.name} is a {image.format} of {image.width} x {image.height} pixels, which "
                f"takes about {memory:,} bytes of memory to decode, and "
                f"{pillow.USUAL_MEMORY * limit:,} are accepted; {pillow.REMEDY}"
            )
        scans = SCANS * limit // pixels
        if self.data[:2] == jpeg.SOI and jpeg.has_more_scans(self.data, scans):
            raise BadImage(
                f"{self.name} is a JPEG of more than {scans:,} scans of {image.width} x "
                f"{image.height} pixels, which takes very long to decode; {pillow.REMEDY}"
            )
        if image.format == "TIFF":
            pillow.check_tiff(image)
        return image

    @property
    def kind(self) -> str:
        """The format, one of pillow.FORMATS."""
        if self.jpeg_header:
            return "JPEG"
        return self.image.format or ""

    @cached_property
    def orientation(self) -> int:
        """The Exif orientation: 1 to 8, where 1 is upright. It may require a decode."""
        if self.jpeg_header:
            return pillow.UPRIGHT
        return pillow.orientation(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        if self.jpeg_header:
            return self.jpeg_header.height, self.jpeg_header.width
        return upright_size(self.image.size[::-1], self.orientation)

    def exif(self) -> Mapping[int, object]:
        """See `Picture.exif`."""
        if self.jpeg_header:
            return {}
        return self.image.getexif().get_ifd(pillow.EXIF)

    def pixels(self, box: Box, reduce: int = 1) -> np.ndarray:
        """See `Picture.pixels`. Only the part of a JPEG that the box needs is decoded, if jpeg.py finds its
        library."""
        if self.jpeg_header:
            width = -(-self.jpeg_header.width // reduce)
            height = -(-self.jpeg_header.height // reduce)
            small_box = reduced(box, reduce, (height, width))
            pixels = jpeg.region(self.data, *small_box, reduce, self.jpeg_header)
            if pixels is not None:
                return pixels
        stored_box = before_turn(box, self.size, self.orientation)
        return upright(self._decode_stored(stored_box, reduce), self.orientation)

    @property
    def channels(self) -> int:
        """The number of channels: 1, 3, or 4 with transparency."""
        if self.jpeg_header:
            return 3
        return pillow.channels(self.image)

    @property
    def many_bits(self) -> bool:
        """Whether the image has more than 8 bits a channel."""
        if self.tiff_header is not None:
            return self.tiff_header.dtype != np.uint8
        if self.jpeg_header:
            return False
        return pillow.is_grey_of_many_bits(self.image) or pillow.is_png_of_16_bits(self.data)

    def stored(self, channels: int, box: Box) -> np.ndarray:
        """See `Picture.stored`. There are 1 or 3 channels. An image with transparency has 4 for a model of 4
        `channels`; for other models it is composited on white."""
        if self.jpeg_header:
            return self.pixels(box)
        image = self.image
        if self.tiff_header is not None and self.tiff_header.dtype != np.uint8:
            stored = stacks.read(self.data, channels)
        elif pillow.is_grey_of_many_bits(image):
            stored = pillow.grey_of_many_bits(image)
        elif pillow.is_png_of_16_bits(self.data):
            stored = pillow.png_of_16_bits(self.data)
        elif image.has_transparency_data and channels == 4:
            stored = np.asarray(image.convert("RGBA"))
        else:
            return self.pixels(box)[..., : pillow.channels(image)]
        stored = levels(stored, self.name)
        if stored.shape[2] == 4 and channels != 4:
            stored = on_white(stored)
        return cut(upright(stored, self.orientation), box)

    def _decode_stored(self, box: Box, reduce: int) -> np.ndarray:
        """A box of the stored image, before its orientation is applied."""
        image = self.image
        if image.format == "JPEG":
            if reduce > 1:
                # A second object, because `draft` changes it permanently
                image = pillow.open_lazily(self.data)
                image.draft("RGB", (image.width // reduce, image.height // reduce))
                box = reduced(box, reduce, (image.height, image.width))
            pixels = jpeg.region(self.data, *box, reduce=reduce)
            if pixels is not None:
                return pixels
        return pillow.rgb(image, box)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A Reader of an array: uint8, uint16 or float32, (h, w) or (h, w, C)."""

    array: np.ndarray
    name: str
    kind: ClassVar[str] = "array"

    @property
    def is_plain(self) -> bool:
        """Whether the array is grey or RGB of 8 bits, for which no decoder is needed. Subclasses of arrays,
        such as matrices, may behave differently."""
        is_array = type(self.array) is np.ndarray
        return is_array and self.array.dtype == np.uint8 and self.channels in (1, 3)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.array.shape[:2]

    @property
    def channels(self) -> int:
        """C, the number of channels."""
        return math.prod(self.array.shape[2:])

    @property
    def many_bits(self) -> bool:
        """Whether the array has more than 8 bits a channel."""
        return self.array.dtype != np.uint8

    def exif(self) -> Mapping[int, object]:
        """Empty, as an array has no Exif data."""
        return {}

    def pixels(self, box: Box, reduce: int = 1) -> np.ndarray:
        """See `Picture.pixels`. The result may be a view: do not write to it.

        A fourth channel is alpha, composited on white; uint16, and floats from 0 to 1, are reduced to 8
        bits. Raises BadImage for other numbers of channels, and for other floats.
        """
        array = self.array
        if self._is_like_a_file:
            return pillow.rgb(Image.fromarray(array), box)
        if array.dtype != np.uint8 and self.channels in (1, 3, 4):
            levels_of_8_bits = as_bytes(levels(array, self.name), self.name)
            return Decoded(levels_of_8_bits, self.name).pixels(box)
        if array.dtype != np.uint8 or self.channels not in (1, 3):
            raise no_image(array, self.name)
        if array.ndim == 2:
            array = array[..., None]
        array = cut(array, box)
        if array.shape[2] == 1:
            array = np.repeat(array, 3, axis=2)
        return array

    def stored(self, channels: int, box: Box) -> np.ndarray:
        """See `Picture.stored`."""
        array = self.array
        if self._is_like_a_file and self.channels == 4 and channels != 4:
            return self.pixels(box)
        if array.dtype == np.float32 and self.channels == 4 and channels != 4:
            array = on_white(array)
        array = array.reshape(*self.size, -1)
        return levels(cut(array, box), self.name)

    @property
    def _is_like_a_file(self) -> bool:
        """Whether Pillow converts the array as it would a file: with alpha, or grey of 16 bits."""
        if self.array.dtype == np.uint16:
            return self.array.ndim == 2
        return self.array.dtype == np.uint8 and self.array.shape[2:] == (4,)


def no_image(array: np.ndarray, name: str) -> BadImage:
    """The error for an array that is not an image."""
    return BadImage(
        f"{name} is an array of {array.dtype} {array.shape}; "
        f"expected uint8 (h, w), (h, w, 1) or (h, w, 3)"
    )
