"""A box of a JPEG, decoding only the scanlines and columns that the box needs.

An Inception crop keeps a part of a photograph, so that much of a full decode is thrown away. libjpeg-turbo can decode a
part through its TurboJPEG 3 interface, which reports errors by return code, so that plain ctypes is enough. It comes
from the system, from conda, or from the `turbojpeg` wheel (the extra `fast`); without it `region` answers None and the
caller decodes the whole image in the ordinary way.

Exactness: inside the box the pixels are those of a full decode by Pillow (accurate DCT, smooth chroma upsampling).
Smooth upsampling looks at one neighbour on each side, so the columns asked of the library reach beyond the box and
are cut off again.

Untrusted files: only ordinary ones are handed to native code (one 8-bit baseline or progressive Huffman frame, grey or
three components, usual subsampling, complete scans, an end marker), and warnings are errors. A decoder serves one image
and is never reused: libjpeg keeps the tables of the image before and would decode a file that lacks its own with them.
So there is no state, and `region` is safe under threads and fork.
"""

import ctypes
import functools
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

MAX_PIXELS = 89_478_485  # Pillow's limit for a bomb; beyond it the strict decoder decides
MAX_SEGMENTS = 1000  # before the first scan; a colour profile may take 255
MAX_SCANS = 100  # a progressive file has about ten; thousands of them are a known denial of service
SCALES = (1, 2, 4, 8)

_SOI, _EOI, _SOS, _APP1 = b"\xff\xd8", b"\xff\xd9", 0xDA, 0xE1
_BARE = {0x00, 0x01, 0xFF, *range(0xD0, 0xDA)}  # no length follows; no ordinary header has them
_FRAMES = {*range(0xC0, 0xD0)} - {
    0xC4,
    0xC8,
}  # every coding: lossless, hierarchical, arithmetic ...
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2  # ... and the three that are decoded here
# Luma's factors in 4:4:4, 4:2:2, 4:4:0, 4:2:0, 4:1:1
_SAMPLINGS = (b"\x11", b"\x21", b"\x12", b"\x22", b"\x41")

# turbojpeg.h
_DECOMPRESS, _RGB, _STOP_ON_WARNING, _SCAN_LIMIT = 1, 0, 0, 13
_NEEDED = "Init Set DecompressHeader SetScalingFactor SetCroppingRegion Decompress8 Destroy".split()


class Header(NamedTuple):
    """What an ordinary JPEG says before its first scan. Sizes are raw: an Exif orientation is not applied."""

    height: int
    """Pixels."""
    width: int
    """Pixels."""
    progressive: bool
    column: int
    """Pixels across one column of coding units: a partial decode starts at a multiple of it."""
    components: bytes
    """Their identifiers."""
    app1: bool = False
    """Whether an APP1 segment (Exif or XMP) is there, which may ask for a rotation."""
    scan: int = 0
    """Where in the data the first scan begins."""


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


class _Factor(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("num", "denom")]


