"""Image files to pixels: upright, RGB, 8 bits a channel, or one sentence that says what is wrong.

That is `pixels`, for models of photographs. `stored` keeps the channels and the bits that a file
has, for models of other images: see preprocessing.py.

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

Limits: `max_pixels()` pixels; USUAL_MEMORY bytes of memory for each of these, while an image is
decoded; a JPEG's scans may go SCANS times over as many.

Boxes are (top, left, height, width) in pixels of the upright image.

Legend: B images, C channels, h w pixels.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image

from vitkit.data.images import jpeg, pillow, stacks
from vitkit.data.images.pixels import (
    BadImage,
    Box,
    as_bytes,
    as_floats,
    before_turn,
    checked,
    cut,
    levels,
    on_white,
    reduced,
    upright,
    upright_size,
)
from vitkit.system.limits import max_pixels

if TYPE_CHECKING:
    from torch import Tensor

SCANS = 10  # an ordinary progressive JPEG has so many
STRETCHED = (1, 99)  # percentiles that become black and white


@dataclass(frozen=True, eq=False)
class Encoded:
    """A picture in a file whose header has been read; its pixels are decoded on request."""

    data: bytes
    name: str
    jpeg_header: jpeg.Header | None = None
    """Of an upright JPEG that jpeg.py can decode without Pillow."""
    tiff_header: stacks.Header | None = None
    """Of a TIFF, where the package is installed that reads it to the last bit."""

    @cached_property
    def image(self) -> Image.Image:
        """As Pillow opens it, within the limits. Raises BadImage."""
        with pillow.as_bad_image(self.name):
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
        return image

    @property
    def kind(self) -> str:
        """Its format, one of pillow.FORMATS."""
        if self.jpeg_header:
            return "JPEG"
        return self.image.format or ""

    @cached_property
    def orientation(self) -> int:
        """Exif's: 1 to 8, where 1 is upright. Raises BadImage, as it may take a decode."""
        if self.jpeg_header:
            return pillow.UPRIGHT
        with pillow.as_bad_image(self.name):
            return pillow.orientation(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        if self.jpeg_header:
            return self.jpeg_header.height, self.jpeg_header.width
        return upright_size(self.image.size[::-1], self.orientation)

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3), writable, of the whole image or of a box of it. Raises BadImage.

        Of a JPEG only what the box needs is decoded, where the library for it is installed (see
        jpeg.py). reduce: 2, 4 or 8 decodes a JPEG at 1/reduce of its size, ceil(h / reduce) by
        ceil(w / reduce) pixels, or one more where the box lies across; other formats ignore it. The
        box is always in pixels of the full size.
        """
        box = checked(box or (0, 0, *self.size), self.size)
        if self.jpeg_header:
            width = -(-self.jpeg_header.width // reduce)
            height = -(-self.jpeg_header.height // reduce)
            small_box = reduced(box, reduce, (height, width))
            pixels = jpeg.region(self.data, *small_box, reduce, self.jpeg_header)
            if pixels is not None:
                return pixels
        stored_box = before_turn(box, self.size, self.orientation)
        with pillow.as_bad_image(self.name):
            pixels = self._decode_stored(stored_box, reduce)
        return upright(pixels, self.orientation)

    @property
    def channels(self) -> int:
        """How many it has: 1, 3, or with transparency 4."""
        if self.jpeg_header:
            return 3
        with pillow.as_bad_image(self.name):
            return pillow.channels(self.image)

    @property
    def many_bits(self) -> bool:
        """Whether it has more than 8 bits."""
        if self.tiff_header is not None:
            return self.tiff_header.dtype != np.uint8
        if self.jpeg_header:
            return False
        return pillow.is_grey_of_many_bits(self.image) or pillow.is_png_of_16_bits(self.data)

    def stored(self, channels: int, box: Box | None = None) -> np.ndarray:
        """The whole image, or a box of it, as the file has it: (h, w, c), uint8, or float32 if it
        has more than 8 bits: from 0 to 1, or floats as they are. Raises BadImage.

        c is 1 or 3; for a model of 4 `channels`, an image with transparency has 4, and for others
        it lies on white.
        """
        box = checked(box or (0, 0, *self.size), self.size)
        if self.jpeg_header:
            return self.pixels(box)
        image = self.image
        with pillow.as_bad_image(self.name):
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
        """A box of the image as it is stored, before any turn."""
        image = self.image
        if image.format == "JPEG":
            if reduce > 1:
                image = pillow.open_lazily(self.data)  # anew, as a draft changes an image for good
                image.draft("RGB", (image.width // reduce, image.height // reduce))
                box = reduced(box, reduce, (image.height, image.width))
            pixels = jpeg.region(self.data, *box, reduce=reduce)
            if pixels is not None:
                return pixels
        return pillow.rgb(image, box)


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

        `reduce` is for JPEG. A fourth channel is opacity, laid on white; uint16, and floats from 0
        to 1, are cut to 8 bits. Raises BadImage for an array of other channels, or of other floats.
        """
        array = self.array
        if self._is_like_a_file:
            box = checked(box or (0, 0, *self.size), self.size)
            return pillow.rgb(Image.fromarray(array), box)
        if array.dtype != np.uint8 and self.channels in (1, 3, 4):
            levels_of_8_bits = as_bytes(levels(array, self.name), self.name)
            return Decoded(levels_of_8_bits, self.name).pixels(box)
        if array.dtype != np.uint8 or self.channels not in (1, 3):
            raise _no_image(array, self.name)
        if array.ndim == 2:
            array = array[..., None]
        array = cut(array, box)
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


