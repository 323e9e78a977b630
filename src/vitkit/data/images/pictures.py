"""Decode image files to pixels: upright, RGB, 8 bits a channel.

`Picture` separates untrusted files from all other code: every exception of a decoder becomes BadImage,
with one sentence, and the pixels have the promised shape and type.

`pixels` is for models of photographs. `stored` keeps the channels and the bits of the file, for models
of other images: see preprocessing.py.

How properties of files are treated:
- An Exif or XMP orientation is applied. Of an animation or a multi-page file the first frame is read.
- Transparent images are composited on white, as viewers show them. Without the alpha channel, hidden
  colours would become visible.
- 16-bit grey is scaled by its white level (65535, or the file's own), never clipped. Floating point is
  scaled by the smallest of 1, 255 and 65535 that is not exceeded; if all are, from its own minimum to
  its maximum.
- Colour profiles are ignored, because the published models were trained on stored pixels.
- Truncated and damaged files are refused, and so are files beyond the limits below, before large
  memory is allocated.

Limits: `max_pixels()` pixels; USUAL_MEMORY bytes of memory per pixel of this limit while an image is
decoded; for a JPEG, SCANS times the limit as the product of its scans and pixels.

Boxes are (top, left, height, width) in pixels of the upright image.

Legend: B images, C channels, h w pixels.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vitkit.data.images import jpeg, pillow, stacks
from vitkit.data.images.pillow import as_bad_image
from vitkit.data.images.pixels import Box, as_bytes, as_floats, checked
from vitkit.data.images.readers import Decoded, Encoded, Reader, no_image
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadImage
from vitkit.system.storage.files import what_came_instead

if TYPE_CHECKING:
    from torch import Tensor

STRETCHED = (1, 99)  # percentiles that are shown as black and white


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture whose header has been read; its pixels are decoded on request.

    Attributes and methods raise BadImage, and nothing else, for a file that cannot be decoded and for a
    picture without pixels.
    """

    reader: Reader

    @property
    def name(self) -> str:
        """The name of the picture in error messages."""
        return self.reader.name

    @property
    def kind(self) -> str:
        """The format: one of pillow.FORMATS, "TIFF", "NPY" or "array"."""
        with self._reading():
            return self.reader.kind

    @cached_property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image, at least 1 each. It may require a decode."""
        with self._reading():
            height, width = self.reader.size
        if min(height, width) < 1:
            raise BadImage(f"{self.name} has no pixels: it is {width} x {height}")
        return height, width

    @cached_property
    def channels(self) -> int:
        """C, the number of channels: of photographs 1, 3, or 4 with transparency."""
        with self._reading():
            channels = self.reader.channels
        if channels < 1:
            raise BadImage(f"{self.name} has no channels")
        return channels

    @cached_property
    def many_bits(self) -> bool:
        """Whether the image has more than 8 bits a channel."""
        with self._reading():
            return self.reader.many_bits

    @property
    def colours_are_known(self) -> bool:
        """Whether the picture can be converted to red, green and blue: it is a photograph, or grey.
        For other images it is unknown which channel is red."""
        return isinstance(self.reader, Encoded) or self.channels in (1, 3)

    def exif(self) -> Mapping[int, object]:
        """The camera's record of the photograph, by Exif tag; empty if there is none."""
        with self._reading():
            return self.reader.exif()

    def pixels(self, box: Box | None = None, reduce: int = 1) -> np.ndarray:
        """RGB uint8 (h, w, 3) of the image, or of a box of it. It may be a view of an array; that of a file
        is writable. Raises BadImage, also for channels or values that are not colours of 8 bits.

        reduce: 2, 4 or 8 decodes a JPEG at 1/reduce of its size: ceil(h / reduce) by ceil(w / reduce)
            pixels, or one more if the box does not start at a multiple. Other formats ignore it. The box is
            always in pixels of the full size.
        """
        box = checked(box or (0, 0, *self.size), self.size)
        with self._reading():
            pixels = self.reader.pixels(box, reduce)
        if reduce == 1:
            self._check(pixels, box)
        return pixels

    def stored(self, channels: int, box: Box | None = None) -> np.ndarray:
        """The image, or a box of it, with the values of the file: (h, w, c), uint8, or float32 for more than
        8 bits: integers scaled to 0 to 1, floats unchanged. Raises BadImage.

        channels: number of channels of the model. c may differ from it, see readers.py and stacks.py.
        """
        box = checked(box or (0, 0, *self.size), self.size)
        with self._reading():
            stored = self.reader.stored(channels, box)
        self._check(stored, box)
        return stored

    def _reading(self) -> AbstractContextManager[None]:
        """A context in which every exception of a decoder becomes BadImage."""
        if isinstance(self.reader, Decoded) and self.reader.is_plain:
            return nullcontext()
        return as_bad_image(self.name)

    def _check(self, pixels: np.ndarray, box: Box) -> None:
        """Raise BadImage if a decoder returned pixels that differ from the header."""
        _, _, height, width = box
        if pixels.ndim != 3 or pixels.shape[:2] != (height, width) or not pixels.size:
            shape = " x ".join(map(str, pixels.shape))
            raise BadImage(
                f"{self.name} is damaged: its header promises {height} x {width} pixels, but {shape} "
                "numbers were decoded"
            )


