"""Images that Pillow does not read: TIFF files with any number of channels and bits, read by tifffile,
and arrays that numpy saved (.npy).

At first only the header is read. Its sizes are compared with the limits before large memory is
allocated, and so is the size to which a compressed piece of a TIFF may grow.

Legend: h w pixels, C channels.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from vitkit.data.images.pillow import check_pieces, quiet
from vitkit.data.images.pixels import Box, as_bytes, cut, levels, upright, upright_size
from vitkit.system.errors import BadImage, VitkitError

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPageSeries

NPY = b"\x93NUMPY"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # classic and BigTIFF, in both orders of bytes
ORIENTATION = 274  # tag of TIFF
UPRIGHT = 1
BIG_TIFF = 43  # the third byte of a file with offsets of 8 bytes
MAX_PAGES = 1 << 16  # reading the directories of more pages takes too long
UNCOMPRESSED = 1
# Compressions that imagecodecs decodes into a buffer of the right size: none, LZW, deflate, PackBits,
# LZMA and Zstandard. With tifffile's own decoders, a few bytes may grow to any size.
COMPRESSIONS = (UNCOMPRESSED, 5, 8, 32773, 32946, 34925, 50000)


class StackHeader(NamedTuple):
    """The description of an image in its file."""

    height: int
    width: int
    channels: int
    dtype: np.dtype
    pages: int = 1
    """Images of one size in a TIFF file, which may be its channels."""
    orientation: int = UPRIGHT
    """Exif orientation, 1 to 8."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the stored image."""
        return self.height, self.width

    @property
    def bytes(self) -> int:
        """The size of the whole image in memory, in bytes."""
        return self.height * self.width * self.channels * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Stack:
    """A Reader of a picture with any number of channels that Pillow does not read: a TIFF or a .npy array."""

    data: bytes
    name: str
    header: StackHeader

    @property
    def kind(self) -> str:
        """The format: "NPY" or "TIFF"."""
        if is_npy(self.data):
            return "NPY"
        return "TIFF"

    @property
    def channels(self) -> int:
        """C, the number of channels."""
        return self.header.channels

    @property
    def many_bits(self) -> bool:
        """Whether the image has more than 8 bits a channel."""
        return self.header.dtype != np.uint8

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        return upright_size(self.header.size, self.header.orientation)

    def exif(self) -> Mapping[int, object]:
        """Empty, as Exif data of these formats is not read."""
        return {}

    def pixels(self, box: Box, reduce: int = 1) -> np.ndarray:
        """See `Picture.pixels`. Raises BadImage unless the image has 1 or 3 channels."""
        if self.channels not in (1, 3):
            raise BadImage(
                f"{self.name} has {self.channels} channels, which are not red, green and blue; a model "
                f"of such images has `model.channels={self.channels}`"
            )
        stored = as_bytes(self.stored(self.channels, box), self.name)
        if self.channels == 1:
            stored = np.repeat(stored, 3, axis=2)
        return stored

    def stored(self, channels: int, box: Box) -> np.ndarray:
        """See `Picture.stored`. The result has all channels. In a TIFF with as many pages as `channels`, each
        page is a channel."""
        array = read(self.data, channels)
        if not array.size:
            raise VitkitError("it has no pixels")
        stored = levels(array, self.name)
        return cut(upright(stored, self.header.orientation), box)


def is_npy(data: bytes) -> bool:
    """Whether these are the bytes of an array that numpy saved."""
    return data.startswith(NPY)


def is_tiff(data: bytes) -> bool:
    """Whether these are the bytes of a TIFF file."""
    return data.startswith(TIFF)


def header(data: bytes) -> StackHeader:
    """Read the header of a .npy or TIFF file. Raises VitkitError, with a sentence, if it is not an image,
    and exceptions of tifffile."""
    if is_npy(data):
        shape, dtype, _ = _npy_header(data)
        return _header_of(shape, dtype)
    with quiet("tifffile"), _opened(data) as file:
        found = _tiff_header(file)
    if found.dtype is None:  # tifffile knows no type with this number of bits
        raise VitkitError("its numbers are of a type that is not read here")
    return found


def read(data: bytes, channels: int) -> np.ndarray:
    """Read the stored image (h, w, C) in the file's own type. In a TIFF with as many pages as `channels`,
    each page is a channel. The caller has checked the header. Raises VitkitError, with a sentence, if the
    image cannot be read."""
    if is_npy(data):
        shape, dtype, start = _npy_header(data)
        stored = np.frombuffer(data, dtype, offset=start)
        return _channels_last(stored.reshape(shape))
    with quiet("tifffile"), _opened(data) as file:
        return _read_tiff(file, channels)


# Arrays


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, type and offset of an array. Raises VitkitError; a pickle is never opened."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or dtype.kind not in "buif":
        raise VitkitError(f"it is an array of {dtype}; an image is of integers or floats")
    if fortran and len(shape) > 1:
        raise VitkitError("its array is in Fortran order; save numpy.ascontiguousarray(image)")
    start = file.tell()
    wanted = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(data) - start != wanted:
        raise VitkitError(f"it has {len(data) - start:,} bytes of numbers, but needs {wanted:,}")
    return shape, dtype, start


def _header_of(shape: tuple[int, ...], dtype: np.dtype) -> StackHeader:
    """The header of an array, whose channels are its first or its last axis, whichever is shorter. Raises
    VitkitError for other shapes."""
    if len(shape) not in (2, 3) or 0 in shape:
        raise VitkitError(
            f"it is an array of shape {shape}; an image is (height, width), or "
            "(height, width, channels)"
        )
    if len(shape) == 2:
        height, width = shape
        return StackHeader(height, width, 1, dtype)
    height, width, channels = shape
    if shape[0] < shape[2]:
        channels, height, width = shape
    return StackHeader(height, width, channels, dtype)


