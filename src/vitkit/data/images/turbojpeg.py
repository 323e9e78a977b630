"""libjpeg-turbo's TurboJPEG 3 interface, through ctypes: the library is found, and decodes a box of
a JPEG.

It reports errors by return code, so plain ctypes is enough. The library comes from the system, from
conda, or from the `turbojpeg` wheel (the extra `fast`).
"""

import ctypes
import functools
import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np

# Constants of turbojpeg.h
TJINIT_DECOMPRESS = 1
TJPF_RGB = 0
TJPARAM_STOPONWARNING = 0
TJPARAM_SCANLIMIT = 13

FUNCTIONS = (
    "tj3Init",
    "tj3Set",
    "tj3DecompressHeader",
    "tj3SetScalingFactor",
    "tj3SetCroppingRegion",
    "tj3Decompress8",
    "tj3Destroy",
)


class Region(ctypes.Structure):
    """tjregion: a box in pixels of the image that is decoded."""

    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


class ScalingFactor(ctypes.Structure):
    """tjscalingfactor: the size that is decoded to, as a fraction of the full one."""

    _fields_ = [(name, ctypes.c_int) for name in ("num", "denom")]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The first library that can decode a part: the system's or conda's, which are kept up to date,
    or the wheel's."""
    for path in (*system_paths(), *wheel_paths()):
        try:
            candidate = ctypes.CDLL(path)
        except OSError:
            continue
        if all(hasattr(candidate, name) for name in FUNCTIONS):
            return _with_prototypes(candidate)
    return None


def decode(
    library: ctypes.CDLL, data: bytes, box: Region, scale: int, max_scans: int, pixels: np.ndarray
) -> bool:
    """Fill `pixels`, uint8 (h, w, 3), with a box of a JPEG at 1/scale of its size.

    Returns False after an error or a warning. The GIL is free meanwhile.
    """
    handle = library.tj3Init(TJINIT_DECOMPRESS)
    if not handle:
        return False
    # A decoder serves one image and is never reused: libjpeg keeps the tables of the image before,
    # and would decode a file that lacks its own with them.
    steps = (
        (library.tj3Set, TJPARAM_STOPONWARNING, 1),
        (library.tj3Set, TJPARAM_SCANLIMIT, max_scans),
        (library.tj3DecompressHeader, data, len(data)),
        (library.tj3SetScalingFactor, ScalingFactor(1, scale)),
        (library.tj3SetCroppingRegion, box),
        (library.tj3Decompress8, data, len(data), pixels.ctypes.data, pixels.strides[0], TJPF_RGB),
    )
    try:
        for function, *arguments in steps:
            failed = function(handle, *arguments)
            if failed:
                return False
        return True
    finally:
        library.tj3Destroy(handle)


def system_paths() -> list[str]:
    """Where TurboJPEG usually lies.

    A bare name is left to the dynamic loader: `ctypes.util.find_library` would start a compiler
    where nothing is found.
    """
    prefix = Path(sys.prefix)
    if sys.platform == "win32":  # never a bare name: Windows would look all along PATH
        return [str(prefix / "Library/bin/turbojpeg.dll"), r"C:\libjpeg-turbo64\bin\turbojpeg.dll"]
    if sys.platform == "darwin":
        brew = ["/opt/homebrew/opt/jpeg-turbo", "/usr/local/opt/jpeg-turbo"]
        folders = [str(prefix), *brew, "/opt/libjpeg-turbo"]
        return [f"{folder}/lib/libturbojpeg.dylib" for folder in folders]
    name = "libturbojpeg.so.0"
    return [str(prefix / "lib" / name), name, f"/opt/libjpeg-turbo/lib64/{name}"]


def wheel_paths() -> list[str]:
    """The library in the installed `turbojpeg` wheel, found by its list of files; the package is
    not imported."""
    try:
        files = importlib.metadata.files("turbojpeg") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    name = re.compile(r"(lib)?turbojpeg.*(\.so\.[\d.]+|\.dylib|\.dll)")
    return [str(file.locate()) for file in files if name.fullmatch(file.name)]


def _with_prototypes(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same library, its functions declared as in turbojpeg.h."""
    handle = ctypes.c_void_p
    integer = ctypes.c_int
    data = [ctypes.c_char_p, ctypes.c_size_t]
    pixels = ctypes.c_void_p
    library.tj3Init.argtypes = [integer]
    library.tj3Init.restype = handle
    library.tj3Set.argtypes = [handle, integer, integer]
    library.tj3DecompressHeader.argtypes = [handle, *data]
    library.tj3SetScalingFactor.argtypes = [handle, ScalingFactor]
    library.tj3SetCroppingRegion.argtypes = [handle, Region]
    library.tj3Decompress8.argtypes = [handle, *data, pixels, integer, integer]
    library.tj3Destroy.argtypes = [handle]
    library.tj3Destroy.restype = None
    return library
