"""Pictures in files that Pillow reads, and the limits of what is decoded.

Boxes are (top, left, height, width) in pixels of the upright image.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from vitkit.data.images import jpeg, pillow, stacks
from vitkit.data.images.boxes import TURNS, Box, before_turn, checked, cut, reduced, upright
from vitkit.data.images.levels import BadImage, levels, on_white
from vitkit.system.limits import max_pixels

MEMORY = pillow.USUAL_MEMORY  # bytes for each of these pixels
SCANS = 10  # an ordinary progressive JPEG has so many
RAISE = "if you trust it, raise the limits with --max-pixels N"
REDUCTIONS = (8, 4, 2)  # a JPEG can be decoded at 1/n of its size


@dataclass(frozen=True, eq=False)
class Encoded:
    """A picture whose header has been read; its pixels are decoded when they are asked for."""

    data: bytes
    name: str
    jpeg_header: jpeg.Header | None = None
    """The header of an upright JPEG that jpeg.py can decode, without Pillow; None for other files.
    """
    tiff_header: stacks.Header | None = None
    """The header of a TIFF, where the package is installed that reads it to the last bit."""

    @cached_property
    def image(self) -> Image.Image:
        """As Pillow opens it, within the limits. Raises BadImage."""
        with as_bad_image(self.name):
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
        with as_bad_image(self.name):
            return pillow.orientation(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        if self.jpeg_header:
            return self.jpeg_header.height, self.jpeg_header.width
        width, height = self.image.size
        swapped, _, _ = TURNS[self.orientation]
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
        box = checked(box or (0, 0, *self.size), self.size)
        if self.jpeg_header:
            pixels = self._decode_with_header(box, reduce)
            if pixels is not None:
                return pixels
        stored_box = before_turn(box, self.size, self.orientation)
        with as_bad_image(self.name):
            pixels = self._decode_stored(stored_box, reduce)
        return upright(pixels, self.orientation)

    @property
    def channels(self) -> int:
        """How many it has: 1, 3, or with transparency 4."""
        if self.jpeg_header:
            return 3
        with as_bad_image(self.name):
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
        """The whole image, or a box of it, as the file has it: (h, w, c), uint8, or float32 if it has
        more than 8 bits: from 0 to 1, or floats as they are. Raises BadImage.

        c is 1 or 3; for a model of 4 `channels`, an image with transparency has 4, and for others it
        lies on white.
        """
        box = checked(box or (0, 0, *self.size), self.size)
        if self.jpeg_header:
            return self.pixels(box)
        image = self.image
        with as_bad_image(self.name):
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

    def _decode_with_header(self, box: Box, reduce: int) -> np.ndarray | None:
        """A box of a JPEG whose header is known; None if Pillow must decode it."""
        width = -(-self.jpeg_header.width // reduce)
        height = -(-self.jpeg_header.height // reduce)
        box = reduced(box, reduce, (height, width))
        return jpeg.region(self.data, *box, reduce, self.jpeg_header)

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


@contextmanager
def as_bad_image(name: str) -> Iterator[None]:
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
