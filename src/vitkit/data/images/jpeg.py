"""Decode a box of a JPEG, reading only the scanlines and columns that it needs.

An Inception crop keeps a part of a photograph, so most of a full decode is discarded.
libjpeg-turbo can decode a part: its TurboJPEG 3 interface is called through ctypes (it reports
errors by return code). The library comes from the system, from conda, or from the `turbojpeg` wheel
(the extra `fast`). Without it `region` returns None, and the caller decodes the whole image with
Pillow.

Exactness: the pixels of the box equal those of a full decode by Pillow (accurate DCT, smooth chroma
upsampling). Smooth upsampling reads one neighbour on each side, so columns around the box are decoded
as well and cropped afterwards.

Untrusted files: only ordinary files are passed to native code (one 8-bit baseline or progressive
Huffman frame, grey or three components, usual subsampling, complete scans, an end marker), and
warnings are errors. There is no state, so `region` is safe with threads and fork.

Terms of the JPEG standard: a file is a sequence of segments, each with a marker (FF and a code); a
frame segment (SOF) has the image's size and components; scans (SOS) hold the coefficients, in a
progressive file bit by bit.
"""

import ctypes
import functools
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.system.errors import BadSettings

# Half of what pictures.py accepts. Pillow warns of a decompression bomb above it, and decodes those alone.
MAX_PIXELS = 89_478_485
MAX_SEGMENTS = 1000  # before the first scan; a colour profile may take 255
MAX_SCANS = 100  # a progressive file has about ten; files with more are left to Pillow
# Largest product of pixels and scans: ten scans of the largest image. Each scan is a pass over the whole
# image but may take only a few bytes of the file, so thousands of scans are a known denial of service.
MAX_SCANNED = 1_789_569_700
REDUCTIONS = (1, 2, 4, 8)  # a JPEG can be decoded at 1/n of its size
COEFFICIENTS = 64  # of a block of 8 x 8 pixels

# Markers: start and end of the image, start of a scan, Exif or XMP
SOI = b"\xff\xd8"
EOI = b"\xff\xd9"
SOS = 0xDA
START_OF_SCAN = bytes([0xFF, SOS])
# In coded data, FF is followed by 00 or a restart marker (D0 to D7); FF before FF fills space.
MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)
APP1 = 0xE1
# Markers without a length after them; no ordinary header has them
WITHOUT_LENGTH = {0x00, 0x01, 0xFF, *range(0xD0, 0xDA)}
# Frames of every coding (lossless, hierarchical, arithmetic ...): C0 to CF without two other segments
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8}
# The frames that are decoded here
BASELINE = 0xC0
EXTENDED = 0xC1
PROGRESSIVE = 0xC2
# Luma's sampling factors in 4:4:4, 4:2:2, 4:4:0, 4:2:0, 4:1:1
SAMPLINGS = (b"\x11", b"\x21", b"\x12", b"\x22", b"\x41")


class Header(NamedTuple):
    """The header of an ordinary JPEG, up to its first scan.

    Sizes are those of the stored image, before any Exif rotation.
    """

    height: int
    width: int
    progressive: bool
    column: int
    """Width of a coding unit in pixels; a partial decode starts at a multiple of it."""
    components: bytes
    """Identifiers of the components."""
    app1: bool = False
    """Whether there is an APP1 segment (Exif or XMP), which may contain an orientation."""
    scan: int = 0
    """Offset of the first scan in the file."""


def available() -> bool:
    """Whether a library that decodes parts was found; without it `region` always returns None."""
    return library() is not None


