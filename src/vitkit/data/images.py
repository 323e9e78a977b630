"""Image files to pixels: upright, RGB, 8 bits a channel, or one sentence that says what is wrong.

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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from PIL import Image

from vitkit.data.engine import jpeg, pillow
from vitkit.system.limits import max_pixels

Box = tuple[int, int, int, int]

MEMORY = pillow.USUAL_MEMORY  # bytes for each of these pixels
SCANS = 10  # an ordinary progressive JPEG has so many
RAISE = "if you trust it, raise the limits with --max-pixels N"
REDUCTIONS = (8, 4, 2)  # a JPEG can be decoded at 1/n of its size

# What makes a stored image of each Exif orientation upright: swap its rows and columns, then mirror
# top and bottom, then left and right.
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


class BadImage(ValueError):
    """An image that cannot be used; the message names it and says what is wrong."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """A picture that is an array already: uint8 (h, w), (h, w, 1) or (h, w, 3)."""

    array: np.ndarray
    name: str
    kind: ClassVar[str] = "array"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.array.shape[:2]

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3), of the whole or of a box; maybe a view, so do not write to it.

        `reduce` is for JPEG.
        """
        array = self.array
        if array.ndim == 2:
            array = array[..., None]
        if box is not None:
            top, left, height, width = _checked(box, self.size)
            array = array[top : top + height, left : left + width]
        if array.shape[2] == 1:
            array = np.repeat(array, 3, axis=2)
        return array


