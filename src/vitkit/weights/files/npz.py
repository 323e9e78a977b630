"""NumPy's archives (.npz), as Google publishes its weights: arrays of numbers, nothing unpickled."""

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

# What NumPy writes. Python unpacks more, and raises errors for them that no other file has; some take
# gigabytes before the first byte
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Member(NamedTuple):
    """An array of an archive, not read yet."""

    name: str
    start: int
    """Bytes of the .npy header before the numbers."""
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    """Whether neighbours along the first axis, not the last, are neighbours in memory."""


def is_npz(file: Path) -> bool:
    """Whether a ZIP archive holds arrays and nothing else. Raises VitkitError for a damaged one."""
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

    bfloat16 may be stored as two raw bytes. Raises VitkitError, before memory is taken, if the file
    does not contain weights.
    """
    description = read_comment(file)
    try:
        # Open until the last array is forgotten: its list of hundreds is not read for each of them
        archive = zipfile.ZipFile(file)
        try:
            tensors = _tensors(archive, file.stat().st_size)
        except DAMAGE:
            archive.close()  # whoever keeps the error may replace the file, also on Windows
            raise
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        # Shortened: it may quote a name, and a harmful file's names may be of any length
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
    """What the header of an array says, checked against its size."""
    if entry.compress_type not in COMPRESSIONS:
        raise BadWeights(
            f"{entry.filename} is compressed by a method of ZIP, number {entry.compress_type}, that NumPy "
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
            f"{entry.filename} says that its shape is {shape}, but holds {entry.file_size} bytes"
        )
    return Member(entry.filename, start, shape, dtype, fortran)


def _header(opened) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype and whether it is in Fortran order."""
    version = npy.read_magic(opened)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise BadWeights(f"version {version} of the .npy format is unknown")
    shape, fortran, dtype = readers[version](opened)
    if dtype.hasobject or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise BadWeights(f"an array of {dtype} and shape {shape} is not a weight")
    return shape, dtype, fortran


def _read(archive: zipfile.ZipFile, member: Member) -> Tensor:
    """The numbers of an array, as a tensor."""
    # Its bytes
    buffer = bytearray(math.prod(member.shape) * member.dtype.itemsize)
    try:
        with archive.open(member.name) as opened:
            opened.read(member.start)
            if not fill(memoryview(buffer), opened) or opened.read(1):
                raise BadWeights(f"{member.name} is cut short")
    except DAMAGE as error:
        archive.close()  # whoever keeps the error may replace the file, also on Windows
        raise BadWeights(f"{error}; download it again") from error

    # As an array; bfloat16, which NumPy does not have, by way of integers
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
