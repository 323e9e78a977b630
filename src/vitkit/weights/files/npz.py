"""NumPy's archives (.npz), in which Google publishes weights: arrays of numbers, never unpickled."""

import math
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import DAMAGE, Lazy, Tensors, check_content, fill, read_comment

# The methods that NumPy writes. Python supports others, with other exceptions; some need gigabytes of
# memory for the first byte
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Member(NamedTuple):
    """An array in an archive that has not been read yet."""

    name: str
    start: int
    """Length of the .npy header before the values, in bytes."""
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    """Whether values are stored in Fortran order."""


def is_npz(file: Path) -> bool:
    """Whether a ZIP archive contains only arrays. Raises VitkitError for a damaged one."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise BadWeights(
            f"{file} cannot be loaded: it is a damaged archive ({error}); download it again"
        ) from error
    return bool(names) and all(name.endswith(".npy") for name in names)


def read_npz(file: Path) -> tuple[Tensors, dict]:
    """The arrays, and the description of the model in the archive's comment ({} without one).

    bfloat16 may be stored as two raw bytes. Raises VitkitError, before large memory is allocated, if the
    file does not contain weights.
    """
    description = read_comment(file)
    try:
        # It stays open while its arrays exist, so its list of members is not read again for each array
        archive = zipfile.ZipFile(file)
        try:
            tensors = _tensors(archive, file.stat().st_size)
        except DAMAGE:
            archive.close()  # so that the file can be replaced, also on Windows
            raise
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        # Truncated, because it may quote a name, and names in a malicious file may have any length
        raise BadWeights(f"{file} cannot be loaded: {reason[:500]}") from error
    return tensors, description


def _tensors(archive: zipfile.ZipFile, size: int) -> Tensors:
    """The arrays of an archive of `size` bytes, by name."""
    tensors: Tensors = {}
    entries = archive.infolist()
    check_content(size, sum(entry.file_size for entry in entries))
    for entry in entries:
        member = _member(archive, entry)
        name = entry.filename.removesuffix(".npy")
        dtype = "bfloat16"
        if member.dtype.kind != "V":
            dtype = member.dtype.newbyteorder("=").name
        tensors[name] = Lazy(member.shape, dtype, partial(_read, archive, member))
    return tensors


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    """Read the header of an array, and check it against the array's size."""
    if entry.compress_type not in COMPRESSIONS:
        raise BadWeights(
            f"{entry.filename} is compressed by ZIP method {entry.compress_type}, which NumPy "
            "does not write; save the arrays again with numpy.savez"
        )
    with archive.open(entry) as opened:
        shape, dtype, fortran = _header(opened)
        start = opened.tell()
    # NumPy has no bfloat16, so JAX's arrays of it are stored as raw bytes ("V2")
    bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and not dtype.fields
    numbers = dtype.kind in "fiub"  # floating point, signed, unsigned, Boolean
    if not numbers and not bfloat16:
        raise BadWeights(f"{entry.filename} holds {dtype}, which are not numbers")
    if math.prod(shape) * dtype.itemsize != entry.file_size - start:
        raise BadWeights(
            f"{entry.filename} has the shape {shape} by its header, but holds {entry.file_size} bytes"
        )
    return Member(entry.filename, start, shape, dtype, fortran)


def _header(opened) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype and whether the array is in Fortran order."""
    version = npy.read_magic(opened)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise BadWeights(f"version {version} of the .npy format is unknown")
    shape, fortran, dtype = readers[version](opened)
    if dtype.hasobject or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise BadWeights(f"an array of {dtype} and shape {shape} is not a weight")
    return shape, dtype, fortran


def _read(archive: zipfile.ZipFile, member: Member) -> Tensor:
    """Read an array as a tensor."""
    # Its bytes
    buffer = bytearray(math.prod(member.shape) * member.dtype.itemsize)
    try:
        with archive.open(member.name) as opened:
            opened.read(member.start)
            if not fill(memoryview(buffer), opened) or opened.read(1):
                raise BadWeights(f"{member.name} is cut short")
    except DAMAGE as error:
        archive.close()  # so that the file can be replaced, also on Windows
        raise BadWeights(f"{error}; download it again") from error

    # As an array; bfloat16, which NumPy does not have, as integers at first
    bfloat16 = member.dtype.kind == "V"
    dtype = member.dtype
    if bfloat16:
        dtype = np.dtype(np.uint16)
    array = np.empty(0, dtype)
    if buffer:  # frombuffer refuses an empty one
        array = np.frombuffer(buffer, dtype)
    order: Literal["F", "C"] = "F" if member.fortran else "C"
    array = array.reshape(member.shape, order=order)

    # As a tensor, in the byte order of this machine
    tensor = torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
    if bfloat16:
        return tensor.view(torch.bfloat16)
    return tensor