def header(data: bytes) -> Header | None:
    """The header of a JPEG that `region` can take, or None for everything else. Microseconds; nothing is decoded."""
    if data[:2] != _SOI:
        return None
    frame = None
    app1 = False
    at = 2
    for _ in range(MAX_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == _SOS:
            return frame and frame._replace(app1=app1, scan=at)
        if marker in _BARE:
            return None
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker in _FRAMES:
            if frame:  # a second one
                return None
            frame = _frame(marker, data[at + 4 : end])
            if not frame:
                return None
        app1 |= marker == _APP1
        at = end
    return None


def region(
    data: bytes,
    top: int,
    left: int,
    height: int,
    width: int,
    scale: int = 1,
    known: Header | None = None,
) -> np.ndarray | None:
    """The pixels of one box of a JPEG: uint8 RGB (height, width, 3), contiguous, the caller's own.

    data: the whole file. top, left, height, width: pixels of the raw image, before any Exif rotation.
    scale: 1, 2, 4 or 8. Above 1 the image is decoded at 1/scale of its size, ceil(H / scale) by ceil(W / scale), and
    box and result are in pixels of that smaller image: libjpeg's reduction (Pillow's `draft`), not a resized decode.
    known: what header(data) returned, if it has been read already.

    Returns None if the caller has to decode in the ordinary way: no library, not an ordinary JPEG, or damaged.
    Raises ValueError for a box that is empty or reaches out of the image, and for another scale.
    """
    if scale not in SCALES:
        raise ValueError(f"scale is {scale}; a JPEG is decoded at 1/scale for scale in {SCALES}")
    known = known or header(data)
    library = _library()
    if library is None or known is None or not _complete(data, known):
        return None
    full_height = -(-known.height // scale)
    full_width = -(-known.width // scale)
    empty = min(height, width) < 1
    outside = min(top, left) < 0 or top + height > full_height or left + width > full_width
    if empty or outside:
        raise ValueError(
            f"box {height}x{width} at ({top}, {left}) does not lie within an image of {full_height}x{full_width} pixels"
        )
    start, stop = _columns(left, width, full_width, known.column // scale)
    pixels = np.empty((height, stop - start, 3), np.uint8)
    if not _decode(library, data, _Region(start, top, stop - start, height), scale, pixels):
        return None
    # A copy of microseconds: torch resizes contiguous rows about three times as fast as strided ones.
    return np.ascontiguousarray(pixels[:, left - start : left - start + width])


def available() -> bool:
    """Whether a library that decodes parts was found; without one `region` is always None."""
    return _library() is not None


def _frame(marker: int, body: bytes) -> Header | None:
    """What a frame segment says, or None for a frame of another kind."""
    if marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE):
        return None
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        return None
    bits = body[0]
    height = int.from_bytes(body[1:3])
    width = int.from_bytes(body[3:5])
    count = body[5]  # of components
    samplings = body[7::3]  # a byte a component: horizontal factor, vertical factor
    usual_colour = samplings[:1] in _SAMPLINGS and samplings[1:] == b"\x11\x11"
    ordinary = count == 1 or (count == 3 and usual_colour)
    if bits != 8 or not ordinary or not 0 < height * width <= MAX_PIXELS:
        return None
    column = 8 if count == 1 else 8 * (samplings[0] >> 4)
    return Header(height, width, marker == _PROGRESSIVE, column, components=body[6::3])


def _complete(data: bytes, header: Header) -> bool:
    """Whether nothing is missing below the box either: a truncated file is refused for every box, not for some."""
    if data.rfind(_EOI, header.scan) < 0:
        return False
    return not header.progressive or _refined(data, header)


def _refined(data: bytes, header: Header) -> bool:
    """Whether the scans send every bit of every coefficient; what they leave out is smoothed, and versions differ."""
    missing = {identifier: [True] * 64 for identifier in header.components}
    at = header.scan
    end = data.find(_EOI, at)
    for _ in range(MAX_SCANS):
        # per component an identifier and tables; then the first and last coefficient, and the bits
        count = data[at + 4] if at + 4 < len(data) else 0
        tail = data[at + 5 : at + 8 + 2 * count]
        if len(tail) < 2 * count + 3:
            return False
        first, last, low_bit = tail[-3], tail[-2], tail[-1] & 15
        for identifier in tail[: 2 * count : 2]:
            if identifier in missing and first <= last < 64:
                missing[identifier][first : last + 1] = [low_bit > 0] * (last + 1 - first)
        # in coded data FF is followed by 00 or a restart marker
        at = data.find(b"\xff\xda", at + 8, end)
        if at < 0:
            return not any(any(bits) for bits in missing.values())
    return False


def _columns(left: int, width: int, full_width: int, column: int) -> tuple[int, int]:
    """The columns to ask for, so that smooth upsampling within the box has its neighbours: from, to."""
    narrow = 5  # fewer pixels have two chroma samples, which are not smoothed
    start = max(min(left - 1, full_width - narrow), 0) // column * column
    return start, min(max(left + width + 2, start + narrow), full_width)


def _decode(
    library: ctypes.CDLL, data: bytes, box: _Region, scale: int, pixels: np.ndarray
) -> bool:
    """Fill `pixels` (h, w, 3); False on an error or a warning. The GIL is free meanwhile."""
    handle = library.tj3Init(_DECOMPRESS)
    if not handle:
        return False
    try:
        return not (
            library.tj3Set(handle, _STOP_ON_WARNING, 1)
            or library.tj3Set(handle, _SCAN_LIMIT, MAX_SCANS)
            or library.tj3DecompressHeader(handle, data, len(data))
            or library.tj3SetScalingFactor(handle, _Factor(1, scale))
            or library.tj3SetCroppingRegion(handle, box)
            or library.tj3Decompress8(
                handle, data, len(data), pixels.ctypes.data, pixels.strides[0], _RGB
            )
        )
    finally:
        library.tj3Destroy(handle)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The first library that can decode a part: the system's or conda's, which are kept up to date, or the wheel's."""
    for path in (*_system_paths(), *_wheel_paths()):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if all(hasattr(library, f"tj3{name}") for name in _NEEDED):
            return _prototyped(library)
    return None


def _system_paths() -> list[str]:
    """Where TurboJPEG usually lies.

    A bare name is left to the dynamic loader: `ctypes.util.find_library` would start a compiler where nothing is found.
    """
    prefix = Path(sys.prefix)
    if sys.platform == "win32":  # never a bare name: Windows would look all along PATH
        return [str(prefix / "Library/bin/turbojpeg.dll"), r"C:\libjpeg-turbo64\bin\turbojpeg.dll"]
    if sys.platform == "darwin":
        brew = ["/opt/homebrew/opt/jpeg-turbo", "/usr/local/opt/jpeg-turbo"]
        homes = [str(prefix), *brew, "/opt/libjpeg-turbo"]
        return [f"{home}/lib/libturbojpeg.dylib" for home in homes]
    name = "libturbojpeg.so.0"
    return [str(prefix / "lib" / name), name, f"/opt/libjpeg-turbo/lib64/{name}"]


def _wheel_paths() -> list[str]:
    """The library in the installed `turbojpeg` wheel, found by its list of files; the package is not imported."""
    try:
        files = importlib.metadata.files("turbojpeg") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    library = re.compile(r"(lib)?turbojpeg.*(\.so\.[\d.]+|\.dylib|\.dll)")
    return [str(file.locate()) for file in files if library.fullmatch(file.name)]


def _prototyped(library: ctypes.CDLL) -> ctypes.CDLL:
    handle, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    library.tj3Init.restype = handle
    library.tj3Init.argtypes = [integer]
    library.tj3Set.argtypes = [handle, integer, integer]
    library.tj3DecompressHeader.argtypes = [handle, ctypes.c_char_p, size]
    library.tj3SetScalingFactor.argtypes = [handle, _Factor]
    library.tj3SetCroppingRegion.argtypes = [handle, _Region]
    pixels = ctypes.c_void_p
    library.tj3Decompress8.argtypes = [handle, ctypes.c_char_p, size, pixels, integer, integer]
    library.tj3Destroy.argtypes = [handle]
    library.tj3Destroy.restype = None
    return library