def open_image(data: bytes | np.ndarray, name: str) -> Picture:
    """A picture from the bytes of a file, of which only the header is read, or from an array (uint8,
    uint16 or float32).

    `name` is used in error messages. Raises BadImage for data that are not an image or beyond the
    limits, and for an array of another type.
    """
    if isinstance(data, np.ndarray):
        is_number = data.dtype in (np.uint8, np.uint16, np.float32)
        if not is_number or data.ndim not in (2, 3) or not data.size:
            raise no_image(data, name)
        return Picture(Decoded(data, name))
    if not data:
        raise BadImage(f"{name} is empty: 0 bytes")

    # An ordinary JPEG without Exif does not need Pillow, which takes longer to open it
    header = jpeg.header(data) if jpeg.available() else None
    if header and not header.app1 and header.width * header.height <= max_pixels():
        return Picture(Encoded(data, name, header))

    if instead := what_came_instead(data):
        raise BadImage(f"{name} is {instead}")
    with as_bad_image(name):
        if stacks.is_npy(data) or stacks.is_tiff(data):
            reader = _stack_reader(data, name)
        else:
            reader = _opened(Encoded(data, name))
    return Picture(reader)


def _opened(reader: Encoded) -> Encoded:
    """The reader, after its image was opened. Raises BadImage if it is no image, or beyond the limits."""
    reader.image  # noqa: B018 the property opens the image
    return reader


def in_memory(picture: Picture) -> Picture:
    """Decode a picture now, to prepare it for several models. A picture with transparency, more bits or
    more channels is returned unchanged, because models read these differently. Raises BadImage."""
    if picture.channels not in (1, 3) or picture.many_bits:
        return picture
    return Picture(Decoded(picture.pixels(), picture.name))


def _stack_reader(data: bytes, name: str) -> Reader:
    """The reader of a .npy array or a TIFF. Raises BadImage beyond the limits, and any exception for a
    damaged file."""
    header: stacks.StackHeader | None = None
    try:
        header = stacks.header(data)
    except Exception:  # a damaged file, or one that tifffile does not read
        if not stacks.is_tiff(data) or not pillow.can_open(data):
            raise  # otherwise Pillow reads it, although tifffile does not

    # Pillow reads most TIFF files, but not all bits of those with more than 8
    if header is None:
        return _opened(Encoded(data, name))
    if stacks.is_tiff(data) and header.channels <= 4 and pillow.can_open(data, header.size):
        return _opened(Encoded(data, name, tiff_header=header))

    # Files for tifffile and numpy, within the limits
    limit = max_pixels()
    accepted = pillow.USUAL_MEMORY * limit
    # The picture and a copy in float32
    memory = header.bytes + 4 * header.height * header.width * header.channels
    if header.height * header.width > limit or memory > accepted:
        raise BadImage(
            f"{name} is an image of {header.width} x {header.height} pixels and {header.channels} "
            f"channels, which takes {memory:,} bytes of memory; at most {accepted:,} bytes and "
            f"{limit:,} pixels are accepted; {pillow.REMEDY}"
        )
    return stacks.Stack(data, name, header)


# Pictures for people. Photographs and grey images are shown unchanged. Which channel of another image is
# red is unknown, so people see the mean of all channels, stretched from black to white.


def picture_for_people(picture: Picture) -> np.ndarray:
    """Pixels of a picture to show to people, uint8 (h, w, 3). Raises BadImage."""
    if isinstance(picture.reader, Encoded) or not is_stretched(picture):
        return picture.pixels()
    return pixels_for_people(picture.stored(picture.channels))


def picture_to_look_at(picture: Picture) -> np.ndarray:
    """Pixels of a picture for people who look for faulty images, uint8 (h, w, 3). Grey of more than 8 bits
    is stretched too, because it often uses a small part of its range and would look black."""
    if is_stretched(picture):
        return pixels_for_people(picture.stored(picture.channels))
    return picture.pixels()


def is_stretched(picture: Picture) -> bool:
    """Whether `picture_to_look_at` stretches a picture."""
    if isinstance(picture.reader, Encoded):
        return picture.channels == 1 and picture.many_bits
    return picture.channels not in (1, 3) or picture.many_bits


def pixels_for_people(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels to show them to people: (h, w, C), uint8 or float32 -> uint8 (h, w, 3)."""
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
    """Convert prepared images to show them to people: (B, C, h, w), uint8 or float32 -> uint8
    (B, 3, h, w)."""
    import torch

    if images.dtype == torch.uint8 and images.shape[1] == 3:
        return images
    pictures = images.cpu().permute(0, 2, 3, 1).numpy()  # (B, h, w, C)
    shown = np.stack([pixels_for_people(picture) for picture in pictures])
    return torch.from_numpy(shown).permute(0, 3, 1, 2)