@dataclass(frozen=True, eq=False)
class Encoded:
    """A picture whose header has been read; its pixels are decoded when they are asked for."""

    data: bytes
    name: str
    jpeg_header: jpeg.Header | None = None
    """The header of an upright JPEG that jpeg.py can decode, without Pillow; None for other files.
    """

    @cached_property
    def image(self) -> Image.Image:
        """As Pillow opens it, within the limits. Raises BadImage."""
        with _as_bad_image(self.name):
            image = pillow.open_lazily(self.data)
        limit = max_pixels()
        pixels = image.width * image.height
        if not 0 < pixels <= limit:
            raise BadImage(
                f"{self.name} claims to be {image.width} x {image.height} pixels; "
                f"from 1 to {limit:,} pixels are accepted; {RAISE}"
            )
        memory = pillow.memory(image)
        if memory > MEMORY * limit:
            raise BadImage(
                f"{self.name} is a {image.format} of {image.width} x {image.height} pixels, which "
                f"takes about {memory:,} bytes of memory to decode, and "
                f"{MEMORY * limit:,} are accepted; {RAISE}"
            )
        scans = SCANS * limit // pixels
        if self.data[:2] == jpeg.SOI and jpeg.has_more_scans(self.data, scans):
            raise BadImage(
                f"{self.name} is a JPEG of more than {scans:,} scans of {image.width} x "
                f"{image.height} pixels, which takes very long to decode; {RAISE}"
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
        """Exif's: 1 to 8, where 1 is upright.

        Raises BadImage when it takes a decode to know and that fails.
        """
        if self.jpeg_header:
            return pillow.UPRIGHT
        with _as_bad_image(self.name):
            return pillow.orientation(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        if self.jpeg_header:
            return self.jpeg_header.height, self.jpeg_header.width
        width, height = self.image.size
        swapped, _, _ = _TURNS[self.orientation]
        if swapped:
            return width, height
        return height, width

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3), writable, of the whole image or of a box of it. Raises BadImage.

        Of a JPEG only what the box needs is decoded where the library for it is there (see
        jpeg.py). reduce: 2, 4 or 8 decodes a JPEG at 1/reduce of its size, ceil(h / reduce) by
        ceil(w / reduce) pixels or one more where the box lies across; other formats ignore it. The
        box remains in pixels of the full size.
        """
        box = _checked(box or (0, 0, *self.size), self.size)
        if self.jpeg_header:
            pixels = self._decode_with_header(box, reduce)
            if pixels is not None:
                return pixels
        stored_box = _before_turn(box, self.size, self.orientation)
        with _as_bad_image(self.name):
            pixels = self._decode_stored(stored_box, reduce)
        return upright(pixels, self.orientation)

    def _decode_with_header(self, box: Box, reduce: int) -> np.ndarray | None:
        """A box of a JPEG whose header is known; None if Pillow must decode it."""
        width = -(-self.jpeg_header.width // reduce)
        height = -(-self.jpeg_header.height // reduce)
        box = _reduced(box, reduce, (height, width))
        return jpeg.region(self.data, *box, reduce, self.jpeg_header)

    def _decode_stored(self, box: Box, reduce: int) -> np.ndarray:
        """A box of the image as it is stored, before any turn."""
        image = self.image
        if image.format == "JPEG":
            if reduce > 1:
                image = pillow.open_lazily(self.data)  # anew, as a draft changes an image for good
                image.draft("RGB", (image.width // reduce, image.height // reduce))
                box = _reduced(box, reduce, (image.height, image.width))
            pixels = jpeg.region(self.data, *box, reduce=reduce)
            if pixels is not None:
                return pixels
        return pillow.rgb(image, box)


Picture = Decoded | Encoded


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

    picture = Encoded(data, name)
    picture.image  # noqa: B018 raises BadImage for what is none, or is beyond the limits
    return picture


def _open_array(array: np.ndarray, name: str) -> Decoded:
    grey_or_rgb = array.ndim in (2, 3) and array.shape[2:] in ((), (1,), (3,))
    if array.dtype != np.uint8 or not grey_or_rgb or not array.size:
        raise BadImage(
            f"{name} is an array of {array.dtype} {array.shape}; "
            f"expected uint8 (h, w), (h, w, 1) or (h, w, 3)"
        )
    return Decoded(array, name)


def _checked(box: Box, size: tuple[int, int]) -> Box:
    """The same box, which must lie within an image of `size` (height, width)."""
    top, left, height, width = box
    assert min(top, left) >= 0 and min(height, width) > 0, box
    assert top + height <= size[0] and left + width <= size[1], (box, size)
    return box


def _reduced(box: Box, reduce: int, size: tuple[int, int]) -> Box:
    """The box of an image at 1/reduce of its size, `size` (height, width), that covers a box of the
    full one."""
    top, left, height, width = box
    bottom = min(-(-(top + height) // reduce), size[0])
    right = min(-(-(left + width) // reduce), size[1])
    top = top // reduce
    left = left // reduce
    return top, left, bottom - top, right - left


def _before_turn(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Where a box of the upright image, of `size` (height, width), lies in the image as it is
    stored."""
    swapped, flip_rows, flip_columns = _TURNS[orientation]
    top, left, height, width = box
    if flip_rows:
        top = size[0] - top - height
    if flip_columns:
        left = size[1] - left - width
    if swapped:
        return left, top, width, height
    return top, left, height, width


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (h, w, 3) as they are stored, turned upright by Exif's orientation, contiguous."""
    swapped, flip_rows, flip_columns = _TURNS[orientation]
    if swapped:
        pixels = pixels.transpose(1, 0, 2)
    if flip_rows:
        pixels = pixels[::-1]
    if flip_columns:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


@contextmanager
def _as_bad_image(name: str) -> Iterator[None]:
    """Pillow's many ways to fail as BadImage.

    Its warnings are silenced: what they tell does not spoil the pixels.
    """
    try:
        with pillow.limited_to(max_pixels()):
            yield
    except BadImage:
        raise
    except Image.UnidentifiedImageError:
        known = ", ".join(pillow.FORMATS)
        raise BadImage(
            f"{name} is not an image of a format that is read here ({known}), or its header is damaged"
        ) from None
    except Image.DecompressionBombError as error:
        raise BadImage(f"{name} is refused as a decompression bomb: {error}; {RAISE}") from error
    except Exception as error:
        # a damaged file raises nearly anything: SyntaxError, struct.error, KeyError ...
        raise BadImage(f"{name} cannot be decoded: {str(error) or type(error).__name__}") from error