def region(
    data: bytes,
    top: int,
    left: int,
    height: int,
    width: int,
    reduce: int = 1,
    known: Header | None = None,
) -> np.ndarray | None:
    """Decode one box of a JPEG: uint8 RGB (height, width, 3), contiguous and writable.

    data: the whole file.
    top, left, height, width: pixels of the stored image, before any Exif rotation.
    reduce: 1, 2, 4 or 8. The image is decoded at 1/reduce of its size, ceil(H / reduce) by
        ceil(W / reduce), and box and result are in pixels of that smaller image. This is libjpeg's
        reduction (Pillow's `draft`), not a resize after decoding.
    known: header(data), if it was read before.

    Returns None if the caller must decode the image with Pillow: if there is no library, if the JPEG is
    not an ordinary one, or if it is damaged. Raises VitkitError for a box that is empty or not within the
    image, and for another `reduce`.
    """
    if reduce not in REDUCTIONS:
        raise BadSettings(f"reduce is {reduce}; a JPEG is decoded at 1/n for n in {REDUCTIONS}")
    turbo = library()
    known = known or header(data)
    if turbo is None or known is None:
        return None
    # An incomplete file is refused for every box, also where only the part below the box is missing
    if data.rfind(EOI, known.scan) < 0 or (known.progressive and not _all_bits_sent(data, known)):
        return None

    # The box must lie within the reduced image
    full_height = -(-known.height // reduce)
    full_width = -(-known.width // reduce)
    empty = min(height, width) < 1
    outside = min(top, left) < 0 or top + height > full_height or left + width > full_width
    if empty or outside:
        raise BadSettings(
            f"box {height}x{width} at ({top}, {left}) does not lie within an image of "
            f"{full_height}x{full_width} pixels"
        )

    # Decode the columns that the box needs, and crop them
    start, stop = _columns(left, width, full_width, known.column // reduce)
    pixels = np.empty((height, stop - start, 3), np.uint8)
    box = _Region(start, top, stop - start, height)
    max_scans = min(MAX_SCANS, max(MAX_SCANNED // (known.height * known.width), 1))
    if not _decode(turbo, data, box, reduce, max_scans, pixels):
        return None
    # The copy takes microseconds, and torch resizes contiguous rows about three times as fast.
    return np.ascontiguousarray(pixels[:, left - start : left - start + width])


def _columns(left: int, width: int, full_width: int, column: int) -> tuple[int, int]:
    """The columns to decode, [start, stop), so that smooth upsampling has all neighbours in the box."""
    narrow = 5  # narrower images have at most two chroma samples a row, which are not smoothed
    start = max(min(left - 1, full_width - narrow), 0) // column * column
    stop = min(max(left + width + 2, start + narrow), full_width)
    return start, stop


def header(data: bytes) -> Header | None:
    """The header of a JPEG that `region` can decode; None for everything else. Takes microseconds, as
    nothing is decoded."""
    if data[:2] != SOI:
        return None
    frame = None
    app1 = False
    at = 2
    for _ in range(MAX_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == SOS:
            return frame and frame._replace(app1=app1, scan=at)
        if marker in WITHOUT_LENGTH:
            return None
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker in FRAMES:
            if frame:  # a second one
                return None
            frame = _frame(marker, data[at + 4 : end])
            if not frame:
                return None
        app1 |= marker == APP1
        at = end
    return None


def _frame(marker: int, body: bytes) -> Header | None:
    """Parse a frame segment; None for a frame that is not decoded here."""
    if marker not in (BASELINE, EXTENDED, PROGRESSIVE):
        return None
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        return None
    bits = body[0]
    height = int.from_bytes(body[1:3])
    width = int.from_bytes(body[3:5])
    components = body[6::3]
    samplings = body[7::3]  # for each component a byte: horizontal and vertical factor
    if bits != 8 or not 0 < height * width <= MAX_PIXELS:
        return None
    if len(components) == 1:  # grey, for which the factors have no effect
        column = 8
    elif len(components) == 3 and samplings[:1] in SAMPLINGS and samplings[1:] == b"\x11\x11":
        column = 8 * (samplings[0] >> 4)
    else:
        return None
    return Header(height, width, marker == PROGRESSIVE, column, components)


def _all_bits_sent(data: bytes, header: Header) -> bool:
    """Whether the scans of a progressive file contain every bit of every coefficient.

    libjpeg smooths a block with missing bits, and its versions do so differently, so the pixels would not
    equal Pillow's.
    """
    incomplete = {component: np.ones(COEFFICIENTS, bool) for component in header.components}
    at = header.scan
    end = data.find(EOI, at)
    for _ in range(MAX_SCANS):
        # A scan: FFDA, length (2 bytes), n, n times (component, tables), the first and the last
        # coefficient, and the lowest bit of them before and after this scan.
        if at + 4 >= len(data):
            return False
        count = data[at + 4]
        body = data[at + 5 : at + 8 + 2 * count]
        if len(body) < 2 * count + 3:
            return False
        components = body[: 2 * count : 2]
        first, last, bits = body[-3:]
        lowest_bit = bits & 15
        for component in components:
            if component in incomplete and first <= last < COEFFICIENTS:
                incomplete[component][first : last + 1] = lowest_bit > 0
        # The next scan. In coded data, FF is followed by 00 or a restart marker.
        at = data.find(START_OF_SCAN, at + 8, end)
        if at < 0:
            return not any(coefficients.any() for coefficients in incomplete.values())
    return False


def has_more_scans(data: bytes, most: int) -> bool:
    """Whether a JPEG of any kind has more than `most` scans, counted as libjpeg does."""
    # At least as many: markers in other segments, such as thumbnails, count too
    if data.count(START_OF_SCAN) <= most:
        return False
    scans = 0
    at = len(SOI)
    while (match := MARKER.search(data, at)) and match[0] != EOI:
        scans += match[0] == START_OF_SCAN
        if scans > most:
            return True
        at = match.end()
        if match[0][1] not in WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2])
    return False


# TurboJPEG

_HANDLE = ctypes.c_void_p
_INTEGER = ctypes.c_int
_DATA = (ctypes.c_char_p, ctypes.c_size_t)
# Constants of turbojpeg.h
TJINIT_DECOMPRESS = 1
TJPF_RGB = 0
TJPARAM_STOPONWARNING = 0
TJPARAM_SCANLIMIT = 13


class _Region(ctypes.Structure):
    """tjregion: a box in pixels of the image that is decoded."""

    _fields_ = [(name, _INTEGER) for name in ("x", "y", "w", "h")]


class _ScalingFactor(ctypes.Structure):
    """tjscalingfactor: the ratio of the decoded to the full size."""

    _fields_ = [(name, _INTEGER) for name in ("num", "denom")]


# Function: types of its arguments, see turbojpeg.h
FUNCTIONS = {
    "tj3Init": (_INTEGER,),
    "tj3Set": (_HANDLE, _INTEGER, _INTEGER),
    "tj3DecompressHeader": (_HANDLE, *_DATA),
    "tj3SetScalingFactor": (_HANDLE, _ScalingFactor),
    "tj3SetCroppingRegion": (_HANDLE, _Region),
    "tj3Decompress8": (_HANDLE, *_DATA, ctypes.c_void_p, _INTEGER, _INTEGER),
    "tj3Destroy": (_HANDLE,),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The first library that can decode a part: of the system or conda, which are kept up to date, or of
    the wheel."""
    for path in (*system_paths(), *wheel_paths()):
        try:
            candidate = ctypes.CDLL(path)
        except OSError:
            continue
        if not all(hasattr(candidate, name) for name in FUNCTIONS):
            continue
        for name, types in FUNCTIONS.items():
            getattr(candidate, name).argtypes = types
        candidate.tj3Init.restype = _HANDLE
        candidate.tj3Destroy.restype = None
        return candidate
    return None


def system_paths() -> list[str]:
    """The usual paths of TurboJPEG.

    A bare name is resolved by the dynamic loader, because `ctypes.util.find_library` starts a compiler
    where nothing is found.
    """
    prefix = Path(sys.prefix)
    if sys.platform == "win32":  # never a bare name, which Windows would search for along PATH
        return [str(prefix / "Library/bin/turbojpeg.dll"), r"C:\libjpeg-turbo64\bin\turbojpeg.dll"]
    if sys.platform == "darwin":
        brew = ["/opt/homebrew/opt/jpeg-turbo", "/usr/local/opt/jpeg-turbo"]
        folders = [str(prefix), *brew, "/opt/libjpeg-turbo"]
        return [f"{folder}/lib/libturbojpeg.dylib" for folder in folders]
    name = "libturbojpeg.so.0"
    return [str(prefix / "lib" / name), name, f"/opt/libjpeg-turbo/lib64/{name}"]


def wheel_paths() -> list[str]:
    """Paths of the library in the installed `turbojpeg` wheel, from its list of files. The package is not
    imported."""
    try:
        files = importlib.metadata.files("turbojpeg") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    name = re.compile(r"(lib)?turbojpeg.*(\.so\.[\d.]+|\.dylib|\.dll)")
    return [str(file.locate()) for file in files if name.fullmatch(file.name)]


def _decode(
    turbo: ctypes.CDLL, data: bytes, box: _Region, scale: int, max_scans: int, pixels: np.ndarray
) -> bool:
    """Fill `pixels`, uint8 (h, w, 3), with a box of a JPEG at 1/scale of its size. Returns False after an
    error or a warning. The GIL is released meanwhile."""
    handle = turbo.tj3Init(TJINIT_DECOMPRESS)
    if not handle:
        return False
    # A decoder is used for one image only: libjpeg keeps the tables of the previous image, and would use
    # them for a file that lacks its own.
    steps = (
        (turbo.tj3Set, TJPARAM_STOPONWARNING, 1),
        (turbo.tj3Set, TJPARAM_SCANLIMIT, max_scans),
        (turbo.tj3DecompressHeader, data, len(data)),
        (turbo.tj3SetScalingFactor, _ScalingFactor(1, scale)),
        (turbo.tj3SetCroppingRegion, box),
        (turbo.tj3Decompress8, data, len(data), pixels.ctypes.data, pixels.strides[0], TJPF_RGB),
    )
    try:
        for function, *arguments in steps:
            failed = function(handle, *arguments)
            if failed:
                return False
        return True
    finally:
        turbo.tj3Destroy(handle)
