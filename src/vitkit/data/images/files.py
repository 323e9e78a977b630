"""Image files to pixels: upright, RGB, 8 bits a channel, or one sentence that says what is wrong.

That is `pixels`, for models of photographs. `stored` keeps the channels and the bits that a file has,
for models of other images: see channels.py.

What a file may hold, and what becomes of it:
- an Exif or XMP orientation is applied; of an animation or a multi-page file the first frame
  counts;
- transparency is laid on white, as viewers show it (dropping the alpha channel would reveal
  whatever hides below it);
- 16-bit grey is scaled by its white level (65535, or what the file says), never clipped; floating
  point by the smallest of 1, 255 and 65535 that holds it, and where none does, from its own minimum
  to its maximum;
- colour profiles are ignored: the published models were trained on pixels as they are stored;
- truncated and damaged files are refused, and so are those beyond the limits below, before anything
  large is allocated.

Limits: `max_pixels()` pixels; MEMORY bytes of memory for each of these, while an image is decoded; a
JPEG's scans may go SCANS times over as many.

Boxes are (top, left, height, width) in pixels of the upright image.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from vitkit.data.images import jpeg, pillow, stacks
from vitkit.data.images.boxes import TURNS, Box, checked, cut, upright
from vitkit.data.images.encoded import MEMORY, RAISE, REDUCTIONS, Encoded, as_bad_image
from vitkit.data.images.levels import BadImage, as_bytes, levels, on_white
from vitkit.system.limits import max_pixels


@dataclass(frozen=True, eq=False)
class Decoded:
    """A picture that is an array already: uint8, uint16 or float32, (h, w) or (h, w, C)."""

    array: np.ndarray
    name: str
    kind: ClassVar[str] = "array"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.array.shape[:2]

    @property
    def channels(self) -> int:
        """C, how many it has."""
        return math.prod(self.array.shape[2:])

    @property
    def many_bits(self) -> bool:
        """Whether it has more than 8 bits."""
        return self.array.dtype != np.uint8

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3), of the whole or of a box; maybe a view, so do not write to it.

        `reduce` is for JPEG. A fourth channel is opacity, laid on white; uint16, and floats from 0 to
        1, are cut to 8 bits. Raises BadImage for an array of other channels, or of other floats.
        """
        array = self.array
        if array.dtype != np.uint8 and self.channels in (1, 3, 4) and not self._is_like_a_file:
            levels_of_8_bits = as_bytes(levels(array, self.name), self.name)
            return Decoded(levels_of_8_bits, self.name).pixels(box)
        if self._is_like_a_file:
            box = checked(box or (0, 0, *self.size), self.size)
            return pillow.rgb(Image.fromarray(array), box)
        if array.dtype != np.uint8 or self.channels not in (1, 3):
            raise BadImage(
                f"{self.name} is an array of {self.array.dtype} {self.array.shape}; "
                f"expected uint8 (h, w), (h, w, 1) or (h, w, 3)"
            )
        if array.ndim == 2:
            array = array[..., None]
        if box is not None:
            top, left, height, width = checked(box, self.size)
            array = array[top : top + height, left : left + width]
        if array.shape[2] == 1:
            array = np.repeat(array, 3, axis=2)
        return array

    def stored(self, channels: int, box: Box | None = None) -> np.ndarray:
        """As `Encoded.stored`."""
        array = self.array
        if self._is_like_a_file and self.channels == 4 and channels != 4:
            return self.pixels(box)
        if array.dtype == np.float32 and self.channels == 4 and channels != 4:
            array = on_white(array)
        array = array.reshape(*self.size, -1)
        return levels(cut(array, box), self.name)

    @property
    def _is_like_a_file(self) -> bool:
        """Whether Pillow knows what to do with it: opacity, and grey of 16 bits."""
        if self.array.dtype == np.uint16:
            return self.array.ndim == 2
        return self.array.dtype == np.uint8 and self.array.shape[2:] == (4,)