Picture = Decoded | Encoded | stacks.Stack


def open_image(data: bytes | np.ndarray, name: str) -> Picture:
    """A picture from a file's bytes, of which only the header is read, or from an array (uint8,
    grey or RGB).

    `name` is what errors call it. Raises BadImage if it is not an image, is beyond the limits, or
    is an array of other numbers.
    """
    if isinstance(data, np.ndarray):
        is_number = data.dtype in (np.uint8, np.uint16, np.float32)
        if not is_number or data.ndim not in (2, 3) or not data.size:
            raise _no_image(data, name)
        return Decoded(data, name)
    if not data:
        raise BadImage(f"{name} is empty: 0 bytes")

    # An ordinary JPEG that no Exif turns: Pillow, which takes longer, is not asked.
    header = jpeg.header(data) if jpeg.available() else None
    if header and not header.app1 and header.width * header.height <= max_pixels():
        return Encoded(data, name, header)

    stack = _open_stack(data, name)
    if isinstance(stack, stacks.Stack):
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


def _no_image(array: np.ndarray, name: str) -> BadImage:
    return BadImage(
        f"{name} is an array of {array.dtype} {array.shape}; "
        f"expected uint8 (h, w), (h, w, 1) or (h, w, 3)"
    )


def _open_stack(data: bytes, name: str) -> stacks.Stack | stacks.Header | None:
    """A .npy array, or a TIFF that Pillow does not read; the header alone of one that it reads;
    None for other files. Raises BadImage, within the limits."""
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
    accepted = pillow.USUAL_MEMORY * limit
    memory = header.bytes + 4 * header.height * header.width * header.channels  # as float32 too
    if header.height * header.width > limit or memory > accepted:
        raise BadImage(
            f"{name} is an image of {header.width} x {header.height} pixels and {header.channels} "
            f"channels, which takes {memory:,} bytes of memory; {accepted:,} bytes, and "
            f"{limit:,} pixels, are accepted; {pillow.REMEDY}"
        )
    return stacks.Stack(data, name, header)


# Pictures for people: photographs, and grey, are as they are. Of other images nobody knows which
# channel is red, so people see the mean of all channels, stretched from black to white.


def picture_for_people(picture: Picture) -> np.ndarray:
    """uint8 (h, w, 3). Raises BadImage."""
    if isinstance(picture, Encoded) or not is_stretched(picture):
        return picture.pixels()
    return pixels_for_people(picture.stored(picture.channels))


def picture_to_look_at(picture: Picture) -> np.ndarray:
    """The same for people who look for faulty images, uint8 (h, w, 3): grey of more than 8 bits is
    stretched too, as it often uses a small part of its range and would be black."""
    if is_stretched(picture):
        return pixels_for_people(picture.stored(picture.channels))
    return picture.pixels()


def is_stretched(picture: Picture) -> bool:
    """Whether `picture_to_look_at` stretches it."""
    if isinstance(picture, Encoded):
        return picture.channels == 1 and picture.many_bits
    return picture.channels not in (1, 3) or picture.many_bits


def pixels_for_people(pixels: np.ndarray) -> np.ndarray:
    """(h, w, C), uint8 or float32 -> uint8 (h, w, 3)."""
    channels = pixels.shape[2]
    if pixels.dtype == np.uint8 and channels in (1, 3):
        return np.repeat(pixels, 3 // channels, axis=2)
    pixels = as_floats(pixels)
    if channels != 3:
        pixels = pixels.mean(2, keepdims=True)
    black, white = np.percentile(pixels, STRETCHED)
    stretched = ((pixels - black) / max(white - black, 1e-9)).clip(0, 1)
    levels = as_bytes(stretched.astype(np.float32), "a picture")
    return np.repeat(levels, 3 // levels.shape[2], axis=2)


def prepared_for_people(images: "Tensor") -> "Tensor":
    """Prepared images (B, C, h, w), uint8 or float32 -> uint8 (B, 3, h, w)."""
    import torch

    if images.dtype == torch.uint8 and images.shape[1] == 3:
        return images
    pictures = images.cpu().permute(0, 2, 3, 1).numpy()  # (B, h, w, C)
    shown = np.stack([pixels_for_people(picture) for picture in pictures])
    return torch.from_numpy(shown).permute(0, 3, 1, 2)