def _channels_last(array: np.ndarray) -> np.ndarray:
    """(h, w), (h, w, C) or (C, h, w) -> (h, w, C)."""
    if array.ndim == 2:
        return array[..., None]
    if array.shape[0] < array.shape[2]:
        return array.transpose(1, 2, 0)
    return array


# TIFF


def _opened(data: bytes) -> "TiffFile":
    """Open a TIFF. Raises ImportError, with a sentence, if tifffile is not installed."""
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            "it is a TIFF of more channels or bits than Pillow reads, and tifffile is not "
            "installed: pip install 'vitkit[tiff]'"
        ) from None
    _check_chain(data)
    return tifffile.TiffFile(io.BytesIO(data))


def _check_chain(data: bytes) -> None:
    """Raise VitkitError if the pages of a TIFF cannot be counted.

    The directory of each page ends with the offset of the next directory. A chain that leads back to
    itself has no end, and tifffile would follow it forever.
    """
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
    if BIG_TIFF in data[2:4]:
        first, count_bytes, entry_bytes, place_bytes = 8, 8, 20, 8
    else:
        first, count_bytes, entry_bytes, place_bytes = 4, 2, 12, 4
    place = int.from_bytes(data[first : first + place_bytes], order)
    bytes_of_directories = 0
    pages = 0
    while 0 < place < len(data):
        entries = place + count_bytes
        end = entries + entry_bytes * int.from_bytes(data[place:entries], order)
        bytes_of_directories += end + place_bytes - place
        pages += 1
        if bytes_of_directories > len(data):
            raise VitkitError("its pages have no end: it is damaged")
        if pages > MAX_PAGES:
            raise VitkitError(f"it has more than {MAX_PAGES:,} pages")
        place = int.from_bytes(data[end : end + place_bytes], order)


def _tiff_header(file: "TiffFile") -> StackHeader:
    """The header of a TIFF, from its first series of pages."""
    series = file.series[0]
    page = file.pages.first
    orientation = UPRIGHT
    if ORIENTATION in page.tags and page.tags[ORIENTATION].value in range(1, 9):
        orientation = int(page.tags[ORIENTATION].value)
    if _is_one_image(file, series):
        shape = tuple(series.shape)
        if "S" in series.axes:  # samples: tifffile knows which axis the channels are
            channels = shape[series.axes.index("S")]
            height, width = (n for n, axis in zip(shape, series.axes, strict=True) if axis != "S")
            return StackHeader(height, width, channels, series.dtype, orientation=orientation)
        return _header_of(shape, series.dtype)._replace(orientation=orientation)
    if page.dtype is None:
        raise VitkitError("its pixels are numbers of a type that is not read here")
    return StackHeader(
        page.imagelength,
        page.imagewidth,
        page.samplesperpixel,
        page.dtype,
        pages=len(file.pages),
        orientation=orientation,
    )


def _is_one_image(file: "TiffFile", series: "TiffPageSeries") -> bool:
    """Whether the first series is one image instead of several pages. An array that tifffile wrote is one
    image, however many pages store it."""
    if len(series.shape) == 2:
        return True
    return len(series.shape) == 3 and ("S" in series.axes or file.is_shaped)


def _read_tiff(file: "TiffFile", channels: int) -> np.ndarray:
    """Read the stored image (h, w, C). Raises VitkitError, and exceptions of tifffile."""
    series = file.series[0]
    if _is_one_image(file, series):
        _check_compression(series.pages[0])
        for page in series.pages:
            if page is not None:  # pages that are stored together with the first have no directory
                _check_pieces(page)
        array = series.asarray()
        if "S" in series.axes and array.ndim == 3:
            return np.moveaxis(array, series.axes.index("S"), -1)
        return _channels_last(array)

    # Several pages are the channels if there are as many; otherwise the first page is the image
    pages = list(file.pages)[:1]
    if len(file.pages) == channels:
        pages = list(file.pages)
    planes = []
    for page in pages:
        _check_compression(page)
        _check_pieces(page)
        if page.shape != pages[0].shape or page.dtype != pages[0].dtype:
            raise VitkitError("its pages have several sizes, so they are not channels of one image")
        planes.append(page.asarray())
    if len(planes) == 1:
        return _channels_last(planes[0])
    return np.stack(planes, -1)


def _check_pieces(page) -> None:
    """Raise VitkitError for a page that lacks some of its strips or tiles, which tifffile would read as
    zeros. A tile that GDAL omits because it is empty has offset 0 and size 0. The size is not needed if
    the pixels are contiguous."""
    check_pieces(len(page.dataoffsets), math.prod(page.chunked))
    for place, size in zip(page.dataoffsets, page.databytecounts, strict=False):
        if (place == 0) != (size == 0) and not (place and page.is_contiguous):
            raise VitkitError(f"one of its strips or tiles has {size:,} bytes at byte {place:,}")


def _check_compression(page) -> None:
    """Raise VitkitError, or ImportError with a sentence, for a compression that is not read here."""
    if page.compression not in COMPRESSIONS:
        # tifffile has no name for an unknown number
        unknown = f"an unknown method ({page.compression!r})"
        name = getattr(page.compression, "name", unknown)
        raise VitkitError(
            f"it is compressed by {name}; save it uncompressed, or with LZW, deflate or Zstandard"
        )
    if page.compression == UNCOMPRESSED:
        return
    try:
        import imagecodecs  # noqa: F401
    except ImportError:
        raise ImportError(
            "it is a compressed TIFF, and imagecodecs is not installed: pip install 'vitkit[tiff]'"
        ) from None