@dataclass(frozen=True, eq=False)
class Stack:
    """A picture of any number of channels, which Pillow does not read: a TIFF, or a .npy array."""

    data: bytes
    name: str
    header: stacks.Header

    @property
    def kind(self) -> str:
        """Its format."""
        if stacks.is_npy(self.data):
            return "NPY"
        return "TIFF"

    @property
    def channels(self) -> int:
        """C, how many it has."""
        return self.header.channels

    @property
    def many_bits(self) -> bool:
        """Whether it has more than 8 bits."""
        return self.header.dtype != np.uint8

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        swapped, _, _ = TURNS[self.header.orientation]
        if swapped:
            return self.header.width, self.header.height
        return self.header.height, self.header.width

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3), of the whole or of a box, of an image of 1 or 3 channels.

        `reduce` is for JPEG. Raises BadImage, and for an image of another number of channels.
        """
        if self.channels not in (1, 3):
            raise BadImage(
                f"{self.name} has {self.channels} channels, which are no red, green and blue; a model "
                f"of such images has --model.channels {self.channels}"
            )
        stored = as_bytes(self.stored(self.channels, box), self.name)
        if self.channels == 1:
            stored = np.repeat(stored, 3, axis=2)
        return stored

    def stored(self, channels: int, box: Box | None = None) -> np.ndarray:
        """As `Encoded.stored`, of all channels. Of a TIFF with as many pages as `channels`, each is
        one of them."""
        with as_bad_image(self.name):
            stored = levels(stacks.read(self.data, channels), self.name)
        return cut(upright(stored, self.header.orientation), box)


Picture = Decoded | Encoded | Stack


def open_image(data: bytes | np.ndarray, name: str) -> Picture:
    """A picture from a file's bytes, of which only the header is read, or from an array (uint8,
    grey or RGB).

    `name` is what errors call it. Raises BadImage for what is not an image, beyond the limits, or
    not an 8-bit grey or RGB array.
    """
    if isinstance(data, np.ndarray):
        return _open_array(data, name)
    if not data:
        raise BadImage(f"{name} is empty: 0 bytes")

    # An ordinary JPEG that no Exif turns: Pillow, which takes longer, is not asked.
    header = jpeg.header(data) if jpeg.available() else None
    if header and not header.app1 and header.width * header.height <= max_pixels():
        return Encoded(data, name, header)

    stack = _open_stack(data, name)
    if isinstance(stack, Stack):
        return stack
    picture = Encoded(data, name, tiff_header=stack)
    picture.image  # noqa: B018 raises BadImage for what is none, or is beyond the limits
    return picture


def in_memory(picture: Picture) -> Picture:
    """The same picture, decoded now, to be prepared for several models; one with transparency, many
    bits or channels stays as it is, for these read it differently. Raises BadImage."""
    if picture.channels not in (1, 3) or picture.many_bits:
        return picture
    return Decoded(picture.pixels(), picture.name)


def _open_array(array: np.ndarray, name: str) -> Decoded:
    if (
        array.dtype not in (np.uint8, np.uint16, np.float32)
        or array.ndim not in (2, 3)
        or not array.size
    ):
        raise BadImage(
            f"{name} is an array of {array.dtype} {array.shape}; "
            f"expected uint8 (h, w), (h, w, 1) or (h, w, 3)"
        )
    return Decoded(array, name)


def _open_stack(data: bytes, name: str) -> Stack | stacks.Header | None:
    """A .npy array, or a TIFF that Pillow does not read; the header alone of one that it reads; None
    for other files. Raises BadImage, within the limits."""
    if not stacks.is_npy(data) and not stacks.is_tiff(data):
        return None
    try:
        header = stacks.header(data)
    except Exception as error:
        if stacks.is_tiff(data) and pillow.can_open(data):
            return None  # Pillow reads some that tifffile does not
        if isinstance(error, ImportError | ValueError):
            raise BadImage(f"{name} cannot be read: {error}") from None
        raise BadImage(f"{name} is a damaged TIFF: {error or type(error).__name__}") from error

    if stacks.is_tiff(data) and header.channels <= 4 and pillow.can_open(data, header.size):
        return header
    limit = max_pixels()
    memory = header.bytes + 4 * header.height * header.width * header.channels  # as float32 too
    if header.height * header.width > limit or memory > MEMORY * limit:
        raise BadImage(
            f"{name} is an image of {header.width} x {header.height} pixels and {header.channels} "
            f"channels, which takes {memory:,} bytes of memory; {MEMORY * limit:,} bytes, and "
            f"{limit:,} pixels, are accepted; {RAISE}"
        )
    return Stack(data, name, header)


__all__ = [
    "BadImage",
    "Box",
    "Decoded",
    "Encoded",
    "Picture",
    "REDUCTIONS",
    "Stack",
    "in_memory",
    "open_image",
    "upright",
]
